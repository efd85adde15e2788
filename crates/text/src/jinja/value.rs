//! The values of templates: Python's, as far as templates meet them. Lists, tuples and maps never change, since the sandbox
//! that chat templates run in forbids it.

use super::ast;
use super::error::{Result, type_error};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

thread_local! {
    /// The memory that values of this thread hold, about, in bytes.
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The memory that values of this thread hold, about, in bytes.
pub(crate) fn live_bytes() -> usize {
    LIVE_BYTES.get()
}

/// Counts memory for as long as it lives.
#[derive(Debug)]
pub(crate) struct Charge(usize);

impl Charge {
    pub(crate) fn new(bytes: usize) -> Charge {
        LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
        Charge(bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        LIVE_BYTES.set(LIVE_BYTES.get().saturating_sub(self.0));
    }
}

/// A value.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// With the message of the error that using it is.
    Undefined(Option<Rc<str>>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<Text>),
    /// Text that `|safe` or `|escape` made: what is joined to it is escaped.
    Markup(Rc<Text>),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    Dict(Rc<Dict>),
    /// `map.keys()`, `map.values()` and `map.items()`.
    View(View, Rc<Dict>),
    Range(Range),
    Iterator(Rc<Iterator>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    /// A method and what it belongs to.
    Method(Rc<(Value, &'static str)>),
    /// A global function, by its name.
    Function(&'static str),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
}

/// Text, charged.
#[derive(Debug)]
pub(crate) struct Text {
    text: Box<str>,
    _charge: Charge,
}

impl Text {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.text)
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// The items of a list or tuple.
#[derive(Debug)]
pub(crate) struct Items {
    items: Vec<Value>,
    depth: usize,
    /// Whether this is one of `groupby`'s pairs, whose items have names.
    pub(crate) is_group: bool,
    _charge: Charge,
}

impl std::ops::Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

/// A map, in the order of insertion.
#[derive(Debug)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    /// The index of each key; absent in short maps.
    index: Option<HashMap<Key, usize>>,
    depth: usize,
    _charge: Charge,
}

/// What Python's equality of keys compares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Undefined,
    None,
    Int(i128),
    Float(u64),
    Text(Box<str>),
    Tuple(Vec<Key>),
    Range(i128, i128, i128),
    Function(&'static str),
    Identity(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// Python's `range`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: i128,
    pub(crate) stop: i128,
    pub(crate) step: i128,
}

impl Range {
    pub(crate) fn len(self) -> i128 {
        let distance = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        if distance <= 0 { 0 } else { (distance - 1) / self.step.abs() + 1 }
    }

    pub(crate) fn get(self, index: i128) -> Value {
        Value::Int(self.start + index * self.step)
    }
}

/// A source of items that is used up as it is read.
#[derive(Debug)]
pub(crate) struct Iterator {
    /// Taken out while an item is computed.
    pub(crate) source: RefCell<Source>,
    depth: usize,
}

/// Where items come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Empty,
    /// From this index on.
    Items(Rc<Items>, usize),
    /// Down from before this index.
    Reversed(Rc<Items>, usize),
    /// Characters, from this byte on.
    Text(Rc<Text>, usize),
    Dict(View, Rc<Dict>, usize),
    ReversedDict(View, Rc<Dict>, usize),
    Range(Range),
    Shared(Rc<Iterator>),
    Generator(Box<Generator>),
}

/// A filter that gives items one by one.
#[derive(Debug, Clone)]
pub(crate) enum Generator {
    /// Filters `map` by attribute and by filter: the value, until its items are taken from it.
    Attribute {
        from: Pending,
        attribute: Value,
        default: Value,
    },
    Filter {
        from: Pending,
        arguments: Call,
    },
    /// Filters `select`, `reject`, `selectattr` and `rejectattr`.
    Select {
        from: Pending,
        attribute: Option<Value>,
        is_rejecting: bool,
        arguments: Call,
    },
    Unique {
        from: Pending,
        is_case_sensitive: bool,
        attribute: Value,
        seen: HashSet<Key>,
    },
    Batch {
        from: Pending,
        size: Value,
        fill: Value,
        is_done: bool,
    },
    Slice {
        value: Value,
        count: Value,
        fill: Value,
    },
    /// The filter `items`.
    Pairs(Value),
}

/// What a generator reads: a value until the first item is asked for, then its items.
#[derive(Debug, Clone)]
pub(crate) enum Pending {
    Value(Value),
    Source(Box<Source>),
}

/// The arguments of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Rc<Text>, Value)>,
}

/// `namespace(...)`, whose attributes can be set.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) attributes: RefCell<Vec<(Rc<Text>, Value)>>,
    pub(crate) charge: RefCell<Charge>,
}

impl Namespace {
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        self.attributes
            .borrow()
            .iter()
            .find(|(known, _)| known.as_str() == name)
            .map(|(_, value)| value.clone())
    }
}

/// A macro and the scope it was defined in.
#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) definition: Arc<ast::Macro>,
    /// A scope holds its macros, so they do not hold it.
    pub(crate) scope: Weak<Scope>,
}

/// The variables of one run through a scope.
#[derive(Debug)]
pub(crate) struct Scope {
    /// None where a variable is not set.
    pub(crate) variables: RefCell<Vec<(ast::TextId, Option<Value>)>>,
    pub(crate) parent: Option<Rc<Scope>>,
}

impl Scope {
    /// The variable as the innermost scope that has it, has it: None if no scope has it, Some(None) if it is not set.
    pub(crate) fn get(&self, name: ast::TextId) -> Option<Option<Value>> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            let variables = current.variables.borrow();
            if let Some((_, value)) = variables.iter().find(|(known, _)| *known == name) {
                return Some(value.clone());
            }
            scope = current.parent.as_deref();
        }
        None
    }

    pub(crate) fn set(&self, name: ast::TextId, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, slot)) => *slot = Some(value),
            None => variables.push((name, Some(value))),
        }
    }
}

/// `loop`.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) source: RefCell<Source>,
    /// None where only reading everything tells.
    pub(crate) length: Cell<Option<i128>>,
    /// -1 before the first item.
    pub(crate) index0: Cell<i128>,
    pub(crate) previous: RefCell<Option<Value>>,
    pub(crate) current: RefCell<Option<Value>>,
    /// Items that were looked at already.
    pub(crate) ahead: RefCell<VecDeque<Value>>,
    pub(crate) changed: RefCell<Option<Vec<Value>>>,
    pub(crate) depth0: i128,
    pub(crate) node: Arc<ast::For>,
    /// The scope around the loop.
    pub(crate) scope: Rc<Scope>,
}

/// `cycler(...)`.
#[derive(Debug)]
pub(crate) struct Cycler {
    pub(crate) items: Vec<Value>,
    pub(crate) position: Cell<usize>,
}

/// `joiner(...)`.
#[derive(Debug)]
pub(crate) struct Joiner {
    pub(crate) separator: Value,
    pub(crate) is_used: Cell<bool>,
}

/// How deep values may be nested; deeper ones would overflow the stack.
const DEPTH_MAX: usize = 100;
/// Shorter maps are searched without an index.
const INDEXED_LEN: usize = 12;

fn depth_of<'v>(values: impl std::iter::Iterator<Item = &'v Value>) -> Result<usize> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    match depth > DEPTH_MAX {
        true => type_error(format!("a value is nested deeper than {DEPTH_MAX} levels")),
        false => Ok(depth),
    }
}

impl Items {
    pub(crate) fn new(items: Vec<Value>) -> Result<Rc<Items>> {
        let depth = depth_of(items.iter())?;
        let charge = Charge::new(64 + items.capacity() * size_of::<Value>());
        Ok(Rc::new(Items { items, depth, is_group: false, _charge: charge }))
    }

    pub(crate) fn group(key: Value, values: Value) -> Result<Value> {
        let items = vec![key, values];
        let depth = depth_of(items.iter())?;
        Ok(Value::Tuple(Rc::new(Items { items, depth, is_group: true, _charge: Charge::new(128) })))
    }
}

impl Dict {
    /// A map of entries, of which later ones replace the values of earlier ones.
    pub(crate) fn new(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Rc<Dict>> {
        let mut entries: Vec<(Value, Value)> = Vec::new();
        let mut index: HashMap<Key, usize> = HashMap::new();
        for (key, value) in pairs {
            match index.entry(Key::new(&key)?) {
                std::collections::hash_map::Entry::Occupied(known) => entries[*known.get()].1 = value,
                std::collections::hash_map::Entry::Vacant(new) => {
                    new.insert(entries.len());
                    entries.push((key, value));
                }
            }
        }
        let depth = depth_of(entries.iter().flat_map(|(key, value)| [key, value]))?;
        let index = (entries.len() >= INDEXED_LEN).then_some(index);
        let key_bytes: usize = index.iter().flatten().map(|(key, _)| key.bytes()).sum();
        let charge = Charge::new(96 + entries.capacity() * 2 * size_of::<Value>() + key_bytes);
        Ok(Rc::new(Dict { entries, index, depth, _charge: charge }))
    }

    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    pub(crate) fn get_text(&self, name: &str) -> Option<&Value> {
        let entry = match &self.index {
            Some(index) => index.get(&Key::Text(name.into())).map(|at| &self.entries[*at]),
            None => self.entries.iter().find(|(key, _)| key.as_text() == Some(name)),
        };
        entry.map(|(_, value)| value)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// If the key cannot be hashed.
    pub(crate) fn get(&self, key: &Value) -> Result<Option<&Value>> {
        if let Some(name) = key.as_text() {
            return Ok(self.get_text(name));
        }
        let key = Key::new(key)?;
        if let Some(index) = &self.index {
            return Ok(index.get(&key).map(|at| &self.entries[*at].1));
        }
        let found = self.entries.iter().find(|(known, _)| Key::new(known).is_ok_and(|known| known == key));
        Ok(found.map(|(_, value)| value))
    }

    pub(crate) fn item(&self, view: View, index: usize) -> Result<Option<Value>> {
        let Some((key, value)) = self.entries.get(index) else { return Ok(None) };
        Ok(Some(match view {
            View::Keys => key.clone(),
            View::Values => value.clone(),
            View::Items => Value::tuple(vec![key.clone(), value.clone()])?,
        }))
    }
}

impl Key {
    /// # Errors
    /// If the value cannot be hashed.
    pub(crate) fn new(value: &Value) -> Result<Key> {
        let identity = |address: *const ()| Ok(Key::Identity(address as usize));
        Ok(match value {
            Value::Undefined(_) => Key::Undefined,
            Value::None => Key::None,
            Value::Bool(value) => Key::Int(i128::from(*value)),
            Value::Int(value) => Key::Int(*value),
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e38 => Key::Int(*value as i128),
            Value::Float(value) => Key::Float(value.to_bits()),
            Value::Text(text) | Value::Markup(text) => Key::Text(text.as_str().into()),
            Value::Tuple(items) => Key::Tuple(items.iter().map(Key::new).collect::<Result<_>>()?),
            Value::Range(range) if range.len() == 0 => Key::Range(0, 0, 0),
            Value::Range(range) if range.len() == 1 => Key::Range(1, range.start, 0),
            Value::Range(range) => Key::Range(range.len(), range.start, range.step),
            Value::Function(name) => Key::Function(name),
            Value::View(View::Values, dict) => return identity(Rc::as_ptr(dict).cast()),
            Value::List(_) | Value::Dict(_) | Value::View(..) => {
                return type_error(format!("unhashable type: '{}'", value.type_name()));
            }
            Value::Iterator(value) => return identity(Rc::as_ptr(value).cast()),
            Value::Namespace(value) => return identity(Rc::as_ptr(value).cast()),
            Value::Macro(value) => return identity(Rc::as_ptr(value).cast()),
            Value::Method(value) => return identity(Rc::as_ptr(value).cast()),
            Value::Loop(value) => return identity(Rc::as_ptr(value).cast()),
            Value::Cycler(value) => return identity(Rc::as_ptr(value).cast()),
            Value::Joiner(value) => return identity(Rc::as_ptr(value).cast()),
        })
    }

    fn bytes(&self) -> usize {
        64 + match self {
            Key::Text(text) => text.len(),
            Key::Tuple(keys) => keys.iter().map(Key::bytes).sum(),
            _ => 0,
        }
    }
}

impl Value {
    pub(crate) fn undefined(message: impl Into<Rc<str>>) -> Value {
        Value::Undefined(Some(message.into()))
    }

    /// Text, not counted as work. [`RenderContext::text`](super::context::RenderContext::text) counts it.
    pub(crate) fn small_text(text: &str) -> Value {
        Value::Text(new_text(text.to_owned()))
    }

    pub(crate) fn list(items: Vec<Value>) -> Result<Value> {
        Ok(Value::List(Items::new(items)?))
    }

    pub(crate) fn tuple(items: Vec<Value>) -> Result<Value> {
        Ok(Value::Tuple(Items::new(items)?))
    }

    pub(crate) fn dict(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Value> {
        Ok(Value::Dict(Dict::new(pairs)?))
    }

    pub(crate) fn iterator(source: Source) -> Result<Value> {
        let depth = match &source {
            Source::Shared(inner) => inner.depth,
            Source::Generator(generator) => generator.depth(),
            _ => 0,
        };
        match depth >= DEPTH_MAX {
            true => type_error(format!("more than {DEPTH_MAX} filters follow each other")),
            false => {
                Ok(Value::Iterator(Rc::new(Iterator { source: RefCell::new(source), depth: depth + 1 })))
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::Dict(dict) | Value::View(_, dict) => dict.depth,
            Value::Iterator(iterator) => iterator.depth,
            Value::Method(method) => method.0.depth(),
            Value::Cycler(cycler) => cycler.items.iter().map(Value::depth).max().unwrap_or(0),
            Value::Joiner(joiner) => joiner.separator.depth(),
            _ => 0,
        }
    }

    /// The text of a string, marked as safe or not.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Markup(text) => Some(text),
            _ => None,
        }
    }

    /// Python's integers, which bools are.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    /// Python's `bool(value)`.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) | Value::Markup(text) => !text.is_empty(),
            Value::List(items) | Value::Tuple(items) => !items.is_empty(),
            Value::Dict(dict) | Value::View(_, dict) => !dict.entries.is_empty(),
            Value::Range(range) => range.len() > 0,
            _ => true,
        }
    }

    /// Python's name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::Markup(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(View::Keys, _) => "dict_keys",
            Value::View(View::Values, _) => "dict_values",
            Value::View(View::Items, _) => "dict_items",
            Value::Range(_) => "range",
            Value::Iterator(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Method(_) => "builtin_function_or_method",
            Value::Function(_) => "function",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }
}

impl Generator {
    fn depth(&self) -> usize {
        let from = |pending: &Pending| match pending {
            Pending::Value(value) => value.depth(),
            Pending::Source(_) => 0,
        };
        match self {
            Generator::Attribute { from: pending, .. }
            | Generator::Filter { from: pending, .. }
            | Generator::Select { from: pending, .. }
            | Generator::Unique { from: pending, .. }
            | Generator::Batch { from: pending, .. } => from(pending),
            Generator::Slice { value, .. } | Generator::Pairs(value) => value.depth(),
        }
    }
}

pub(crate) fn new_text(text: String) -> Rc<Text> {
    let charge = Charge::new(48 + text.len());
    Rc::new(Text { text: text.into_boxed_str(), _charge: charge })
}
