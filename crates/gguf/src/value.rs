//! Metadata values: scalars, strings and arrays, as zero-copy views of the file.

use std::fmt;

use crate::cursor::{Cursor, ReadError};
use crate::error::quoted;

/// A metadata value. Strings and arrays are views into the file's bytes, so a value is a few words and
/// `Copy`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are the types that they name
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// UTF-8 by the format's rules, but files break them, so it is bytes.
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type.
    pub fn value_type(self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The number, if it is an integer of any width.
    pub fn as_integer(self) -> Option<i128> {
        match self {
            Value::U8(number) => Some(number.into()),
            Value::I8(number) => Some(number.into()),
            Value::U16(number) => Some(number.into()),
            Value::I16(number) => Some(number.into()),
            Value::U32(number) => Some(number.into()),
            Value::I32(number) => Some(number.into()),
            Value::U64(number) => Some(number.into()),
            Value::I64(number) => Some(number.into()),
            _ => None,
        }
    }

    /// The number, if it is a floating-point one; an f64 is rounded to the nearest f32.
    pub fn as_f32(self) -> Option<f32> {
        match self {
            Value::F32(number) => Some(number),
            Value::F64(number) => Some(number as f32),
            _ => None,
        }
    }

    /// The bool, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The array, if it is one.
    pub fn as_array(self) -> Option<Array<'a>> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Type and value in a few words, for messages.
    pub(crate) fn describe(self) -> String {
        match self {
            Value::Array(array) => format!("an array of {} {}", array.len(), array.element_type()),
            scalar => format!("{} {scalar}", scalar.value_type()),
        }
    }

    /// The value's bytes as the file holds them, without the type before them.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        match self {
            Value::U8(number) => out.push(number),
            Value::I8(number) => out.extend(number.to_le_bytes()),
            Value::U16(number) => out.extend(number.to_le_bytes()),
            Value::I16(number) => out.extend(number.to_le_bytes()),
            Value::U32(number) => out.extend(number.to_le_bytes()),
            Value::I32(number) => out.extend(number.to_le_bytes()),
            Value::F32(number) => out.extend(number.to_le_bytes()),
            Value::Bool(value) => out.push(value.into()),
            Value::Str(bytes) => encode_string(bytes, out),
            Value::Array(array) => {
                out.extend(array.element.id().to_le_bytes());
                out.extend((array.len as u64).to_le_bytes());
                out.extend(array.bytes);
            }
            Value::U64(number) => out.extend(number.to_le_bytes()),
            Value::I64(number) => out.extend(number.to_le_bytes()),
            Value::F64(number) => out.extend(number.to_le_bytes()),
        }
    }

    /// Reads the value at the cursor, checking all of it.
    pub(crate) fn read(
        cursor: &mut Cursor<'a>,
        value_type: ValueType,
        depth: usize,
    ) -> Result<Value<'a>, ReadError> {
        Ok(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Value::U32(cursor.u32()?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::Bool => match cursor.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => {
                    return Err(ReadError::Malformed(format!("a bool is the byte {other}, not 0 or 1")));
                }
            },
            ValueType::Str => Value::Str(cursor.string()?),
            ValueType::Array => Value::Array(Array::read(cursor, depth)?),
            ValueType::U64 => Value::U64(cursor.u64()?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array()?)),
        })
    }

    /// Views a value whose bytes were checked by [`Value::read`] before: an array is not walked again.
    ///
    /// `None` only if they were not.
    pub(crate) fn view(bytes: &'a [u8], value_type: ValueType) -> Option<Value<'a>> {
        let mut cursor = Cursor::new(bytes);
        if value_type != ValueType::Array {
            return Value::read(&mut cursor, value_type, 0).ok();
        }
        let element = ValueType::from_id(cursor.u32().ok()?)?;
        let len = usize::try_from(cursor.u64().ok()?).ok()?;
        let bytes = cursor.take(cursor.left() as u64).ok()?;
        // Every element takes at least a byte, so this bounds what a caller may reserve for the elements.
        (len <= bytes.len()).then_some(Value::Array(Array { element, len, bytes }))
    }
}

/// The value for people: numbers as they are, strings escaped and shortened, arrays by type and length.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::F32(number) => write!(f, "{number:?}"),
            Value::F64(number) => write!(f, "{number:?}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Str(bytes) => write!(f, "\"{}\"", quoted(bytes)),
            Value::Array(array) => write!(f, "[{}; {}]", array.element, array.len),
            // All others are integers.
            integer => write!(f, "{}", integer.as_integer().unwrap_or_default()),
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Str(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Value<'a> {
        Value::Str(text.as_bytes())
    }
}

impl<'a> From<Array<'a>> for Value<'a> {
    fn from(array: Array<'a>) -> Value<'a> {
        Value::Array(array)
    }
}

macro_rules! value_from {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl From<$type> for Value<'_> {
            fn from(number: $type) -> Self {
                Value::$variant(number)
            }
        }
    )*};
}

value_from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool,
}

/// The type of a metadata value; the numbers are the format's type ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// Every type, in order of id.
    pub const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64]
    };

    /// The type with this id, if there is one.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// A short name such as `u32`.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::Str => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Reads the type before a value.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<ValueType, ReadError> {
        let id = cursor.u32()?;
        ValueType::from_id(id)
            .ok_or_else(|| ReadError::Malformed(format!("value type {id} is unknown (0 to 12 are known)")))
    }

    /// The bytes of every value of this type; `None` for strings and arrays.
    fn fixed_bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::Str | ValueType::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Arrays of arrays deeper than this are rejected. No known file has any; the bound limits the recursion.
const MAX_ARRAY_DEPTH: usize = 4;

/// An array of metadata values, all of one type: a zero-copy view of the file.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    /// The elements one after the other, as the file holds them.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of the elements.
    pub fn element_type(self) -> ValueType {
        self.element
    }

    /// The number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut cursor = Cursor::new(self.bytes);
        // All was checked when the file was opened, so no element is missing.
        (0..self.len).map_while(move |_| Value::read(&mut cursor, self.element, 1).ok())
    }

    /// The strings, if the elements are strings.
    pub fn as_bytes_array(self) -> Option<BytesArray<'a>> {
        (self.element == ValueType::Str).then_some(BytesArray(self))
    }

    /// Reads the array at the cursor, checking every element. `depth` counts the arrays around it.
    fn read(cursor: &mut Cursor<'a>, depth: usize) -> Result<Array<'a>, ReadError> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(ReadError::Malformed(format!("arrays are nested deeper than {MAX_ARRAY_DEPTH}")));
        }
        let element = ValueType::read(cursor)?;
        let count = cursor.u64()?;
        let mut rest = cursor.clone();
        match element.fixed_bytes() {
            Some(bytes) => {
                let values = rest.take_elements(count, bytes)?;
                if element == ValueType::Bool
                    && let Some(other) = values.iter().find(|&&byte| byte > 1)
                {
                    return Err(ReadError::Malformed(format!("a bool is the byte {other}, not 0 or 1")));
                }
            }
            None => {
                // The minimum that the elements can take (a length, or a type and a count): a hostile count
                // fails here.
                let min_bytes = if element == ValueType::Str { 8 } else { 12 };
                cursor.clone().take_elements(count, min_bytes)?;
                for _ in 0..count {
                    Value::read(&mut rest, element, depth + 1)?;
                }
            }
        }
        let bytes = cursor.take((rest.offset() - cursor.offset()) as u64)?;
        // Never truncated: the elements lie in memory, and each takes at least a byte.
        Ok(Array { element, len: count as usize, bytes })
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element, self.len)
    }
}

/// An array of strings, such as a vocabulary: a zero-copy view of the file, read sequentially.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BytesArray<'a>(Array<'a>);

impl<'a> BytesArray<'a> {
    /// The number of strings.
    pub fn len(self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.len == 0
    }

    /// The strings in order, as bytes.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut cursor = Cursor::new(self.0.bytes);
        (0..self.len()).map_while(move |_| cursor.string().ok())
    }

    /// The same strings as text; the index of the first that is not UTF-8 otherwise.
    pub fn to_str_array(self) -> Result<StrArray<'a>, usize> {
        match self.iter().position(|bytes| str::from_utf8(bytes).is_err()) {
            Some(index) => Err(index),
            None => Ok(StrArray(self)),
        }
    }
}

/// An array of strings, all of them UTF-8: a zero-copy view of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StrArray<'a>(BytesArray<'a>);

impl<'a> StrArray<'a> {
    /// The number of strings.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The strings in order.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        // Checked in `to_str_array`.
        self.0.iter().map_while(|bytes| str::from_utf8(bytes).ok())
    }
}

/// What an array can be written from: see [`GgufWriter::put_array`](crate::GgufWriter::put_array).
pub trait Element: sealed::Sealed {
    /// The type that the file names.
    const TYPE: ValueType;

    /// The element as a value.
    fn value(&self) -> Value<'_>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty, $variant:ident, |$element:ident| $value:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: ValueType = ValueType::$variant;

            fn value(&self) -> Value<'_> {
                let $element = self;
                $value
            }
        }
    )*};
}

elements! {
    u8, U8, |number| (*number).into();
    i8, I8, |number| (*number).into();
    u16, U16, |number| (*number).into();
    i16, I16, |number| (*number).into();
    u32, U32, |number| (*number).into();
    i32, I32, |number| (*number).into();
    u64, U64, |number| (*number).into();
    i64, I64, |number| (*number).into();
    f32, F32, |number| (*number).into();
    f64, F64, |number| (*number).into();
    bool, Bool, |value| (*value).into();
    &str, Str, |text| Value::Str(text.as_bytes());
    String, Str, |text| Value::Str(text.as_bytes());
    &[u8], Str, |bytes| Value::Str(bytes);
    Vec<u8>, Str, |bytes| Value::Str(bytes);
}

/// Appends a string as the file holds it.
pub(crate) fn encode_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// Appends an array as the file holds it.
pub(crate) fn encode_array<T: Element>(elements: &[T], out: &mut Vec<u8>) {
    out.extend(T::TYPE.id().to_le_bytes());
    out.extend((elements.len() as u64).to_le_bytes());
    elements.iter().for_each(|element| element.value().encode(out));
}
