//! Runs a template: its statements and expressions.

use super::access::{attribute, item, not_callable, slice};
use super::ast::{
    Arguments, Comparison, Expression, FilterCall, For, Frame, Load, Macro as MacroNode, Node, Operator,
    Statement, StatementKind, Target, Template, TextId,
};
use super::compare::{equal, order};
use super::context::{Budget, RenderContext, Strftime, undefined_error};
use super::error::{ErrorKind, Result, python, type_error, unsupported, value_error};
use super::iterate::{collect, contains, len, next, source};
use super::number::{negative, positive};
use super::operators::binary;
use super::value::{Call, Loop, Macro, Scope, Source, Text, Value, new_text};
use super::write::write;
use super::{checks, filters, functions, methods};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// How deep statements, expressions and calls may be nested as they run. Python's recursion limit stops nested macros at about this
/// depth.
const DEPTH_MAX: usize = 700;

/// Steps charged for an iteration or a call, besides those of its statements.
const SCOPE_STEPS: usize = 8;

/// Renders a template with these variables.
pub(crate) fn render(
    template: &Template,
    variables: &serde_json::Map<String, serde_json::Value>,
    budget: Budget,
    strftime: Strftime,
) -> Result<String> {
    let context = RenderContext {
        budget,
        filter: filters::apply,
        test: checks::apply,
        strftime,
        namespaces: Vec::new(),
    };
    let mut renderer = Renderer {
        context,
        texts: template.texts.iter().map(|text| new_text(text.clone())).collect(),
        variables: HashMap::new(),
        root: None,
        depth: 0,
        is_folded: false,
    };
    for (id, name) in template.texts.iter().enumerate() {
        if let Some(value) = variables.get(name) {
            let value = renderer.json(value)?;
            renderer.variables.insert(id as TextId, value);
        }
    }
    let mut out = String::new();
    let rendered = renderer.template(template, &mut out);
    // Namespaces can contain each other, so that nothing else would free them.
    renderer.context.namespaces.iter().for_each(|namespace| namespace.attributes.borrow_mut().clear());
    rendered.map(|()| out)
}

struct Renderer {
    context: RenderContext,
    texts: Vec<Rc<Text>>,
    /// Of those that the caller gave, the ones that the template names.
    variables: HashMap<TextId, Value>,
    root: Option<Rc<Scope>>,
    depth: usize,
    /// Whether Jinja2 would constant-fold the printed expression: an invalid slice is then undefined, not an error.
    is_folded: bool,
}

/// What happens after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl Renderer {
    fn template(&mut self, template: &Template, out: &mut String) -> Result<()> {
        let root = self.enter(&template.frame, None);
        self.root = Some(Rc::clone(&root));
        self.run(&template.body, &root, out)?;
        Ok(())
    }

    fn json(&mut self, value: &serde_json::Value) -> Result<Value> {
        use serde_json::Value as Json;
        Ok(match value {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Value::Int(i128::from(int)),
                (_, Some(int)) => Value::Int(i128::from(int)),
                _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(new_text(text.clone())),
            Json::Array(items) => {
                Value::list(items.iter().map(|item| self.json(item)).collect::<Result<_>>()?)?
            }
            Json::Object(entries) => {
                let pairs: Vec<(Value, Value)> = entries
                    .iter()
                    .map(|(key, value)| Ok((Value::Text(new_text(key.clone())), self.json(value)?)))
                    .collect::<Result<_>>()?;
                Value::dict(pairs)?
            }
        })
    }

    fn name(&self, id: TextId) -> &Rc<Text> {
        &self.texts[id as usize]
    }

    // Scopes

    fn enter(&mut self, frame: &Frame, parent: Option<&Rc<Scope>>) -> Rc<Scope> {
        let variables = frame.loads.iter().map(|(name, load)| {
            let value = match load {
                Load::Parameter | Load::Undefined => None,
                Load::Resolve => self.resolve(*name),
                Load::Alias => parent.and_then(|parent| parent.get(*name).flatten()),
            };
            (*name, value)
        });
        Rc::new(Scope { variables: RefCell::new(variables.collect()), parent: parent.cloned() })
    }

    fn resolve(&self, name: TextId) -> Option<Value> {
        if let Some(value) = self.variables.get(&name) {
            return Some(value.clone());
        }
        let text: &str = self.name(name);
        functions::NAMES.split(' ').find(|function| *function == text).map(Value::Function)
    }

    fn variable(&mut self, name: TextId, scope: &Scope) -> Result<Value> {
        let text = Rc::clone(self.name(name));
        match scope.get(name) {
            Some(Some(value)) => Ok(value),
            Some(None) if text.as_str() == "self" => unsupported("the variable `self`"),
            Some(None) => Ok(Value::undefined(format!("'{}' is undefined", text))),
            None => python("AssertionError", format!("`{}` is unknown here", text)),
        }
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => {
                scope.set(*name, value);
                Ok(())
            }
            Target::Attribute(name, attribute) => {
                let Value::Namespace(namespace) = self.variable(*name, scope)? else {
                    return python("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
                };
                let attribute = Rc::clone(self.name(*attribute));
                functions::set_attribute(&mut self.context, &namespace, &attribute, value)
            }
            Target::Tuple(targets) => {
                let mut source = source(&value)?;
                for (index, target) in targets.iter().enumerate() {
                    let Some(item) = next(&mut self.context, &mut source)? else {
                        return value_error(format!(
                            "not enough values to unpack (expected {}, got {index})",
                            targets.len()
                        ));
                    };
                    self.assign(target, item, scope)?;
                }
                match next(&mut self.context, &mut source)? {
                    Some(_) => value_error(format!("too many values to unpack (expected {})", targets.len())),
                    None => Ok(()),
                }
            }
        }
    }

    // Statements

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        match self.depth > DEPTH_MAX {
            true => python("RecursionError", "calls, statements and expressions are nested too deep"),
            false => Ok(()),
        }
    }

    fn run(&mut self, body: &[Statement], scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        self.deeper()?;
        for statement in body {
            self.context.steps(1)?;
            let flow = self.statement(statement, scope, out).map_err(|error| error.at(statement.line))?;
            if flow != Flow::Next {
                self.depth -= 1;
                return Ok(flow);
            }
        }
        self.depth -= 1;
        Ok(Flow::Next)
    }

    /// Runs a body and gives its text.
    fn capture(&mut self, body: &[Statement], scope: &Rc<Scope>) -> Result<(String, Flow)> {
        let mut out = String::new();
        let flow = self.run(body, scope, &mut out)?;
        self.context.budget.output_bytes -= out.len();
        Ok((out, flow))
    }

    fn emit(&mut self, value: &Value, out: &mut String) -> Result<()> {
        let before = out.len();
        write(&mut self.context, out, value)?;
        self.context.budget.output_bytes += out.len() - before;
        Ok(())
    }

    /// Emits what a filter block or a call block gives, which Jinja2 does not turn into text.
    fn emit_result(&mut self, value: &Value, out: &mut String) -> Result<()> {
        match value.as_text() {
            Some(_) => self.emit(value, out),
            None => {
                type_error(format!("expected text from a block, found a value of type {}", value.type_name()))
            }
        }
    }

    fn emit_text(&mut self, text: &str, out: &mut String) -> Result<()> {
        self.context.reserve(text.len())?;
        out.push_str(text);
        self.context.budget.output_bytes += text.len();
        Ok(())
    }

    fn statement(&mut self, statement: &Statement, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        use StatementKind as S;
        match &statement.kind {
            S::Text(text) => self.emit_text(text, out)?,
            S::Print(node) => {
                self.is_folded = is_constant(node);
                let value = self.evaluate(node, scope)?;
                self.is_folded = false;
                self.emit(&value, out)?;
            }
            S::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.evaluate(test, scope)?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            S::For(node) => {
                let iterable = self.evaluate(&node.iterable, scope)?;
                return self.for_loop(node, &iterable, scope, 0, out);
            }
            S::Set { target, value } => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            S::SetBlock { target, filters, body, frame } => {
                match self.filtered_body(filters, body, frame, scope)? {
                    Ok(value) => self.assign(target, value, scope)?,
                    Err(flow) => return Ok(flow),
                }
            }
            S::With { targets, body, frame } => {
                let inner = self.enter(frame, Some(scope));
                for (target, value) in targets {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            S::FilterBlock { filters, body, frame } => {
                match self.filtered_body(filters, body, frame, scope)? {
                    Ok(value) => self.emit_result(&value, out)?,
                    Err(flow) => return Ok(flow),
                }
            }
            S::Block { body, frame } => self.block(body, frame, out)?,
            S::Macro(definition) => {
                let value = self.callable(definition, scope);
                definition.name.into_iter().for_each(|name| scope.set(name, value.clone()));
            }
            S::Call { block, call } => {
                let caller = self.callable(block, scope);
                let value = self.call_node(call, scope, Some(caller))?;
                self.emit_result(&value, out)?;
            }
            S::Generation { body, frame } => {
                let inner = self.enter(frame, Some(scope));
                return self.run(body, &inner, out);
            }
            S::Break => return Ok(Flow::Break),
            S::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// The text of a body through filters, or how it left the body.
    fn filtered_body(
        &mut self,
        filters: &[FilterCall],
        body: &[Statement],
        frame: &Frame,
        scope: &Rc<Scope>,
    ) -> Result<std::result::Result<Value, Flow>> {
        let inner = self.enter(frame, Some(scope));
        let (text, flow) = self.capture(body, &inner)?;
        if flow != Flow::Next {
            return Ok(Err(flow));
        }
        let value = self.context.text(text)?;
        self.filtered(filters, value, &inner).map(Ok)
    }

    /// A block sees the variables of the template's own scope, and those of the caller.
    fn block(&mut self, body: &[Statement], frame: &Frame, out: &mut String) -> Result<()> {
        let scope = self.enter(frame, None);
        if let Some(root) = self.root.clone() {
            for (name, load) in &frame.loads {
                if let (Load::Resolve, Some(Some(value))) = (load, root.get(*name)) {
                    scope.set(*name, value);
                }
            }
        }
        self.run(body, &scope, out)?;
        Ok(())
    }

    fn for_loop(
        &mut self,
        node: &Arc<For>,
        iterable: &Value,
        scope: &Rc<Scope>,
        depth0: i128,
        out: &mut String,
    ) -> Result<Flow> {
        let length = if node.test.is_some() { None } else { len(iterable).ok() };
        let state = Rc::new(Loop {
            source: RefCell::new(source(iterable)?),
            length: Cell::new(length),
            index0: Cell::new(-1),
            previous: RefCell::new(None),
            current: RefCell::new(None),
            ahead: RefCell::new(VecDeque::new()),
            changed: RefCell::new(None),
            depth0,
            node: Arc::clone(node),
            scope: Rc::clone(scope),
        });
        let flow = self.iterations(node, &state, scope, out);
        // It may contain the loop itself.
        state.changed.borrow_mut().take();
        flow
    }

    fn iterations(
        &mut self,
        node: &For,
        state: &Rc<Loop>,
        scope: &Rc<Scope>,
        out: &mut String,
    ) -> Result<Flow> {
        let mut is_complete = false;
        while let Some(item) = self.advance(state)? {
            self.context.steps(SCOPE_STEPS)?;
            let inner = self.enter(&node.frame, Some(scope));
            node.loop_name.into_iter().for_each(|name| inner.set(name, Value::Loop(Rc::clone(state))));
            self.assign(&node.target, item, &inner)?;
            match self.run(&node.body, &inner, out)? {
                Flow::Next => is_complete = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        // Jinja2 counts an iteration only at its end.
        if is_complete || node.otherwise.is_empty() {
            return Ok(Flow::Next);
        }
        let inner = self.enter(&node.otherwise_frame, Some(scope));
        self.run(&node.otherwise, &inner, out)
    }

    /// The next item of a loop, which becomes the current one.
    fn advance(&mut self, state: &Rc<Loop>) -> Result<Option<Value>> {
        let ahead = state.ahead.borrow_mut().pop_front();
        let item = match ahead {
            Some(item) => Some(item),
            None => self.pull(state)?,
        };
        if let Some(item) = &item {
            state.index0.set(state.index0.get() + 1);
            let before = state.current.borrow_mut().replace(item.clone());
            *state.previous.borrow_mut() = before;
        }
        Ok(item)
    }

    /// The next item that passes the loop's test.
    fn pull(&mut self, state: &Rc<Loop>) -> Result<Option<Value>> {
        loop {
            // Taken out, since the test may look at the loop's source itself.
            let mut source = state.source.replace(Source::Empty);
            let item = next(&mut self.context, &mut source);
            *state.source.borrow_mut() = source;
            let Some(item) = item? else { return Ok(None) };
            let Some(test) = &state.node.test else { return Ok(Some(item)) };
            self.context.steps(SCOPE_STEPS)?;
            let inner = self.enter(&state.node.test_frame, Some(&state.scope));
            self.assign(&state.node.target, item.clone(), &inner)?;
            if self.evaluate(test, &inner)?.is_true() {
                return Ok(Some(item));
            }
        }
    }

    fn loop_attribute(&mut self, state: &Rc<Loop>, name: &str) -> Result<Value> {
        let index0 = state.index0.get();
        Ok(match name {
            "index" => Value::Int(index0 + 1),
            "index0" => Value::Int(index0),
            "first" => Value::Bool(index0 == 0),
            "depth" => Value::Int(state.depth0 + 1),
            "depth0" => Value::Int(state.depth0),
            "length" => Value::Int(self.loop_length(state)?),
            "revindex" => Value::Int(self.loop_length(state)? - index0),
            "revindex0" => Value::Int(self.loop_length(state)? - index0 - 1),
            "last" => Value::Bool(self.peek(state)?.is_none()),
            "nextitem" => self.peek(state)?.unwrap_or_else(|| Value::undefined("there is no next item")),
            "previtem" if index0 == 0 => Value::undefined("there is no previous item"),
            "previtem" => state.previous.borrow().clone().unwrap_or(Value::None),
            "cycle" => Value::Method(Rc::new((Value::Loop(Rc::clone(state)), "cycle"))),
            "changed" => Value::Method(Rc::new((Value::Loop(Rc::clone(state)), "changed"))),
            _ => Value::undefined(format!("'LoopContext object' has no attribute '{name}'")),
        })
    }

    fn peek(&mut self, state: &Rc<Loop>) -> Result<Option<Value>> {
        if let Some(item) = state.ahead.borrow().front() {
            return Ok(Some(item.clone()));
        }
        let item = self.pull(state)?;
        state.ahead.borrow_mut().extend(item.clone());
        Ok(item)
    }

    /// The length of a loop; if nothing else tells it, all items are read for it.
    fn loop_length(&mut self, state: &Rc<Loop>) -> Result<i128> {
        if let Some(length) = state.length.get() {
            return Ok(length);
        }
        while let Some(item) = self.pull(state)? {
            state.ahead.borrow_mut().push_back(item);
        }
        let length = state.index0.get() + 1 + state.ahead.borrow().len() as i128;
        state.length.set(Some(length));
        Ok(length)
    }

    // Calls

    fn callable(&mut self, definition: &Arc<MacroNode>, scope: &Rc<Scope>) -> Value {
        Value::Macro(Rc::new(Macro { definition: Arc::clone(definition), scope: Rc::downgrade(scope) }))
    }

    fn call_node(&mut self, node: &Node, scope: &Rc<Scope>, caller: Option<Value>) -> Result<Value> {
        let Expression::Call(function, arguments) = &node.kind else { return self.evaluate(node, scope) };
        let function = self.evaluate(function, scope)?;
        let mut call = self.arguments(arguments, scope)?;
        if let Some(caller) = caller {
            call.named.push((new_text("caller".into()), caller));
        }
        self.call(&function, call).map_err(|error| error.at(node.line))
    }

    fn call(&mut self, function: &Value, call: Call) -> Result<Value> {
        match function {
            Value::Method(method) => methods::call(&mut self.context, &method.0, method.1, call),
            Value::Function(name) => functions::call(&mut self.context, name, call),
            Value::Macro(definition) => self.call_macro(definition, call),
            Value::Loop(state) => {
                let [iterable] = call.positional("loop", 1)?;
                if !state.node.is_recursive {
                    return type_error("The loop must have the 'recursive' marker to be called recursively.");
                }
                self.deeper()?;
                let mut out = String::new();
                let (node, scope) = (Arc::clone(&state.node), Rc::clone(&state.scope));
                self.for_loop(&node, &iterable.unwrap_or(Value::None), &scope, state.depth0 + 1, &mut out)?;
                self.depth -= 1;
                self.context.budget.output_bytes -= out.len();
                self.context.text(out)
            }
            Value::Joiner(joiner) => {
                let [] = call.positional("joiner", 0)?;
                Ok(if joiner.is_used.replace(true) {
                    joiner.separator.clone()
                } else {
                    Value::small_text("")
                })
            }
            _ => not_callable(function),
        }
    }

    fn call_macro(&mut self, callable: &Macro, call: Call) -> Result<Value> {
        let definition = &callable.definition;
        let Some(outer) = callable.scope.upgrade() else {
            return unsupported("a call of a macro after the end of the scope it was defined in");
        };
        let name = definition.name.map_or("caller".to_owned(), |name| self.name(name).to_string());
        let count = definition.parameters.len();
        let Call { mut positional, mut named } = call;
        let rest = if positional.len() > count { positional.split_off(count) } else { Vec::new() };
        self.context.steps(SCOPE_STEPS)?;
        let scope = self.enter(&definition.frame, Some(&outer));
        let given = positional.len();
        let mut take = |renderer: &Renderer, name: TextId| {
            let text = renderer.name(name);
            named.iter().position(|(known, _)| known.as_str() == text.as_str()).map(|at| named.remove(at).1)
        };
        for ((parameter, _), value) in definition.parameters.iter().zip(positional) {
            scope.set(*parameter, value);
        }
        for (parameter, _) in &definition.parameters[given..] {
            take(self, *parameter).into_iter().for_each(|value| scope.set(*parameter, value));
        }
        if let Some(caller) = definition.caller {
            let value = take(self, caller).filter(|value| !value.is_none());
            scope.set(caller, value.unwrap_or_else(|| Value::undefined("No caller defined")));
        }
        match definition.kwargs {
            Some(kwargs) => {
                let value = Value::dict(named.into_iter().map(|(name, value)| (Value::Text(name), value)))?;
                scope.set(kwargs, value);
            }
            None => {
                if let Some((argument, _)) = named.first() {
                    return type_error(format!("macro '{name}' takes no keyword argument '{}'", argument));
                }
            }
        }
        match definition.varargs {
            Some(varargs) => scope.set(varargs, self.context.tuple(rest)?),
            None if !rest.is_empty() => {
                return type_error(format!("macro '{name}' takes not more than {count} argument(s)"));
            }
            None => {}
        }
        self.defaults(definition, &scope)?;
        let (text, _) = self.capture(&definition.body, &scope)?;
        self.context.text(text)
    }

    fn defaults(&mut self, definition: &MacroNode, scope: &Rc<Scope>) -> Result<()> {
        for (parameter, default) in &definition.parameters {
            if matches!(scope.get(*parameter), Some(Some(_))) {
                continue;
            }
            let value = match default {
                Some(default) => self.evaluate(default, scope)?,
                None => Value::undefined(format!("parameter '{}' was not provided", self.name(*parameter))),
            };
            scope.set(*parameter, value);
        }
        Ok(())
    }

    fn arguments(&mut self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Call> {
        let mut call = Call::default();
        for node in &arguments.positional {
            call.positional.push(self.evaluate(node, scope)?);
        }
        for (name, node) in &arguments.named {
            let value = self.evaluate(node, scope)?;
            call.named.push((Rc::clone(self.name(*name)), value));
        }
        if let Some(list) = &arguments.list {
            let list = self.evaluate(list, scope)?;
            call.positional.extend(collect(&mut self.context, &list)?);
        }
        if let Some(map) = &arguments.map {
            let Value::Dict(map) = self.evaluate(map, scope)? else {
                return type_error("the argument after ** must be a mapping");
            };
            for (key, value) in map.entries() {
                let (Value::Text(key) | Value::Markup(key)) = key else {
                    return type_error("keywords must be strings");
                };
                if call.named.iter().any(|(known, _)| known.as_str() == key.as_str()) {
                    return type_error(format!("got multiple values for keyword argument '{}'", key));
                }
                call.named.push((Rc::clone(key), value.clone()));
            }
        }
        Ok(call)
    }

    fn filtered(&mut self, filters: &[FilterCall], mut value: Value, scope: &Rc<Scope>) -> Result<Value> {
        for filter in filters {
            let call = self.arguments(&filter.arguments, scope)?;
            value = filters::apply(&mut self.context, &filter.name, value, call)
                .map_err(|error| error.at(filter.line))?;
        }
        Ok(value)
    }

    // Expressions

    fn evaluate(&mut self, node: &Node, scope: &Rc<Scope>) -> Result<Value> {
        match &node.kind {
            Expression::Text(id) => return Ok(Value::Text(Rc::clone(self.name(*id)))),
            Expression::None => return Ok(Value::None),
            Expression::Bool(value) => return Ok(Value::Bool(*value)),
            Expression::Int(value) => return Ok(Value::Int(*value)),
            Expression::Float(value) => return Ok(Value::Float(*value)),
            _ => {}
        }
        self.context.steps(1)?;
        self.deeper()?;
        let value = self.compound(node, scope).map_err(|error| error.at(node.line))?;
        self.depth -= 1;
        Ok(value)
    }

    fn compound(&mut self, node: &Node, scope: &Rc<Scope>) -> Result<Value> {
        use Expression as E;
        match &node.kind {
            E::Name(name) => self.variable(*name, scope),
            E::Attribute(of, name) => {
                let value = self.evaluate(of, scope)?;
                let name = Rc::clone(self.name(*name));
                match &value {
                    Value::Loop(state) => self.loop_attribute(state, &name),
                    _ => attribute(&mut self.context, &value, &name),
                }
            }
            E::Item(of, key) => self.item(of, key, scope),
            E::Call(..) => self.call_node(node, scope, None),
            E::Filter(of, call) => {
                let value = self.evaluate(of, scope)?;
                self.filtered(std::slice::from_ref(call), value, scope)
            }
            E::Test(of, call) => {
                let value = self.evaluate(of, scope)?;
                let arguments = self.arguments(&call.arguments, scope)?;
                checks::apply(&mut self.context, &call.name, value, arguments).map(Value::Bool)
            }
            E::And(nodes) | E::Or(nodes) => {
                let is_or = matches!(node.kind, E::Or(_));
                let mut value = Value::None;
                for node in nodes {
                    value = self.evaluate(node, scope)?;
                    if value.is_true() == is_or {
                        break;
                    }
                }
                Ok(value)
            }
            E::Not(of) => Ok(Value::Bool(!self.evaluate(of, scope)?.is_true())),
            E::Compare(first, rest) => self.compare(first, rest, scope),
            E::Arithmetic(first, rest) => {
                let mut value = self.evaluate(first, scope)?;
                for (operator, node) in rest {
                    let right = self.evaluate(node, scope)?;
                    value = binary(&mut self.context, symbol(*operator), &value, &right)?;
                }
                Ok(value)
            }
            E::If(parts) => match (self.evaluate(&parts.0, scope)?.is_true(), &parts.2) {
                (true, _) => self.evaluate(&parts.1, scope),
                (false, Some(otherwise)) => self.evaluate(otherwise, scope),
                (false, None) => {
                    Ok(Value::undefined("the inline if-expression evaluated to false and has no else"))
                }
            },
            _ => self.build(node, scope),
        }
    }

    /// Expressions that make values of others.
    fn build(&mut self, node: &Node, scope: &Rc<Scope>) -> Result<Value> {
        use Expression as E;
        match &node.kind {
            E::List(nodes) => {
                let items = nodes.iter().map(|node| self.evaluate(node, scope)).collect::<Result<_>>()?;
                self.context.list(items)
            }
            E::Tuple(nodes) => {
                let items = nodes.iter().map(|node| self.evaluate(node, scope)).collect::<Result<_>>()?;
                self.context.tuple(items)
            }
            E::Dict(pairs) => {
                let mut entries = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    entries.push((self.evaluate(key, scope)?, self.evaluate(value, scope)?));
                }
                self.context.reserve_items(2 * entries.len())?;
                Value::dict(entries)
            }
            E::Concat(nodes) => {
                let mut out = String::new();
                for node in nodes {
                    let value = self.evaluate(node, scope)?;
                    write(&mut self.context, &mut out, &value)?;
                    self.context.reserve(out.len())?;
                }
                self.context.text(out)
            }
            E::Negative(of) | E::Positive(of) => {
                let value = self.evaluate(of, scope)?;
                match (&value, &node.kind) {
                    (Value::Undefined(message), _) => undefined_error(message),
                    (_, E::Negative(_)) => negative(&value),
                    _ => positive(&value),
                }
            }
            // A slice inside a tuple of keys: nothing has such an item.
            _ => Ok(Value::undefined("a slice is not a value")),
        }
    }

    fn item(&mut self, of: &Node, key: &Node, scope: &Rc<Scope>) -> Result<Value> {
        let value = self.evaluate(of, scope)?;
        if let Expression::Slice(bounds) = &key.kind {
            let mut values = [None, None, None];
            for (value, bound) in values.iter_mut().zip(bounds.iter()) {
                *value = bound.as_ref().map(|bound| self.evaluate(bound, scope)).transpose()?;
            }
            let sliced = slice(&mut self.context, &value, values);
            let is_wrong =
                sliced.as_ref().is_err_and(|error| matches!(error.kind, ErrorKind::Python("TypeError", _)));
            return match is_wrong {
                true if self.is_folded => Ok(Value::undefined("a constant has no such slice")),
                // Jinja2 may fold a part of the expression, too.
                true if !is_lookup(of) => {
                    unsupported(format!("a slice of a value of type {}", value.type_name()))
                }
                _ => sliced,
            };
        }
        let key = self.evaluate(key, scope)?;
        match (&value, key.as_text()) {
            (Value::Loop(state), Some(name)) => {
                let name = name.to_owned();
                self.loop_attribute(state, &name)
            }
            _ => item(&mut self.context, &value, &key),
        }
    }

    fn compare(&mut self, first: &Node, rest: &[(Comparison, Node)], scope: &Rc<Scope>) -> Result<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (comparison, node) in rest {
            let right = self.evaluate(node, scope)?;
            let context = &mut self.context;
            let holds = match comparison {
                Comparison::Eq => equal(context, &left, &right)?,
                Comparison::Ne => !equal(context, &left, &right)?,
                Comparison::Lt => order(context, "<", &left, &right)? == Some(Ordering::Less),
                Comparison::Le => order(context, "<=", &left, &right)?.is_some_and(Ordering::is_le),
                Comparison::Gt => order(context, ">", &left, &right)? == Some(Ordering::Greater),
                Comparison::Ge => order(context, ">=", &left, &right)?.is_some_and(Ordering::is_ge),
                Comparison::In => contains(context, &right, &left)?,
                Comparison::NotIn => !contains(context, &right, &left)?,
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }
}

/// Whether an expression looks something up, so that it is not a constant.
fn is_lookup(node: &Node) -> bool {
    use Expression as E;
    matches!(node.kind, E::Name(_) | E::Attribute(..) | E::Item(..) | E::Call(..))
}

/// Whether Jinja2 evaluates an expression as it compiles.
fn is_constant(node: &Node) -> bool {
    use Expression as E;
    match &node.kind {
        E::None | E::Bool(_) | E::Int(_) | E::Float(_) | E::Text(_) => true,
        // Filters that take the context are not folded.
        E::Filter(_, call)
            if matches!(
                &call.name[..],
                "map" | "random" | "select" | "reject" | "selectattr" | "rejectattr"
            ) =>
        {
            false
        }
        E::Name(_) | E::Call(..) => false,
        _ => node.children().into_iter().all(is_constant),
    }
}

fn symbol(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Sub => "-",
        Operator::Mul => "*",
        Operator::Div => "/",
        Operator::FloorDiv => "//",
        Operator::Mod => "%",
        Operator::Pow => "**",
    }
}
