//! The syntax tree of a template.

use std::sync::Arc;

/// The index of a name or a text constant in [`Template::texts`].
pub(crate) type TextId = u32;

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) body: Vec<Statement>,
    pub(crate) frame: Frame,
    /// Each name and text constant once.
    pub(crate) texts: Vec<String>,
}

/// The variables of a scope that its own code names, and what each is when the scope is entered.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(crate) loads: Vec<(TextId, Load)>,
}

/// What a variable is when its scope is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Set by whoever enters the scope.
    Parameter,
    /// Looked up among the variables of the render call.
    Resolve,
    /// The variable of an outer scope.
    Alias,
    /// Not set.
    Undefined,
}

/// A statement and the line it starts on.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: usize,
    pub(crate) kind: StatementKind,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Text(String),
    Print(Node),
    If {
        branches: Vec<(Node, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(Arc<For>),
    Set {
        target: Target,
        value: Node,
    },
    SetBlock {
        target: Target,
        filters: Vec<FilterCall>,
        body: Vec<Statement>,
        frame: Frame,
    },
    With {
        targets: Vec<(Target, Node)>,
        body: Vec<Statement>,
        frame: Frame,
    },
    FilterBlock {
        filters: Vec<FilterCall>,
        body: Vec<Statement>,
        frame: Frame,
    },
    Block {
        body: Vec<Statement>,
        frame: Frame,
    },
    Macro(Arc<Macro>),
    /// `{% call %}`: the block, and the call that it is passed to.
    Call {
        block: Arc<Macro>,
        call: Node,
    },
    /// `{% generation %}`, which runs its body as a call block does.
    Generation {
        body: Vec<Statement>,
        frame: Frame,
    },
    Break,
    Continue,
}

/// A `for` loop.
#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) iterable: Node,
    pub(crate) test: Option<Node>,
    pub(crate) is_recursive: bool,
    /// `loop`, if the body names it.
    pub(crate) loop_name: Option<TextId>,
    pub(crate) body: Vec<Statement>,
    pub(crate) otherwise: Vec<Statement>,
    pub(crate) frame: Frame,
    pub(crate) test_frame: Frame,
    pub(crate) otherwise_frame: Frame,
}

/// A macro, or the block of `{% call %}`.
#[derive(Debug)]
pub(crate) struct Macro {
    /// None for the block of `{% call %}`.
    pub(crate) name: Option<TextId>,
    /// Names and, from some point on, defaults.
    pub(crate) parameters: Vec<(TextId, Option<Node>)>,
    pub(crate) body: Vec<Statement>,
    pub(crate) frame: Frame,
    pub(crate) caller: Option<TextId>,
    pub(crate) kwargs: Option<TextId>,
    pub(crate) varargs: Option<TextId>,
    pub(crate) line: usize,
}

/// What is assigned to.
#[derive(Debug)]
pub(crate) enum Target {
    Name(TextId),
    Attribute(TextId, TextId),
    Tuple(Vec<Target>),
}

/// An expression, the line it starts on, and how deep it is nested.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) height: usize,
    pub(crate) kind: Expression,
}

#[derive(Debug)]
pub(crate) enum Expression {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(TextId),
    Name(TextId),
    List(Vec<Node>),
    Tuple(Vec<Node>),
    Dict(Vec<(Node, Node)>),
    Attribute(Box<Node>, TextId),
    Item(Box<Node>, Box<Node>),
    Slice(Box<[Option<Node>; 3]>),
    Call(Box<Node>, Arguments),
    Filter(Box<Node>, FilterCall),
    Test(Box<Node>, FilterCall),
    Not(Box<Node>),
    Negative(Box<Node>),
    Positive(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Concat(Vec<Node>),
    /// Operators of one precedence, from left to right.
    Arithmetic(Box<Node>, Vec<(Operator, Node)>),
    Compare(Box<Node>, Vec<(Comparison, Node)>),
    /// Test, value, and the value otherwise.
    If(Box<(Node, Node, Option<Node>)>),
}

/// A filter or test by name, with its arguments.
#[derive(Debug)]
pub(crate) struct FilterCall {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) arguments: Arguments,
}

/// The arguments of a call.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Node>,
    pub(crate) named: Vec<(TextId, Node)>,
    /// `*list`.
    pub(crate) list: Option<Box<Node>>,
    /// `**map`.
    pub(crate) map: Option<Box<Node>>,
}

impl Arguments {
    /// All the expressions, in the order of Jinja2's own tree.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        let named = self.named.iter().map(|(_, node)| node);
        self.positional.iter().chain(named).chain(self.list.as_deref()).chain(self.map.as_deref())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

impl Node {
    /// The expressions that this one is made of.
    pub(crate) fn children(&self) -> Vec<&Node> {
        use Expression as E;
        match &self.kind {
            E::None | E::Bool(_) | E::Int(_) | E::Float(_) | E::Text(_) | E::Name(_) => Vec::new(),
            E::List(nodes) | E::Tuple(nodes) | E::And(nodes) | E::Or(nodes) | E::Concat(nodes) => {
                nodes.iter().collect()
            }
            E::Dict(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
            E::Attribute(node, _) | E::Not(node) | E::Negative(node) | E::Positive(node) => vec![node],
            E::Item(node, key) => vec![node, key],
            E::Slice(parts) => parts.iter().flatten().collect(),
            E::Call(node, arguments) => std::iter::once(&**node).chain(arguments.nodes()).collect(),
            E::Filter(node, call) | E::Test(node, call) => {
                std::iter::once(&**node).chain(call.arguments.nodes()).collect()
            }
            E::Arithmetic(first, rest) => {
                std::iter::once(&**first).chain(rest.iter().map(|(_, node)| node)).collect()
            }
            E::Compare(first, rest) => {
                std::iter::once(&**first).chain(rest.iter().map(|(_, node)| node)).collect()
            }
            E::If(parts) => [&parts.0, &parts.1].into_iter().chain(&parts.2).collect(),
        }
    }
}
