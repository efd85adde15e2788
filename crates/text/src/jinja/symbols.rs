//! Which scope each variable belongs to, by the rules of Jinja2's `idtracking.py`.
//!
//! A scope is the template, a macro, the body of a loop, of `with`, of a set block and so on; `if` has none. A scope has a
//! variable of its own for each name that it assigns, and for each name that it reads and no outer scope has.

use super::ast::{
    Expression, FilterCall, For, Frame, Load, Macro, Node, Statement, StatementKind, Target, Template, TextId,
};
use super::error::{Result, syntax, unsupported};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Fills in the frames of a template.
pub(crate) fn resolve(template: &mut Template) -> Result<()> {
    let names = ["loop", "caller", "kwargs", "varargs"].map(|name| {
        let index = template.texts.iter().position(|text| text == name);
        index.map(|index| index as TextId)
    });
    let resolver = Resolver { names };
    let mut symbols = Symbols::default();
    symbols.statements(&template.body, &[]);
    template.frame = symbols.frame()?;
    resolver.inner(&mut template.body, &mut vec![symbols])
}

/// The variables of one scope.
#[derive(Debug, Default)]
struct Symbols {
    loads: HashMap<TextId, Load>,
    /// The names in the order in which they appeared.
    order: Vec<TextId>,
    stores: HashSet<TextId>,
    /// Everything that changed, for branches to be undone.
    changes: Vec<Change>,
}

/// A change of a scope's variables.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// The name and its previous load; in the changes that a branch returns, its new load.
    Load(TextId, Option<Load>),
    Store(TextId),
}

/// The most variables of a scope. Real templates have less than 50.
const VARIABLES_MAX: usize = 1000;

type Outer<'o> = &'o [Symbols];

fn has_ref(outer: Outer<'_>, name: TextId) -> bool {
    outer.iter().any(|symbols| symbols.loads.contains_key(&name))
}

impl Symbols {
    fn frame(&self) -> Result<Frame> {
        if self.order.len() > VARIABLES_MAX {
            return unsupported(format!("more than {VARIABLES_MAX} variables in one scope"));
        }
        Ok(Frame { loads: self.order.iter().map(|name| (*name, self.loads[name])).collect() })
    }

    fn define(&mut self, name: TextId, load: Load) {
        let before = self.loads.insert(name, load);
        if before.is_none() {
            self.order.push(name);
        }
        self.changes.push(Change::Load(name, before));
    }

    fn add_store(&mut self, name: TextId) {
        if self.stores.insert(name) {
            self.changes.push(Change::Store(name));
        }
    }

    fn parameter(&mut self, name: TextId) {
        self.add_store(name);
        self.define(name, Load::Parameter);
    }

    fn store(&mut self, name: TextId, outer: Outer<'_>) {
        self.add_store(name);
        if !self.loads.contains_key(&name) {
            let load = if has_ref(outer, name) { Load::Alias } else { Load::Undefined };
            self.define(name, load);
        }
    }

    fn load(&mut self, name: TextId, outer: Outer<'_>) {
        if !self.loads.contains_key(&name) && !has_ref(outer, name) {
            self.define(name, Load::Resolve);
        }
    }

    fn target(&mut self, target: &Target, outer: Outer<'_>) {
        match target {
            Target::Name(name) => self.store(*name, outer),
            Target::Attribute(name, _) => self.load(*name, outer),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.target(target, outer)),
        }
    }

    fn parameters_of(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.parameter(*name),
            Target::Attribute(..) => {}
            Target::Tuple(targets) => targets.iter().for_each(|target| self.parameters_of(target)),
        }
    }

    fn expression(&mut self, node: &Node, outer: Outer<'_>) {
        if let Expression::Name(name) = node.kind {
            self.load(name, outer);
        }
        node.children().into_iter().for_each(|child| self.expression(child, outer));
    }

    fn filters(&mut self, filters: &[FilterCall], outer: Outer<'_>) {
        filters
            .iter()
            .flat_map(|filter| filter.arguments.nodes())
            .for_each(|node| self.expression(node, outer));
    }

    fn statements(&mut self, body: &[Statement], outer: Outer<'_>) {
        body.iter().for_each(|statement| self.statement(statement, outer));
    }

    fn statement(&mut self, statement: &Statement, outer: Outer<'_>) {
        use StatementKind as S;
        match &statement.kind {
            S::Text(_) | S::Break | S::Continue | S::Block { .. } | S::Generation { .. } => {}
            S::Print(node) | S::Call { call: node, .. } => self.expression(node, outer),
            S::If { branches, otherwise } => self.branches(branches, otherwise, outer),
            S::For(node) => self.expression(&node.iterable, outer),
            S::Set { target, value } => {
                self.expression(value, outer);
                self.target(target, outer);
            }
            S::SetBlock { target, .. } => self.target(target, outer),
            S::With { targets, .. } => targets.iter().for_each(|(_, value)| self.expression(value, outer)),
            S::FilterBlock { filters, .. } => self.filters(filters, outer),
            S::Macro(node) => node.name.into_iter().for_each(|name| self.store(name, outer)),
        }
    }

    fn branches(&mut self, branches: &[(Node, Vec<Statement>)], otherwise: &[Statement], outer: Outer<'_>) {
        let Some(((test, body), elifs)) = branches.split_first() else { return };
        self.expression(test, outer);
        // Each branch begins with what was known before all of them.
        let mut changes = self.branch(|symbols| symbols.statements(body, outer));
        changes.extend(self.branch(|symbols| {
            elifs.iter().for_each(|elif| symbols.branches(std::slice::from_ref(elif), &[], outer));
        }));
        changes.extend(self.branch(|symbols| symbols.statements(otherwise, outer)));
        for change in &changes {
            match *change {
                Change::Load(name, load) => load.into_iter().for_each(|load| self.define(name, load)),
                Change::Store(name) => self.add_store(name),
            }
        }
        let stored: HashSet<TextId> = changes
            .into_iter()
            .filter_map(|change| match change {
                Change::Store(name) => Some(name),
                Change::Load(..) => None,
            })
            .collect();
        for name in stored {
            self.define(name, if has_ref(outer, name) { Load::Alias } else { Load::Resolve });
        }
    }

    /// What a branch changes, which is undone.
    fn branch(&mut self, walk: impl FnOnce(&mut Self)) -> Vec<Change> {
        let start = self.changes.len();
        walk(self);
        let undone = self.changes.split_off(start);
        let now = |change: &Change| match *change {
            Change::Load(name, _) => Change::Load(name, self.loads.get(&name).copied()),
            store => store,
        };
        let changes = undone.iter().map(now).collect();
        for change in undone.into_iter().rev() {
            match change {
                Change::Load(name, Some(before)) => {
                    self.loads.insert(name, before);
                }
                Change::Load(name, None) => {
                    self.loads.remove(&name);
                    self.order.pop();
                }
                Change::Store(name) => {
                    self.stores.remove(&name);
                }
            }
        }
        changes
    }
}

/// Fills in the frames of the scopes inside a body.
struct Resolver {
    /// `loop`, `caller`, `kwargs` and `varargs`, as far as the template names them.
    names: [Option<TextId>; 4],
}

/// Scopes from the template's on, the innermost last.
type Chain = Vec<Symbols>;

impl Resolver {
    fn inner(&self, body: &mut [Statement], chain: &mut Chain) -> Result<()> {
        body.iter_mut().try_for_each(|statement| self.statement(statement, chain))
    }

    fn statement(&self, statement: &mut Statement, chain: &mut Chain) -> Result<()> {
        use StatementKind as S;
        let (body, frame, symbols) = match &mut statement.kind {
            S::Text(_) | S::Print(_) | S::Set { .. } | S::Break | S::Continue => return Ok(()),
            S::If { branches, otherwise } => {
                branches.iter_mut().try_for_each(|(_, body)| self.inner(body, chain))?;
                return self.inner(otherwise, chain);
            }
            S::For(node) => {
                return Arc::get_mut(node).map_or(Ok(()), |node| self.for_loop(node, statement.line, chain));
            }
            S::Macro(node) | S::Call { block: node, .. } => {
                return Arc::get_mut(node).map_or(Ok(()), |node| self.callable(node, chain));
            }
            S::SetBlock { body, frame, .. } | S::Generation { body, frame } => {
                let mut symbols = Symbols::default();
                symbols.statements(body, chain);
                (body, frame, symbols)
            }
            S::With { targets, body, frame } => {
                let mut symbols = Symbols::default();
                targets.iter().for_each(|(target, _)| symbols.parameters_of(target));
                symbols.statements(body, chain);
                (body, frame, symbols)
            }
            S::FilterBlock { filters, body, frame } => {
                let mut symbols = Symbols::default();
                symbols.statements(body, chain);
                symbols.filters(filters, chain);
                (body, frame, symbols)
            }
            S::Block { body, frame } => {
                // A block sees nothing of the scopes around it.
                let mut symbols = Symbols::default();
                symbols.statements(body, &[]);
                *frame = symbols.frame()?;
                return self.inner(body, &mut vec![symbols]);
            }
        };
        *frame = symbols.frame()?;
        chain.push(symbols);
        self.inner(body, chain)?;
        chain.pop();
        Ok(())
    }

    fn for_loop(&self, node: &mut For, line: usize, chain: &mut Chain) -> Result<()> {
        let [loop_name, ..] = self.names;
        node.loop_name = loop_name.filter(|name| node.is_recursive || undeclared(&node.body, *name));
        let mut uses = Vec::new();
        uses_of_loop(node, &mut uses);
        if loop_name.is_some_and(|name| uses.contains(&(name, Use::Store))) {
            return syntax(line, "cannot assign to `loop` in a loop");
        }
        let target = &node.target;
        let body = &mut node.body;
        let mut symbols = Symbols::default();
        node.loop_name.into_iter().for_each(|name| symbols.parameter(name));
        symbols.parameters_of(target);
        symbols.statements(body, chain);
        node.frame = symbols.frame()?;
        chain.push(symbols);
        self.inner(body, chain)?;
        chain.pop();
        let otherwise = &mut node.otherwise;
        let mut symbols = Symbols::default();
        symbols.statements(otherwise, chain);
        node.otherwise_frame = symbols.frame()?;
        chain.push(symbols);
        self.inner(otherwise, chain)?;
        chain.pop();
        if let Some(test) = &node.test {
            let mut symbols = Symbols::default();
            symbols.parameters_of(target);
            symbols.expression(test, chain);
            node.test_frame = symbols.frame()?;
        }
        Ok(())
    }

    fn callable(&self, node: &mut Macro, chain: &mut Chain) -> Result<()> {
        let [_, caller, kwargs, varargs] = self.names;
        let is_parameter = |name: TextId| node.parameters.iter().any(|(parameter, _)| *parameter == name);
        let uses = |name: Option<TextId>| name.filter(|name| undeclared(&node.body, *name));
        if let Some((_, None)) = node.parameters.iter().find(|(name, _)| uses(caller) == Some(*name)) {
            return syntax(node.line, "the parameter `caller` needs a default");
        }
        let [caller, kwargs, varargs] =
            [caller, kwargs, varargs].map(|name| uses(name).filter(|name| !is_parameter(*name)));
        (node.caller, node.kwargs, node.varargs) = (caller, kwargs, varargs);
        let mut symbols = Symbols::default();
        node.parameters.iter().for_each(|(name, _)| symbols.parameter(*name));
        node.parameters
            .iter()
            .filter_map(|(_, default)| default.as_ref())
            .for_each(|node| symbols.expression(node, chain));
        // Those that the body uses are parameters, which its first pass already counts as loads.
        symbols.statements(&node.body, chain);
        [caller, kwargs, varargs].into_iter().flatten().for_each(|name| symbols.parameter(name));
        node.frame = symbols.frame()?;
        chain.push(symbols);
        self.inner(&mut node.body, chain)?;
        chain.pop();
        Ok(())
    }
}

/// How a name is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Load,
    Store,
    Parameter,
}

/// Whether a body reads a name before it assigns it, scopes inside included.
fn undeclared(body: &[Statement], name: TextId) -> bool {
    let mut uses = Vec::new();
    uses_of(body, &mut uses);
    uses.into_iter().find(|(found, _)| *found == name).is_some_and(|(_, kind)| kind == Use::Load)
}

/// The names in a body, in the order of Jinja2's syntax tree. Blocks are left out.
fn uses_of(body: &[Statement], uses: &mut Vec<(TextId, Use)>) {
    use StatementKind as S;
    for statement in body {
        match &statement.kind {
            S::Text(_) | S::Break | S::Continue | S::Block { .. } => {}
            S::Print(node) => uses_of_node(node, uses),
            S::If { branches, otherwise } => {
                for (test, body) in branches {
                    uses_of_node(test, uses);
                    uses_of(body, uses);
                }
                uses_of(otherwise, uses);
            }
            S::For(node) => uses_of_loop(node, uses),
            S::Set { target, value } => {
                uses_of_target(target, Use::Store, uses);
                uses_of_node(value, uses);
            }
            S::SetBlock { target, filters, body, .. } => {
                uses_of_target(target, Use::Store, uses);
                uses_of_filters(filters, uses);
                uses_of(body, uses);
            }
            S::With { targets, body, .. } => {
                targets.iter().for_each(|(target, _)| uses_of_target(target, Use::Parameter, uses));
                targets.iter().for_each(|(_, value)| uses_of_node(value, uses));
                uses_of(body, uses);
            }
            S::FilterBlock { filters, body, .. } => {
                uses_of(body, uses);
                uses_of_filters(filters, uses);
            }
            S::Generation { body, .. } => uses_of(body, uses),
            S::Macro(node) => uses_of_callable(node, uses),
            S::Call { block, call } => {
                uses_of_node(call, uses);
                uses_of_callable(block, uses);
            }
        }
    }
}

fn uses_of_loop(node: &For, uses: &mut Vec<(TextId, Use)>) {
    uses_of_target(&node.target, Use::Store, uses);
    uses_of_node(&node.iterable, uses);
    uses_of(&node.body, uses);
    uses_of(&node.otherwise, uses);
    node.test.iter().for_each(|test| uses_of_node(test, uses));
}

fn uses_of_callable(node: &Macro, uses: &mut Vec<(TextId, Use)>) {
    uses.extend(node.parameters.iter().map(|(name, _)| (*name, Use::Parameter)));
    node.parameters
        .iter()
        .filter_map(|(_, default)| default.as_ref())
        .for_each(|node| uses_of_node(node, uses));
    uses_of(&node.body, uses);
}

fn uses_of_target(target: &Target, kind: Use, uses: &mut Vec<(TextId, Use)>) {
    match target {
        Target::Name(name) => uses.push((*name, kind)),
        Target::Attribute(..) => {}
        Target::Tuple(targets) => targets.iter().for_each(|target| uses_of_target(target, kind, uses)),
    }
}

fn uses_of_filters(filters: &[FilterCall], uses: &mut Vec<(TextId, Use)>) {
    filters.iter().flat_map(|filter| filter.arguments.nodes()).for_each(|node| uses_of_node(node, uses));
}

fn uses_of_node(node: &Node, uses: &mut Vec<(TextId, Use)>) {
    if let Expression::Name(name) = node.kind {
        uses.push((name, Use::Load));
    }
    node.children().into_iter().for_each(|child| uses_of_node(child, uses));
}
