//! Which files of a crate import from which, read from their `use` declarations and paths, and the import cycles among them.

mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use tokens::{Source, parse};

/// Maximum length of a chain of re-exports.
const REEXPORTS_MAX: usize = 16;

/// The imports between the files of one crate: from, to, and the names that the first takes from the second.
pub type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// The path of a module from the crate's root.
type Module = Vec<String>;

struct Crate {
    files: BTreeMap<Module, String>,
    sources: BTreeMap<Module, Source>,
}

/// The imports between the files of a crate, given by their paths from its `src`. Tests do not count, and neither does
/// what a file re-exports without using it. What a file takes through a re-export comes from the file that defines it.
pub fn edges(files: &BTreeMap<String, String>) -> Edges {
    let mut of_crate = Crate { files: BTreeMap::new(), sources: BTreeMap::new() };
    for (path, text) in files.iter().filter(|(path, _)| !is_test(path) && *path != "main.rs") {
        let mut module: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        of_crate.sources.insert(module.clone(), parse(text));
        of_crate.files.insert(module, path.clone());
    }
    let mut edges = Edges::new();
    for (module, source) in &of_crate.sources {
        let imports = source.imports.iter().filter(|import| !import.is_public || source.uses(&import.name));
        for path in imports.map(|import| &import.path).chain(&source.paths) {
            if let Some((defines, name)) = of_crate.locate(module, path, REEXPORTS_MAX)
                && defines != *module
            {
                let edge = (of_crate.files[module].clone(), of_crate.files[&defines].clone());
                edges.entry(edge).or_default().insert(name);
            }
        }
    }
    edges
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs"))
}

impl Crate {
    /// The module that defines what `path` names in `module`. Nothing for a module as such and for other crates.
    fn locate(&self, module: &Module, path: &[String], reexports: usize) -> Option<(Module, String)> {
        let (first, mut rest) = path.split_first()?;
        let mut at = module.clone();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()?),
            _ => rest = path,
        }
        let is_relative = rest.len() == path.len();
        for (index, part) in rest.iter().enumerate() {
            if part == "super" {
                at.pop()?;
                continue;
            }
            if part == "self" {
                continue;
            }
            let child = [&at[..], std::slice::from_ref(part)].concat();
            if self.sources.contains_key(&child) {
                at = child;
                continue;
            }
            let found = self.item(&at, &rest[index..], reexports);
            let is_foreign = is_relative && index == 0;
            return found.or_else(|| (!is_foreign).then(|| (at, part.clone())));
        }
        None
    }

    /// The module that defines the first part of `path`, looked up in `module`: there, or where its imports lead.
    fn item(&self, module: &Module, path: &[String], reexports: usize) -> Option<(Module, String)> {
        let source = &self.sources[module];
        if source.defines.contains(&path[0]) {
            return Some((module.clone(), path[0].clone()));
        }
        let reexports = reexports.checked_sub(1)?;
        if let Some(import) = source.imports.iter().find(|import| import.name == path[0]) {
            let whole = [&import.path, &path[1..]].concat();
            // `use fmt;` would lead to itself.
            return (whole != path).then(|| self.locate(module, &whole, reexports))?;
        }
        source.globs.iter().find_map(|glob| {
            let (defines, name) = self.locate(module, &[glob, path].concat(), reexports)?;
            self.sources[&defines].defines.contains(&name).then_some((defines, name))
        })
    }
}

/// The cycles: sets of files in which each can be reached from every other.
pub fn cycles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, _) in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.as_str()];
        while let Some(file) = open.pop() {
            let next = edges.keys().filter(|(from, _)| from == file).map(|(_, to)| to.as_str());
            open.extend(next.filter(|to| seen.insert(*to)));
        }
        reached.insert(from, seen);
    }
    let mut cycles: Vec<BTreeSet<String>> = Vec::new();
    for (file, seen) in reached.iter().filter(|(file, seen)| seen.contains(*file)) {
        let comes_back = |other: &&&str| reached.get(*other).is_some_and(|seen| seen.contains(file));
        let cycle: BTreeSet<String> = seen.iter().filter(comes_back).map(|&file| file.to_owned()).collect();
        if !cycles.contains(&cycle) {
            cycles.push(cycle);
        }
    }
    cycles
}

/// The imports of a cycle in words, one on a line.
pub fn describe(cycle: &BTreeSet<String>, edges: &Edges) -> String {
    let mut text = String::new();
    for ((from, to), names) in edges {
        if cycle.contains(from) && cycle.contains(to) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text.push_str(&format!("\n  {from} -> {to}: {}", names.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cycles of a crate, each as its files in a row.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let cycles = cycles(&edges(&files));
        cycles.into_iter().map(|cycle| cycle.into_iter().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_cycle() {
        let a = "use crate::b::{B, c::C};\npub struct A(B);";
        let b = "pub struct B;\nfn f() { super::a::g() }";
        assert_eq!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]), ["a.rs b.rs"]);
        assert!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", "pub struct B;")]).is_empty());
    }

    #[test]
    fn a_cycle_may_be_long_and_lead_through_paths() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use super::b as other;\nfn f() { other::g::<u8>() }"),
            ("b.rs", "pub fn g<T>() { crate::c::h() }"),
            ("c/mod.rs", "use super::{a};\npub fn h() { a::f() }"),
        ];
        assert_eq!(found(&files), ["a.rs b.rs c/mod.rs"]);
    }

    #[test]
    fn a_reexport_leads_to_the_file_that_defines_the_name() {
        let parent = "mod a;\nmod b;\npub use a::A;\npub use b::*;";
        let a = "pub struct A;";
        let b = "use super::A;\npub struct B(A);";
        assert!(found(&[("lib.rs", parent), ("a.rs", a), ("b.rs", b)]).is_empty());
        let a = "use crate::B;\npub struct A(B);";
        assert_eq!(found(&[("lib.rs", parent), ("a.rs", a), ("b.rs", b)]), ["a.rs b.rs"]);
    }

    #[test]
    fn a_pointers_type_is_not_defined_where_it_stands() {
        let parent = "mod a;\npub use a::*;\nconst N: u8 = u8::MAX;\npub struct B;";
        let a = "use super::B;\nfn f<const N: u8>(_: *const u8, _: &'static u8, _: B) {}";
        assert!(found(&[("lib.rs", parent), ("a.rs", a)]).is_empty());
    }

    #[test]
    fn a_parent_may_name_its_children_or_serve_them_but_not_both() {
        let a = "use super::Shared;\npub struct A(Shared);";
        let serves = "mod a;\npub use a::A;\npub struct Shared;";
        assert!(found(&[("lib.rs", serves), ("a.rs", a)]).is_empty());
        let both = format!("{serves}\nfn f(_: A) {{}}");
        assert_eq!(found(&[("lib.rs", &both), ("a.rs", a)]), ["a.rs lib.rs"]);
        let both = format!("{serves}\nfn f() {{ a::g() }}");
        assert_eq!(found(&[("lib.rs", &both), ("a.rs", a)]), ["a.rs lib.rs"]);
    }

    #[test]
    fn a_module_within_a_file_sees_the_file_as_its_parent() {
        let a = "const A: u8 = 1;\nmod inner { use super::super::b::B; use super::A; fn f() { super::A } }";
        let b = "pub struct B;";
        let parent = "mod a; mod b;\nfn f() { a::g() }\nfn g() {}";
        assert!(found(&[("lib.rs", parent), ("a.rs", a), ("b.rs", b)]).is_empty());
        let b = "use crate::a::A;\npub struct B;";
        assert_eq!(found(&[("lib.rs", parent), ("a.rs", a), ("b.rs", b)]), ["a.rs b.rs"]);
    }

    #[test]
    fn tests_comments_texts_and_other_crates_do_not_count() {
        let a = r##"
            use crate::b::B;
            use std::{fmt, b};
            pub struct A<'a>(&'a B);
            /// See [`crate::b::B`].
            #[cfg(test)]
            mod tests { use crate::b::{B, f}; fn g() { crate::b::f() } }
        "##;
        let b = r##"
            // use crate::a::A; /* crate::a::A */
            pub struct B;
            const TEXT: &str = r#"" use crate::a::A; "#;
            const CHARS: [char; 2] = ['"', '\''];
            fn f<const N: u8>(_: *const A, _: &'static A) { u8::MAX }
            #[cfg(test)]
            use crate::a::A;
        "##;
        assert!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]).is_empty());
        let tests = "use crate::a::A;";
        assert!(
            found(&[("a.rs", a), ("b.rs", "mod tests; pub struct B;"), ("b/tests.rs", tests)]).is_empty()
        );
    }
}
