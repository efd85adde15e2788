//! Tokens to a syntax tree, by the grammar of Jinja2's `parser.py`.

use super::ast::{
    Arguments, Comparison, Expression, FilterCall, For, Frame, Macro, Node, Operator, Statement,
    StatementKind, Target, Template, TextId,
};
use super::error::{Result, syntax, unsupported};
use super::lexer::{Lexeme, Token, tokens};
use std::collections::HashMap;
use std::sync::Arc;

/// How deep expressions and blocks may be nested. Real templates stay below 20.
const NESTING_MAX: usize = 120;
/// Tags of Jinja2 that are rejected by name.
const UNSUPPORTED_TAGS: [&str; 5] = ["extends", "include", "import", "from", "autoescape"];

/// Parses a template.
pub(crate) fn parse(source: &str) -> Result<Template> {
    let mut parser = Parser {
        lexemes: tokens(source)?,
        position: 0,
        nesting: 0,
        loops: 0,
        texts: Vec::new(),
        ids: HashMap::new(),
    };
    let body = parser.statements(&[])?;
    Ok(Template { body, frame: Frame::default(), texts: parser.texts })
}

struct Parser {
    lexemes: Vec<Lexeme>,
    position: usize,
    nesting: usize,
    /// The number of loops that `break` may leave.
    loops: usize,
    texts: Vec<String>,
    ids: HashMap<String, TextId>,
}

impl Parser {
    fn token(&self) -> &Token {
        &self.lexemes[self.position].token
    }

    fn next_token(&self) -> &Token {
        &self.lexemes[(self.position + 1).min(self.lexemes.len() - 1)].token
    }

    fn line(&self) -> usize {
        self.lexemes[self.position].line
    }

    fn advance(&mut self) -> Token {
        let token = self.token().clone();
        self.position = (self.position + 1).min(self.lexemes.len() - 1);
        token
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.token(), Token::Operator(found) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(found) if found == name)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.position += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, operator: &str) -> Result<()> {
        match self.skip_operator(operator) {
            true => Ok(()),
            false => self.unexpected(&format!("`{operator}`")),
        }
    }

    fn expect_name(&mut self) -> Result<String> {
        match self.token() {
            Token::Name(_) => match self.advance() {
                Token::Name(name) => Ok(name),
                _ => Ok(String::new()),
            },
            _ => self.unexpected("a name"),
        }
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.token() {
            Token::Data(_) => "text".to_owned(),
            Token::VariableBegin => "`{{`".to_owned(),
            Token::VariableEnd => "`}}`".to_owned(),
            Token::BlockBegin => "`{%`".to_owned(),
            Token::BlockEnd => "`%}`".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Text(text) => format!("the string {text:?}"),
            Token::Int(number) => number.to_string(),
            Token::Float(number) => number.to_string(),
            Token::Operator(operator) => format!("`{operator}`"),
            Token::End => "the end of the template".to_owned(),
        };
        syntax(self.line(), format!("expected {expected}, found {found}"))
    }

    fn id(&mut self, text: &str) -> TextId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.texts.len() as TextId;
        self.texts.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }

    fn node(&self, line: usize, kind: Expression) -> Result<Node> {
        let mut node = Node { line, height: 0, kind };
        node.height = 1 + node.children().iter().map(|child| child.height).max().unwrap_or(0);
        match node.height > NESTING_MAX {
            true => syntax(line, format!("an expression is nested deeper than {NESTING_MAX} levels")),
            false => Ok(node),
        }
    }

    /// Runs a parser one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return syntax(self.line(), format!("the template is nested deeper than {NESTING_MAX} levels"));
        }
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// Statements up to a tag with one of these names, whose `{%` is then passed, or to the end of the template.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.token() {
                Token::Data(_) => {
                    if let Token::Data(text) = self.advance() {
                        body.push(Statement { line, kind: StatementKind::Text(text) });
                    }
                }
                Token::VariableBegin => {
                    self.advance();
                    let value = self.tuple(true, &[], false)?;
                    body.push(Statement { line, kind: StatementKind::Print(value) });
                    match self.token() {
                        Token::VariableEnd => self.advance(),
                        _ => return self.unexpected("`}}`"),
                    };
                }
                Token::BlockBegin => {
                    self.advance();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let kind = self.nested(Self::statement)?;
                    body.extend(kind.into_iter().map(|kind| Statement { line, kind }));
                    self.block_end()?;
                }
                Token::End if ends.is_empty() => return Ok(body),
                _ => return self.unexpected(&format!("`{{% {} %}}`", ends.join(" %}` or `{% "))),
            }
        }
    }

    fn block_end(&mut self) -> Result<()> {
        match self.token() {
            Token::BlockEnd => {
                self.advance();
                Ok(())
            }
            _ => self.unexpected("`%}`"),
        }
    }

    /// The body of a block, up to and with the name in its closing tag.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, String)> {
        self.skip_operator(":");
        self.block_end()?;
        let body = self.statements(ends)?;
        Ok((body, self.expect_name()?))
    }

    fn statement(&mut self) -> Result<Vec<StatementKind>> {
        let line = self.line();
        let name = match self.token() {
            Token::Name(name) => name.clone(),
            _ => return self.unexpected("the name of a tag"),
        };
        let kind = match &name[..] {
            "for" => self.for_loop()?,
            "if" => self.if_block()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_block()?,
            "call" => self.call_block()?,
            "filter" => {
                self.advance();
                let filters = self.filters(true)?;
                let (body, _) = self.body(&["endfilter"])?;
                StatementKind::FilterBlock { filters, body, frame: Frame::default() }
            }
            "generation" => {
                self.advance();
                let (body, _) = self.outside_loops(|parser| parser.body(&["endgeneration"]))?;
                StatementKind::Generation { body, frame: Frame::default() }
            }
            "block" => self.block()?,
            "print" => return self.print(),
            "break" | "continue" => {
                self.advance();
                match (self.loops, &name[..]) {
                    (0, _) => return syntax(line, format!("`{name}` outside of a loop")),
                    (_, "break") => StatementKind::Break,
                    _ => StatementKind::Continue,
                }
            }
            tag if UNSUPPORTED_TAGS.contains(&tag) => {
                return unsupported(format!("the tag `{tag}`"))
                    .map_err(|error: Box<super::error::Error>| error.at(line));
            }
            _ => return syntax(line, format!("unknown tag `{name}`")),
        };
        Ok(vec![kind])
    }

    fn outside_loops<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let loops = std::mem::take(&mut self.loops);
        let parsed = parse(self)?;
        self.loops = loops;
        Ok(parsed)
    }

    fn print(&mut self) -> Result<Vec<StatementKind>> {
        self.advance();
        let mut printed = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !printed.is_empty() {
                self.expect(",")?;
            }
            printed.push(StatementKind::Print(self.expression(true)?));
        }
        Ok(printed)
    }

    fn for_loop(&mut self) -> Result<StatementKind> {
        self.advance();
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.unexpected("`in`");
        }
        let iterable = self.tuple(false, &["recursive"], false)?;
        let test = if self.skip_name("if") { Some(self.expression(true)?) } else { None };
        let is_recursive = self.skip_name("recursive");
        self.loops += 1;
        let (body, end) = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = match &end[..] {
            "else" => self.body(&["endfor"])?.0,
            _ => Vec::new(),
        };
        Ok(StatementKind::For(Arc::new(For {
            target,
            iterable,
            test,
            is_recursive,
            loop_name: None,
            body,
            otherwise,
            frame: Frame::default(),
            test_frame: Frame::default(),
            otherwise_frame: Frame::default(),
        })))
    }

    fn if_block(&mut self) -> Result<StatementKind> {
        self.advance();
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(false, &[], false)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match &end[..] {
                "elif" => continue,
                "else" => otherwise = self.body(&["endif"])?.0,
                _ => {}
            }
            return Ok(StatementKind::If { branches, otherwise });
        }
    }

    fn set(&mut self) -> Result<StatementKind> {
        self.advance();
        let target = self.target(&[], true)?;
        if self.skip_operator("=") {
            let value = self.tuple(true, &[], false)?;
            return Ok(StatementKind::Set { target, value });
        }
        let filters = self.filters(false)?;
        let (body, _) = self.body(&["endset"])?;
        Ok(StatementKind::SetBlock { target, filters, body, frame: Frame::default() })
    }

    fn with(&mut self) -> Result<StatementKind> {
        self.advance();
        let mut targets = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !targets.is_empty() {
                self.expect(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect("=")?;
            targets.push((target, self.expression(true)?));
        }
        let (body, _) = self.body(&["endwith"])?;
        Ok(StatementKind::With { targets, body, frame: Frame::default() })
    }

    fn block(&mut self) -> Result<StatementKind> {
        self.advance();
        let name = self.expect_name()?;
        if self.is_name("scoped") || self.is_name("required") {
            return unsupported("the words `scoped` and `required` of a block");
        }
        let (body, _) = self.outside_loops(|parser| parser.body(&["endblock"]))?;
        self.skip_name(&name);
        Ok(StatementKind::Block { body, frame: Frame::default() })
    }

    fn macro_block(&mut self) -> Result<StatementKind> {
        let line = self.line();
        self.advance();
        let name = self.name_target()?;
        let parameters = self.parameters()?;
        let (body, _) = self.outside_loops(|parser| parser.body(&["endmacro"]))?;
        Ok(StatementKind::Macro(Arc::new(self.callable(Some(name), parameters, body, line))))
    }

    fn call_block(&mut self) -> Result<StatementKind> {
        let line = self.line();
        self.advance();
        let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression(true)?;
        if !matches!(call.kind, Expression::Call(..)) {
            return syntax(line, "`call` is followed by no call");
        }
        let (body, _) = self.outside_loops(|parser| parser.body(&["endcall"]))?;
        let block = Arc::new(self.callable(None, parameters, body, line));
        Ok(StatementKind::Call { block, call })
    }

    fn callable(
        &mut self,
        name: Option<TextId>,
        parameters: Vec<(TextId, Option<Node>)>,
        body: Vec<Statement>,
        line: usize,
    ) -> Macro {
        // Which of them the body uses is found out with its names.
        let [caller, kwargs, varargs] = ["caller", "kwargs", "varargs"].map(|name| Some(self.id(name)));
        Macro { name, parameters, body, frame: Frame::default(), caller, kwargs, varargs, line }
    }

    fn parameters(&mut self) -> Result<Vec<(TextId, Option<Node>)>> {
        let mut parameters: Vec<(TextId, Option<Node>)> = Vec::new();
        self.expect("(")?;
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect(",")?;
            }
            let name = self.name_target()?;
            let default = if self.skip_operator("=") { Some(self.expression(true)?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return syntax(self.line(), "a parameter without a default follows one with a default");
            }
            if parameters.iter().any(|(other, _)| *other == name) {
                return syntax(self.line(), "two parameters have the same name");
            }
            parameters.push((name, default));
        }
        self.expect(")")?;
        Ok(parameters)
    }

    fn name_target(&mut self) -> Result<TextId> {
        let line = self.line();
        let name = self.expect_name()?;
        self.assignable(&name, line)
    }

    fn assignable(&mut self, name: &str, line: usize) -> Result<TextId> {
        match name {
            "true" | "false" | "none" | "True" | "False" | "None" => {
                syntax(line, format!("cannot assign to `{name}`"))
            }
            _ => Ok(self.id(name)),
        }
    }

    /// What is assigned to, up to one of these names.
    fn target(&mut self, ends: &[&str], with_attributes: bool) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if !targets.is_empty() && !self.skip_operator(",") {
                break;
            }
            let is_end =
                matches!(self.token(), Token::VariableEnd | Token::BlockEnd) || self.is_operator(")");
            if is_end || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            targets.push(self.nested(|parser| parser.one_target(with_attributes))?);
            is_tuple |= self.is_operator(",");
        }
        match targets.pop() {
            Some(target) if !is_tuple => Ok(target),
            Some(target) => {
                targets.push(target);
                Ok(Target::Tuple(targets))
            }
            None => self.unexpected("a name to assign to"),
        }
    }

    fn one_target(&mut self, with_attributes: bool) -> Result<Target> {
        let line = self.line();
        if self.skip_operator("(") {
            let target = self.target(&[], false)?;
            self.expect(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if with_attributes
            && self.is_operator(".")
            && !matches!(&name[..], "true" | "false" | "none" | "True" | "False" | "None")
        {
            self.advance();
            let attribute = self.expect_name()?;
            return Ok(Target::Attribute(self.id(&name), self.id(&attribute)));
        }
        Ok(Target::Name(self.assignable(&name, line)?))
    }

    // Expressions

    /// Expressions separated by commas, which make a tuple, or one expression.
    fn tuple(&mut self, with_condition: bool, ends: &[&str], is_parenthesised: bool) -> Result<Node> {
        let line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect(",")?;
            }
            let is_end =
                matches!(self.token(), Token::VariableEnd | Token::BlockEnd) || self.is_operator(")");
            if is_end || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            items.push(self.expression(with_condition)?);
            if !self.is_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match items.len() {
            1 if !is_tuple => items.pop().map_or_else(|| self.unexpected("an expression"), Ok),
            0 if !is_parenthesised => self.unexpected("an expression"),
            _ => self.node(line, Expression::Tuple(items)),
        }
    }

    fn expression(&mut self, with_condition: bool) -> Result<Node> {
        self.nested(|parser| if with_condition { parser.condition() } else { parser.or() })
    }

    fn condition(&mut self) -> Result<Node> {
        let line = self.line();
        let mut value = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.nested(Self::condition)?) } else { None };
            value = self.node(line, Expression::If(Box::new((test, value, otherwise))))?;
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Node> {
        let line = self.line();
        let mut nodes = vec![self.and()?];
        while self.skip_name("or") {
            nodes.push(self.and()?);
        }
        self.one_or(line, nodes, Expression::Or)
    }

    fn and(&mut self) -> Result<Node> {
        let line = self.line();
        let mut nodes = vec![self.not()?];
        while self.skip_name("and") {
            nodes.push(self.not()?);
        }
        self.one_or(line, nodes, Expression::And)
    }

    fn one_or(&self, line: usize, mut nodes: Vec<Node>, many: fn(Vec<Node>) -> Expression) -> Result<Node> {
        match (nodes.len(), nodes.pop()) {
            (1, Some(node)) => Ok(node),
            (_, last) => {
                nodes.extend(last);
                self.node(line, many(nodes))
            }
        }
    }

    fn not(&mut self) -> Result<Node> {
        let line = self.line();
        if self.skip_name("not") {
            let node = self.nested(Self::not)?;
            return self.node(line, Expression::Not(Box::new(node)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Node> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.token() {
                Token::Operator("==") => Comparison::Eq,
                Token::Operator("!=") => Comparison::Ne,
                Token::Operator("<") => Comparison::Lt,
                Token::Operator("<=") => Comparison::Le,
                Token::Operator(">") => Comparison::Gt,
                Token::Operator(">=") => Comparison::Ge,
                Token::Name(name) if name == "in" => Comparison::In,
                Token::Name(name) if name == "not" && *self.next_token() == Token::Name("in".into()) => {
                    self.advance();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.advance();
            rest.push((comparison, self.sum()?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => self.node(line, Expression::Compare(Box::new(first), rest)),
        }
    }

    /// Operators of one precedence, from left to right.
    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        operand: fn(&mut Self) -> Result<Node>,
    ) -> Result<Node> {
        let line = self.line();
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.is_operator(text)) {
            self.advance();
            rest.push((*operator, operand(self)?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => self.node(line, Expression::Arithmetic(Box::new(first), rest)),
        }
    }

    fn sum(&mut self) -> Result<Node> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Result<Node> {
        let line = self.line();
        let mut nodes = vec![self.product()?];
        while self.skip_operator("~") {
            nodes.push(self.product()?);
        }
        self.one_or(line, nodes, Expression::Concat)
    }

    fn product(&mut self) -> Result<Node> {
        use Operator as O;
        self.chain(&[("*", O::Mul), ("/", O::Div), ("//", O::FloorDiv), ("%", O::Mod)], Self::power)
    }

    fn power(&mut self) -> Result<Node> {
        self.chain(&[("**", Operator::Pow)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filter: bool) -> Result<Node> {
        let line = self.line();
        let sign: Option<fn(Box<Node>) -> Expression> = match self.token() {
            Token::Operator("-") => Some(Expression::Negative),
            Token::Operator("+") => Some(Expression::Positive),
            _ => None,
        };
        let mut node = match sign {
            Some(sign) => {
                self.advance();
                let operand = self.nested(|parser| parser.unary(false))?;
                self.node(line, sign(Box::new(operand)))?
            }
            None => self.primary()?,
        };
        node = self.postfix(node)?;
        if with_filter { self.filtered(node) } else { Ok(node) }
    }

    fn primary(&mut self) -> Result<Node> {
        let line = self.line();
        let kind = match self.token().clone() {
            Token::Name(name) => {
                self.advance();
                match &name[..] {
                    "true" | "True" => Expression::Bool(true),
                    "false" | "False" => Expression::Bool(false),
                    "none" | "None" => Expression::None,
                    _ => Expression::Name(self.id(&name)),
                }
            }
            Token::Text(mut text) => {
                self.advance();
                while let Token::Text(more) = self.token() {
                    text.push_str(more);
                    self.advance();
                }
                Expression::Text(self.id(&text))
            }
            Token::Int(number) => {
                self.advance();
                Expression::Int(number)
            }
            Token::Float(number) => {
                self.advance();
                Expression::Float(number)
            }
            Token::Operator("(") => {
                self.advance();
                let node = self.tuple(true, &[], true)?;
                self.expect(")")?;
                return Ok(node);
            }
            Token::Operator("[") => Expression::List(self.list()?),
            Token::Operator("{") => Expression::Dict(self.dict()?),
            _ => return self.unexpected("an expression"),
        };
        self.node(line, kind)
    }

    fn list(&mut self) -> Result<Vec<Node>> {
        self.expect("[")?;
        let mut items = Vec::new();
        while !self.is_operator("]") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.is_operator("]") {
                    break;
                }
            }
            items.push(self.expression(true)?);
        }
        self.expect("]")?;
        Ok(items)
    }

    fn dict(&mut self) -> Result<Vec<(Node, Node)>> {
        self.expect("{")?;
        let mut pairs = Vec::new();
        while !self.is_operator("}") {
            if !pairs.is_empty() {
                self.expect(",")?;
                if self.is_operator("}") {
                    break;
                }
            }
            let key = self.expression(true)?;
            self.expect(":")?;
            pairs.push((key, self.expression(true)?));
        }
        self.expect("}")?;
        Ok(pairs)
    }

    fn postfix(&mut self, mut node: Node) -> Result<Node> {
        loop {
            let line = self.line();
            let kind = match self.token() {
                Token::Operator(".") => self.attribute(node)?,
                Token::Operator("[") => self.subscript(node)?,
                Token::Operator("(") => Expression::Call(Box::new(node), self.arguments()?),
                _ => return Ok(node),
            };
            node = self.node(line, kind)?;
        }
    }

    fn attribute(&mut self, node: Node) -> Result<Expression> {
        self.advance();
        let line = self.line();
        match self.advance() {
            Token::Name(name) => Ok(Expression::Attribute(Box::new(node), self.id(&name))),
            Token::Int(number) => {
                Ok(Expression::Item(Box::new(node), Box::new(self.node(line, Expression::Int(number))?)))
            }
            _ => syntax(line, "expected a name or a number after `.`"),
        }
    }

    fn subscript(&mut self, node: Node) -> Result<Expression> {
        let line = self.line();
        self.advance();
        let mut keys = Vec::new();
        while !self.is_operator("]") {
            if !keys.is_empty() {
                self.expect(",")?;
            }
            keys.push(self.key()?);
        }
        self.expect("]")?;
        let key = match (keys.len(), keys.pop()) {
            (1, Some(key)) => key,
            (_, last) => {
                keys.extend(last);
                self.node(line, Expression::Tuple(keys))?
            }
        };
        Ok(Expression::Item(Box::new(node), Box::new(key)))
    }

    /// An index, or a slice.
    fn key(&mut self) -> Result<Node> {
        let line = self.line();
        let start = if self.is_operator(":") { None } else { Some(self.expression(true)?) };
        if !self.skip_operator(":") {
            return start.map_or_else(|| self.unexpected("an expression"), Ok);
        }
        let is_end = |parser: &Self| [":", "]", ","].iter().any(|end| parser.is_operator(end));
        let stop = if is_end(self) { None } else { Some(self.expression(true)?) };
        let has_step = self.skip_operator(":") && !self.is_operator("]") && !self.is_operator(",");
        let step = if has_step { Some(self.expression(true)?) } else { None };
        self.node(line, Expression::Slice(Box::new([start, stop, step])))
    }

    fn filtered(&mut self, mut node: Node) -> Result<Node> {
        loop {
            let line = self.line();
            let kind = if self.skip_operator("|") {
                Expression::Filter(Box::new(node), self.filter_call()?)
            } else if self.skip_name("is") {
                self.test(node)?
            } else if self.is_operator("(") {
                Expression::Call(Box::new(node), self.arguments()?)
            } else {
                return Ok(node);
            };
            node = self.node(line, kind)?;
        }
    }

    /// The filters of a block, the first without a `|` if `starts_inline`.
    fn filters(&mut self, starts_inline: bool) -> Result<Vec<FilterCall>> {
        let mut filters = Vec::new();
        if starts_inline {
            filters.push(self.filter_call()?);
        }
        while self.skip_operator("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }

    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name = name + "." + &self.expect_name()?;
        }
        Ok(name)
    }

    fn filter_call(&mut self) -> Result<FilterCall> {
        let line = self.line();
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
        Ok(FilterCall { line, name, arguments })
    }

    fn test(&mut self, node: Node) -> Result<Expression> {
        let line = self.line();
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let takes_argument = match self.token() {
            Token::Name(name) => !matches!(&name[..], "else" | "or" | "and"),
            Token::Text(_) | Token::Int(_) | Token::Float(_) => true,
            _ => self.is_operator("[") || self.is_operator("{"),
        };
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else if takes_argument {
            if self.is_name("is") {
                return syntax(line, "tests cannot be chained with `is`");
            }
            let argument = self.primary()?;
            Arguments { positional: vec![self.postfix(argument)?], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        let test = Expression::Test(Box::new(node), FilterCall { line, name, arguments });
        match is_negated {
            true => Ok(Expression::Not(Box::new(self.node(line, test)?))),
            false => Ok(test),
        }
    }

    fn arguments(&mut self) -> Result<Arguments> {
        let line = self.line();
        self.expect("(")?;
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.is_operator(")") {
            if !is_first {
                self.expect(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            is_first = false;
            let is_valid = self.argument(&mut arguments)?;
            if !is_valid {
                return syntax(line, "the arguments of a call are in the wrong order");
            }
        }
        self.expect(")")?;
        Ok(arguments)
    }

    /// Adds an argument; returns whether it may stand there.
    fn argument(&mut self, arguments: &mut Arguments) -> Result<bool> {
        if self.skip_operator("*") {
            let is_valid = arguments.list.is_none() && arguments.map.is_none();
            arguments.list = Some(Box::new(self.expression(true)?));
            return Ok(is_valid);
        }
        if self.skip_operator("**") {
            let is_valid = arguments.map.is_none();
            arguments.map = Some(Box::new(self.expression(true)?));
            return Ok(is_valid);
        }
        let is_named = matches!(self.token(), Token::Name(_)) && *self.next_token() == Token::Operator("=");
        if is_named {
            let name = self.expect_name()?;
            self.expect("=")?;
            let id = self.id(&name);
            let is_valid = arguments.map.is_none() && arguments.named.iter().all(|(other, _)| *other != id);
            arguments.named.push((id, self.expression(true)?));
            return Ok(is_valid);
        }
        let is_valid = arguments.list.is_none() && arguments.map.is_none() && arguments.named.is_empty();
        arguments.positional.push(self.expression(true)?);
        Ok(is_valid)
    }
}
