//! Templates to tokens, with Jinja2's whitespace control: `trim_blocks` and `lstrip_blocks` on, `keep_trailing_newline` off.

use super::error::{Result, syntax, unsupported};

/// A token and the line it starts on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lexeme {
    pub(crate) line: usize,
    pub(crate) token: Token,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// Longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// The tokens of a template. The last one is [`Token::End`].
pub(crate) fn tokens(source: &str) -> Result<Vec<Lexeme>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, position: 0, line: 1, is_line_start: true, lexemes: Vec::new() };
    while lexer.position < source.len() {
        lexer.root()?;
    }
    lexer.push(Token::End);
    Ok(lexer.lexemes)
}

/// Whether Python's `str.isspace` holds for a character.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1c'..='\x1f')
}

struct Lexer<'s> {
    source: &'s str,
    position: usize,
    line: usize,
    /// Whether what was read last ends a line.
    is_line_start: bool,
    lexemes: Vec<Lexeme>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.position..]
    }

    fn push(&mut self, token: Token) {
        self.lexemes.push(Lexeme { line: self.line, token });
    }

    fn advance(&mut self, len: usize) {
        let passed = &self.rest()[..len];
        self.line += passed.matches('\n').count();
        self.is_line_start = passed.ends_with('\n');
        self.position += len;
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        let len = rest.len() - rest.trim_start_matches(is_space).len();
        if len > 0 {
            self.advance(len);
        }
    }

    /// Text up to the next tag, then that tag.
    fn root(&mut self) -> Result<()> {
        let rest = self.rest();
        let opening = rest
            .match_indices('{')
            .find(|(at, _)| matches!(rest.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#')));
        let Some((len, _)) = opening else {
            self.push(Token::Data(rest.to_owned()));
            self.advance(rest.len());
            return Ok(());
        };
        let (text, tag) = rest.split_at(len);
        let kind = tag.as_bytes()[1];
        let sign = tag.as_bytes().get(2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
        self.data(text, sign, kind == b'{');
        self.advance(len);
        let begin = 2 + usize::from(sign.is_some());
        match kind {
            b'#' => self.comment(begin),
            b'%' => match raw_begin(&tag[begin..]) {
                Some(raw) => self.raw(begin + raw),
                None => {
                    self.push(Token::BlockBegin);
                    self.advance(begin);
                    self.tag("%}")
                }
            },
            _ => {
                self.push(Token::VariableBegin);
                self.advance(begin);
                self.tag("}}")
            }
        }
    }

    /// Pushes text that stands before a tag, stripped as the tag demands.
    fn data(&mut self, text: &str, sign: Option<u8>, is_variable: bool) {
        let line_start = text.rfind('\n').map_or(0, |at| at + 1);
        let starts_line = line_start > 0 || self.is_line_start;
        let kept = match sign {
            Some(b'-') => text.trim_end_matches(is_space),
            None if !is_variable && starts_line && text[line_start..].chars().all(is_space) => {
                &text[..line_start]
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(Token::Data(kept.to_owned()));
        }
    }

    fn comment(&mut self, begin: usize) -> Result<()> {
        let line = self.line;
        let Some(end) = self.rest()[begin..].find("#}") else {
            return syntax(line, "a comment is not closed");
        };
        let body = &self.rest()[begin..begin + end];
        self.advance(begin + end + 2);
        self.after_block(body.as_bytes().last().copied());
        Ok(())
    }

    /// What follows the end of a block or comment: all spaces after `-`, nothing after `+`, else one line break.
    fn after_block(&mut self, sign: Option<u8>) {
        match sign {
            Some(b'-') => self.skip_spaces(),
            Some(b'+') => {}
            _ if self.rest().starts_with('\n') => self.advance(1),
            _ => {}
        }
    }

    /// The text of a raw block, whose opening tag is `begin` bytes long.
    fn raw(&mut self, begin: usize) -> Result<()> {
        let line = self.line;
        let strips = self.rest()[..begin].ends_with("-%}");
        self.advance(begin);
        if strips {
            self.skip_spaces();
        }
        let rest = self.rest();
        for (at, _) in rest.match_indices("{%") {
            let tag = &rest[at + 2..];
            let sign = tag.as_bytes().first().copied().filter(|sign| matches!(sign, b'-' | b'+'));
            let tag = &tag[usize::from(sign.is_some())..];
            let Some(after) = tag.trim_start_matches(is_space).strip_prefix("endraw") else { continue };
            let after = after.trim_start_matches(is_space);
            let end_sign = after.as_bytes().first().copied().filter(|sign| matches!(sign, b'-' | b'+'));
            let Some(after) = after[usize::from(end_sign.is_some())..].strip_prefix("%}") else { continue };
            self.data(&rest[..at], sign, false);
            self.advance(rest.len() - after.len());
            self.after_block(end_sign);
            return Ok(());
        }
        syntax(line, "a raw block is not closed")
    }

    /// The tokens of a tag, and its end.
    fn tag(&mut self, end: &str) -> Result<()> {
        let mut open: Vec<char> = Vec::new();
        let line = self.line;
        loop {
            self.skip_spaces();
            let rest = self.rest();
            if rest.is_empty() {
                // The parser reports what is missing.
                return syntax(line, format!("a tag is not closed with {end}"));
            }
            if open.is_empty() {
                let may_plus = end == "%}";
                let signs = rest
                    .as_bytes()
                    .first()
                    .copied()
                    .filter(|&sign| sign == b'-' || (sign == b'+' && may_plus));
                if rest[usize::from(signs.is_some())..].starts_with(end) {
                    self.push(if may_plus { Token::BlockEnd } else { Token::VariableEnd });
                    self.advance(usize::from(signs.is_some()) + 2);
                    if may_plus {
                        self.after_block(signs);
                    } else if signs.is_some() {
                        self.skip_spaces();
                    }
                    return Ok(());
                }
            }
            self.token(&mut open)?;
        }
    }

    fn token(&mut self, open: &mut Vec<char>) -> Result<()> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or_default();
        if first.is_ascii_digit() {
            return self.number();
        }
        if first == '\'' || first == '"' {
            return self.text(first);
        }
        if first == '_' || first.is_alphanumeric() {
            let len = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            if !(first == '_' || first.is_alphabetic()) {
                return syntax(self.line, format!("{} is not a name", &rest[..len]));
            }
            self.push(Token::Name(rest[..len].to_owned()));
            self.advance(len);
            return Ok(());
        }
        let Some(operator) = OPERATORS.into_iter().find(|operator| rest.starts_with(operator)) else {
            return syntax(self.line, format!("unexpected character {first:?}"));
        };
        match operator {
            "(" => open.push(')'),
            "[" => open.push(']'),
            "{" => open.push('}'),
            ")" | "]" | "}" if open.pop().is_none_or(|expected| !operator.contains(expected)) => {
                return syntax(self.line, format!("unexpected {operator}"));
            }
            _ => {}
        }
        self.push(Token::Operator(operator));
        self.advance(operator.len());
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let after_dot = self.source[..self.position].ends_with('.');
        let (len, token) = match float_len(rest).filter(|_| !after_dot) {
            Some(len) => (len, Token::Float(rest[..len].replace('_', "").parse().unwrap_or(f64::INFINITY))),
            None => {
                let (len, radix) = int_len(rest);
                let digits = rest[..len].replace('_', "");
                let digits = if radix == 10 { &digits[..] } else { &digits[2..] };
                let Ok(number) = i128::from_str_radix(digits, radix) else {
                    return unsupported("an integer of more than 128 bits");
                };
                (len, Token::Int(number))
            }
        };
        self.push(token);
        self.advance(len);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let mut is_escaped = false;
        let end = rest[1..].find(|c| {
            let is_end = c == quote && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        let Some(end) = end else {
            return syntax(self.line, "a string is not closed");
        };
        let line = self.line;
        let text = unescape(&rest[1..1 + end]).map_err(|error| error.at(line))?;
        self.push(Token::Text(text));
        self.advance(end + 2);
        Ok(())
    }
}

/// The length of `raw %}` behind the begin of a block.
fn raw_begin(tag: &str) -> Option<usize> {
    let after = tag.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    let after = after.strip_prefix("-%}").or_else(|| after.strip_prefix("%}"))?;
    Some(tag.len() - after.len())
}

/// The length of digits that single underscores may separate; 0 if there are none.
fn digits_len(text: &str, is_digit: fn(char) -> bool) -> usize {
    let mut len = 0;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let next_is_digit = characters.peek().is_some_and(|(_, next)| is_digit(*next));
        if is_digit(character) {
            len = at + 1;
        } else if character != '_' || at == 0 || !next_is_digit {
            break;
        }
    }
    len
}

fn float_len(text: &str) -> Option<usize> {
    let is_digit = |c: char| c.is_ascii_digit();
    let whole = digits_len(text, is_digit);
    let fraction = text[whole..].strip_prefix('.').map_or(0, |after| digits_len(after, is_digit));
    let mut len = whole + if fraction > 0 { 1 + fraction } else { 0 };
    if let Some(exponent) = text[len..].strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let digits = digits_len(unsigned, is_digit);
        if digits > 0 {
            len += 1 + exponent.len() - unsigned.len() + digits;
            return Some(len);
        }
    }
    (fraction > 0).then_some(len)
}

/// The length of an integer and its base.
fn int_len(text: &str) -> (usize, u32) {
    type IsDigit = fn(char) -> bool;
    let bases: [(&str, u32, IsDigit); 3] =
        [("0b", 2, |c| c.is_digit(2)), ("0o", 8, |c| c.is_digit(8)), ("0x", 16, |c| c.is_ascii_hexdigit())];
    for (prefix, radix, is_digit) in bases {
        if text.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix)) {
            // An underscore may also stand behind the prefix.
            let underscore = usize::from(text[2..].starts_with('_'));
            let digits = digits_len(&text[2 + underscore..], is_digit);
            if digits > 0 {
                return (2 + underscore + digits, radix);
            }
        }
    }
    match text.starts_with('0') {
        true => (digits_len(text, |c| c == '0'), 10),
        false => (digits_len(text, |c| c.is_ascii_digit()), 10),
    }
}

/// Python's `text.encode("ascii", "backslashreplace").decode("unicode-escape")`.
fn unescape(text: &str) -> Result<String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut ascii = String::new();
    for character in text.chars() {
        match character as u32 {
            0..=0x7f => ascii.push(character),
            code @ 0x80..=0xff => ascii.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..=0xffff => ascii.push_str(&format!("\\u{code:04x}")),
            code => ascii.push_str(&format!("\\U{code:08x}")),
        }
    }
    let mut out = String::new();
    let mut rest = &ascii[..];
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(letter) = rest.chars().next() else {
            return syntax(0, "\\ at the end of a string");
        };
        rest = &rest[letter.len_utf8()..];
        match letter {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(letter),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\x0b'),
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                let digits = format!("{letter}{}", &rest[..more]);
                rest = &rest[more..];
                out.extend(u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32));
            }
            'x' | 'u' | 'U' => {
                let len = match letter {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits =
                    rest.get(..len).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
                    return syntax(0, format!("\\{letter} needs {len} hexadecimal digits"));
                };
                if (0xd800..0xe000).contains(&code) {
                    return unsupported("a surrogate as an escape in a string");
                }
                let Some(character) = char::from_u32(code) else {
                    return syntax(0, format!("\\{letter} with {code:x} is not a character"));
                };
                out.push(character);
                rest = &rest[len..];
            }
            'N' => return unsupported("\\N{...} in a string"),
            _ => out.extend(['\\', letter]),
        }
    }
    out.push_str(rest);
    Ok(out)
}
