//! Where flags are from that were not typed, for error messages.

use std::collections::BTreeMap;

/// Where a flag is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An environment variable, by its name.
    Variable(String),
    /// A profile of the config file, in words.
    Profile(String),
}

/// The flags that were not typed, by their long names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Remembers where a flag is from.
    pub fn insert(&mut self, long: &str, origin: Origin) {
        self.0.insert(long.to_owned(), origin);
    }

    /// A line for each flag that a message names and that was not typed.
    pub fn notes(&self, message: &str) -> Vec<String> {
        let is_named = |long: &str| {
            let flag = format!("--{long}");
            message.match_indices(&flag).any(|(start, _)| {
                !message[start + flag.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '-')
            })
        };
        let note = |(long, origin): (&String, &Origin)| match origin {
            Origin::Variable(name) => format!("--{long} is set by the environment variable {name}"),
            Origin::Profile(name) => format!("--{long} is set by {name}"),
        };
        self.0.iter().filter(|(long, _)| is_named(long)).map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_that_are_named_are_explained() {
        let mut origins = Origins::default();
        origins.insert("grammar", Origin::Variable("VERBATIM_GRAMMAR".into()));
        origins.insert("temp", Origin::Profile("the profile code of c.toml".into()));
        let variable = ["--grammar is set by the environment variable VERBATIM_GRAMMAR"];
        assert_eq!(origins.notes("'--grammar <GBNF>' is wrong"), variable);
        assert_eq!(origins.notes("--grammar: wrong"), variable);
        assert!(origins.notes("--grammar-file x cannot be read").is_empty());
        assert_eq!(origins.notes("--temp"), ["--temp is set by the profile code of c.toml"]);
    }
}
