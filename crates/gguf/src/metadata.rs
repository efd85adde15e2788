//! The metadata of a file: ordered entries, looked up by key, with getters that say what they wanted and what
//! they found.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::cursor::{Cursor, ReadError};
use crate::error::{GgufError, quoted};
use crate::value::{Array, BytesArray, StrArray, Value, ValueType};

/// The metadata of a file, in the file's order. Clones share the file's bytes.
///
/// Every `get_*` returns `Ok(None)` if the key is absent, and an error naming the key, the wanted and the found
/// type if the value does not fit; every `require_*` makes an absent key an error too. Integers of any width
/// are converted as long as the number fits.
#[derive(Clone)]
pub struct Metadata {
    /// The file up to the end of its tensor table at least.
    bytes: Arc<Vec<u8>>,
    entries: Vec<Entry>,
    /// Indexes into `entries`, ordered by key.
    by_key: Vec<u32>,
}

/// Where an entry lies in the file.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) key: Range<usize>,
    pub(crate) value_type: ValueType,
    pub(crate) value: Range<usize>,
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let found =
            self.by_key.binary_search_by(|&index| self.key(&self.entries[index as usize]).cmp(key)).ok()?;
        self.value(&self.entries[self.by_key[found] as usize])
    }

    /// Whether there is an entry with this key.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// All entries in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().filter_map(|entry| Some((self.key(entry), self.value(entry)?)))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes entries whose keys and values were checked against `bytes`. A key given twice is an error.
    pub(crate) fn new(bytes: Arc<Vec<u8>>, entries: Vec<Entry>) -> Result<Metadata, GgufError> {
        let mut metadata = Metadata { bytes, by_key: Vec::new(), entries };
        let mut by_key: Vec<u32> = (0..metadata.entries.len() as u32).collect();
        by_key.sort_unstable_by_key(|&index| metadata.key(&metadata.entries[index as usize]));
        let keys = by_key.iter().map(|&index| metadata.key(&metadata.entries[index as usize]));
        if let Some((key, _)) = keys.clone().zip(keys.skip(1)).find(|(key, next)| key == next) {
            return Err(GgufError::Duplicate { what: "metadata key", name: quoted(key) });
        }
        metadata.by_key = by_key;
        Ok(metadata)
    }

    /// The key of an entry, which was checked to be UTF-8.
    fn key(&self, entry: &Entry) -> &str {
        str::from_utf8(&self.bytes[entry.key.clone()]).unwrap_or_default()
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        Value::view(&self.bytes[entry.value.clone()], entry.value_type)
    }

    /// The value of `key` as `convert` makes it; the conversion's error says what was found.
    fn get_as<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        convert: impl FnOnce(Value<'a>) -> Result<T, String>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).map_err(|found| GgufError::WrongType { key: quoted(key), wanted, found })
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(key, value)| (key, value.to_string()))).finish()
    }
}

macro_rules! getters {
    ($($get:ident, $require:ident, $type:ty, $wanted:literal, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The value of `key` as ", $wanted, ", or `None` if the key is absent.")]
            pub fn $get(&self, key: &str) -> Result<Option<$type>, GgufError> {
                self.get_as(key, $wanted, $convert)
            }

            #[doc = concat!("The value of `key` as ", $wanted, "; an absent key is an error.")]
            pub fn $require(&self, key: &str) -> Result<$type, GgufError> {
                self.$get(key)?.ok_or_else(|| GgufError::MissingKey { key: quoted(key) })
            }
        )*}
    };
}

getters! {
    get_u32, require_u32, u32, "an integer from 0 to 4294967295", integer;
    get_u64, require_u64, u64, "an integer from 0 to 18446744073709551615", integer;
    get_usize, require_usize, usize, "an integer that fits a memory size", integer;
    get_i32, require_i32, i32, "an integer from -2147483648 to 2147483647", integer;
    get_i64, require_i64, i64, "an integer from -9223372036854775808 to 9223372036854775807", integer;
    get_f32, require_f32, f32, "a floating-point number", f32;
    get_bool, require_bool, bool, "a bool", bool;
    get_str, require_str, &str, "a UTF-8 string", str;
    get_bytes, require_bytes, &[u8], "a string", bytes;
    get_array, require_array, Array<'_>, "an array", any_array;
    get_str_array, require_str_array, StrArray<'_>, "an array of UTF-8 strings", str_array;
    get_bytes_array, require_bytes_array, BytesArray<'_>, "an array of strings", bytes_array;
    get_u32_array, require_u32_array, Vec<u32>, "an array of integers from 0 to 4294967295",
        |value| array(value, integer);
    get_i32_array, require_i32_array, Vec<i32>, "an array of integers from -2147483648 to 2147483647",
        |value| array(value, integer);
    get_f32_array, require_f32_array, Vec<f32>, "an array of floating-point numbers", |value| array(value, f32);
    get_bool_array, require_bool_array, Vec<bool>, "an array of bools", |value| array(value, bool);
}

fn integer<T: TryFrom<i128>>(value: Value<'_>) -> Result<T, String> {
    value.as_integer().and_then(|number| T::try_from(number).ok()).ok_or_else(|| value.describe())
}

fn f32(value: Value<'_>) -> Result<f32, String> {
    value.as_f32().ok_or_else(|| value.describe())
}

fn bool(value: Value<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| value.describe())
}

fn bytes(value: Value<'_>) -> Result<&[u8], String> {
    match value {
        Value::Str(bytes) => Ok(bytes),
        _ => Err(value.describe()),
    }
}

fn str(value: Value<'_>) -> Result<&str, String> {
    str::from_utf8(bytes(value)?).map_err(|_| format!("{}, which is not UTF-8", value.describe()))
}

fn any_array(value: Value<'_>) -> Result<Array<'_>, String> {
    value.as_array().ok_or_else(|| value.describe())
}

fn bytes_array(value: Value<'_>) -> Result<BytesArray<'_>, String> {
    any_array(value)?.as_bytes_array().ok_or_else(|| value.describe())
}

fn str_array(value: Value<'_>) -> Result<StrArray<'_>, String> {
    let array = bytes_array(value)?;
    array.to_str_array().map_err(|index| format!("{}, whose element {index} is not UTF-8", value.describe()))
}

/// An array of numbers or bools, element by element.
fn array<'a, T>(value: Value<'a>, convert: fn(Value<'a>) -> Result<T, String>) -> Result<Vec<T>, String> {
    let array = any_array(value)?;
    let mut elements = Vec::with_capacity(array.len());
    for (index, element) in array.iter().enumerate() {
        let found = |found| format!("{}, whose element {index} is {found}", value.describe());
        elements.push(convert(element).map_err(found)?);
    }
    Ok(elements)
}

/// Reads one entry, checking all of it. `index` names it until its key is known.
pub(crate) fn read_entry(cursor: &mut Cursor<'_>, index: u64) -> Result<Entry, GgufError> {
    let key = cursor.name().map_err(|error| error.at(format!("the key of metadata entry {index}")))?;
    let key_end = cursor.offset();
    let at_key = |error: ReadError| error.at(format!("metadata key `{}`", quoted(key)));
    let value_type = ValueType::read(cursor).map_err(at_key)?;
    let value_start = cursor.offset();
    Value::read(cursor, value_type, 0).map_err(at_key)?;
    Ok(Entry { key: key_end - key.len()..key_end, value_type, value: value_start..cursor.offset() })
}
