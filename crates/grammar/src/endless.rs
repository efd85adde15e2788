//! Finds JSON schemas that no finite document satisfies, such as those of lists whose every element needs another one.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// References that lead to references, and so on. Beyond, schemas are not checked to the end.
const MAX_ROUNDS: usize = 20;

/// Whether a schema is known to need itself for every document. Knows the keywords by which schemas usually do. The schema
/// must not be nested too deep.
pub(crate) fn is_endless(schema: &Value) -> bool {
    let mut search = Search { root: schema, finite: HashSet::new(), is_changed: false };
    for _ in 0..MAX_ROUNDS {
        if search.visit(schema) {
            return false;
        }
        if !std::mem::take(&mut search.is_changed) {
            return true;
        }
    }
    false
}

struct Search<'s> {
    root: &'s Value,
    /// The addresses of the schemas for which a finite document has been found.
    finite: HashSet<usize>,
    is_changed: bool,
}

impl<'s> Search<'s> {
    /// Whether a finite document satisfies a schema, as far as is known. Visits all schemas within, as references may lead
    /// to any of them.
    fn visit(&mut self, schema: &'s Value) -> bool {
        let address = std::ptr::from_ref(schema).addr();
        match schema {
            Value::Array(values) => values.iter().for_each(|value| _ = self.visit(value)),
            Value::Object(members) => members.values().for_each(|value| _ = self.visit(value)),
            _ => {}
        }
        let is_finite = schema.as_object().is_none_or(|members| self.is_finite(members));
        if is_finite {
            self.is_changed |= self.finite.insert(address);
        }
        is_finite
    }

    fn is_finite(&self, members: &Map<String, Value>) -> bool {
        // References within are relative to it.
        let is_root = self.root.as_object().is_some_and(|root| std::ptr::eq(root, members));
        let is_resource = members.contains_key("$id") && !is_root;
        let schemas = |key: &str| members.get(key).and_then(Value::as_array);
        let any = |key: &str| schemas(key).is_none_or(|all| all.iter().any(|schema| self.is_known(schema)));
        is_resource
            || members.get("$ref").is_none_or(|target| self.is_target_finite(target))
                && schemas("allOf").is_none_or(|all| all.iter().all(|schema| self.is_known(schema)))
                && any("anyOf")
                && any("oneOf")
                && match members.get("type").and_then(Value::as_str) {
                    Some("object") => self.are_properties_finite(members),
                    Some("array") => self.are_items_finite(members),
                    _ => true,
                }
    }

    /// References to other places than a path from the root count as finite.
    fn is_target_finite(&self, target: &Value) -> bool {
        let path = target.as_str().and_then(|target| target.strip_prefix('#'));
        path.and_then(|path| self.root.pointer(path)).is_none_or(|schema| self.is_known(schema))
    }

    fn are_properties_finite(&self, members: &Map<String, Value>) -> bool {
        let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
        let property = |key: &Value| members.get("properties")?.get(key.as_str()?);
        required.filter_map(property).all(|schema| self.is_known(schema))
    }

    fn are_items_finite(&self, members: &Map<String, Value>) -> bool {
        let count = members.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let first = members.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rest = members.get("items").filter(|_| count > first.len());
        first.iter().take(count).chain(rest).all(|schema| self.is_known(schema))
    }

    fn is_known(&self, schema: &Value) -> bool {
        self.finite.contains(&std::ptr::from_ref(schema).addr())
    }
}
