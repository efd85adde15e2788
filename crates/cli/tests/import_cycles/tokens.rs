//! As much of Rust as it takes to see what a file imports.

use std::collections::BTreeSet;

/// What a file says of others.
#[derive(Default)]
pub struct Source {
    /// What it imports by name.
    pub imports: Vec<Import>,
    /// Modules, and types, of which it imports everything.
    pub globs: Vec<Vec<String>>,
    /// The paths in its code.
    pub paths: Vec<Vec<String>>,
    /// The items that it defines at its top.
    pub defines: BTreeSet<String>,
    /// Every word in its code, imports apart.
    words: BTreeSet<String>,
}

impl Source {
    /// Whether the name is in the file's code, besides being imported.
    pub fn uses(&self, name: &str) -> bool {
        self.words.contains(name)
    }
}

pub struct Import {
    pub path: Vec<String>,
    pub name: String,
    /// Whether it is a re-export.
    pub is_public: bool,
}

/// Reads a file.
pub fn parse(text: &str) -> Source {
    let tokens = without_tests(&tokens(text));
    let mut source = Source::default();
    let (mut index, mut depth) = (0, 0_usize);
    // Where modules within the file begin.
    let mut inner = Vec::new();
    while index < tokens.len() {
        let token = tokens[index];
        let before = index.checked_sub(1).map_or("", |before| tokens[before]);
        let after = |by: usize| tokens.get(index + by).copied().unwrap_or_default();
        match token {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inner.pop_if(|start| *start == depth);
            }
            // `use<'a>` says what a type captures.
            "use" if after(1) != "<" => {
                let is_public = matches!(before, "pub" | ")");
                index += 1;
                let known = (source.imports.len(), source.globs.len());
                import(&tokens, &mut index, &[], is_public, &mut source);
                let imports = source.imports[known.0..].iter_mut().map(|import| &mut import.path);
                let paths = imports.chain(&mut source.globs[known.1..]);
                paths.for_each(|path| from_the_file(path, inner.len()));
                continue;
            }
            "mod" if after(2) == ";" => index += 2,
            "mod" if after(2) == "{" => inner.push(depth),
            "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union"
                if depth == 0
                    && matches!(
                        before,
                        "" | ";" | "}" | "pub" | ")" | "const" | "unsafe" | "async" | "extern"
                    ) =>
            {
                source.defines.insert(after(1).to_owned());
            }
            "macro_rules" => drop(source.defines.insert(after(2).to_owned())),
            _ if is_word(token) && before != "::" => {
                source.words.insert(token.to_owned());
                let mut path = vec![token.to_owned()];
                while after(2 * path.len() - 1) == "::" && is_word(after(2 * path.len())) {
                    path.push(after(2 * path.len()).to_owned());
                }
                if path.len() > 1 {
                    from_the_file(&mut path, inner.len());
                    source.paths.push(path);
                }
            }
            _ => {}
        }
        index += 1;
    }
    source
}

/// Makes a path that is written so many modules deep in its file one of the file's own module.
fn from_the_file(path: &mut [String], depth: usize) {
    path.iter_mut()
        .take(depth)
        .take_while(|part| *part == "super")
        .for_each(|part| *part = "self".to_owned());
}

/// Reads one tree of a `use` declaration, up to the `,`, `}` or `;` behind it.
fn import(tokens: &[&str], index: &mut usize, prefix: &[String], is_public: bool, source: &mut Source) {
    let mut path = prefix.to_vec();
    let mut name = None;
    while let Some(&token) = tokens.get(*index) {
        match token {
            "," | "}" | ";" => break,
            "{" => {
                while !matches!(tokens.get(*index), None | Some(&"}")) {
                    *index += 1;
                    import(tokens, index, &path, is_public, source);
                }
                *index += 1;
                return;
            }
            "*" => {
                source.globs.push(path);
                *index += 1;
                return;
            }
            "as" => {
                *index += 1;
                name = tokens.get(*index).copied();
            }
            "self" if !path.is_empty() => {}
            _ if is_word(token) => path.push(token.to_owned()),
            _ => {}
        }
        *index += 1;
    }
    if let Some(last) = path.last() {
        let name = name.unwrap_or(last).to_owned();
        source.imports.push(Import { path, name, is_public });
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The tokens but for items that are compiled for tests only.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        if tokens[index] != "#" || tokens.get(index + 1) != Some(&"[") {
            kept.push(tokens[index]);
            index += 1;
            continue;
        }
        let end = index + 1 + closing(&tokens[index + 1..]);
        let attribute = &tokens[index..=end.min(tokens.len() - 1)];
        index = end + 1;
        if attribute.contains(&"cfg") && attribute.contains(&"test") && !attribute.contains(&"not") {
            while index < tokens.len() && !matches!(tokens[index], ";" | "{") {
                index += if tokens[index] == "[" { closing(&tokens[index..]) + 1 } else { 1 };
            }
            // A `use` has its `;` behind its braces.
            let is_block = tokens.get(index) == Some(&"{");
            index += if is_block { closing(&tokens[index..]) + 1 } else { 1 };
            index += usize::from(is_block && tokens.get(index) == Some(&";"));
        }
    }
    kept
}

/// Where the bracket that the tokens begin with is closed.
fn closing(tokens: &[&str]) -> usize {
    let mut depth = 0;
    let closes = tokens.iter().position(|token| {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    closes.unwrap_or(tokens.len())
}

/// The words and signs of a file, without comments, texts, numbers and lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if is_word(rest) {
                found.push(&rest[..length]);
            }
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                found.push(&rest[..length]);
            }
            length
        };
        rest = &rest[length..];
    }
    found
}

/// The length of the text, character or lifetime that the code begins with.
fn literal(code: &str) -> Option<usize> {
    let quote = code.find(|c: char| c != 'b' && c != 'c' && c != 'r' && c != '#')?;
    let (prefix, body) = code.split_at(quote);
    if body.starts_with('"') && prefix.contains('r') {
        let end = format!("\"{}", "#".repeat(prefix.matches('#').count()));
        return body[1..].find(&end).map(|found| quote + 1 + found + end.len());
    }
    if body.starts_with('"') && matches!(prefix, "" | "b" | "c") {
        return Some(quote + unescaped(body, '"'));
    }
    if body.starts_with('\'') && matches!(prefix, "" | "b") {
        // A lifetime has no second quote right behind its first character.
        let mut characters = body.char_indices().skip(1);
        let is_escape = characters.next().is_some_and(|(_, c)| c == '\\');
        let is_character = is_escape || characters.next().is_some_and(|(_, c)| c == '\'');
        let lifetime =
            || body[1..].find(|c: char| !c.is_alphanumeric() && c != '_').map_or(body.len(), |end| 1 + end);
        return Some(quote + if is_character { unescaped(body, '\'') } else { lifetime() });
    }
    None
}

/// The length of the code up to the second of its quotes, the first of which it begins with.
fn unescaped(code: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (index, character) in code.char_indices().skip(1) {
        if character == quote && !is_escaped {
            return index + character.len_utf8();
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    code.len()
}
