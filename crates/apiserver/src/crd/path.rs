//! The subset of JSONPath that definitions use: members, indices, and filters that compare one member.

use serde_json::Value;

/// A parsed path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    Index(i64),
    All,
    /// Elements whose member has this value.
    Where(Vec<String>, Value),
}

impl Path {
    /// Parses a path. Returns `None` if it is outside the supported subset.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text
            .strip_prefix('{')
            .map_or(Some(text), |t| t.strip_suffix('}'))?;
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix('.') {
                let end = name_end(tail);
                let name = tail[..end].replace("\\.", ".");
                if name.is_empty() {
                    return None;
                }
                steps.push(if name == "*" {
                    Step::All
                } else {
                    Step::Member(name)
                });
                rest = &tail[end..];
            } else {
                let tail = rest.strip_prefix('[')?;
                let end = if tail.starts_with('?') {
                    tail.find(")]")? + 1
                } else {
                    tail.find(']')?
                };
                steps.push(bracket(&tail[..end])?);
                rest = &tail[end + 1..];
            }
        }
        (!steps.is_empty()).then_some(Self(steps))
    }

    /// Returns all values at the path.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| step.take(value))
                .collect();
        }
        found
    }

    /// Returns the names, if the path consists only of members.
    pub(crate) fn names(&self) -> Option<Vec<&str>> {
        self.0
            .iter()
            .map(|step| match step {
                Step::Member(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Returns the path as a JSON pointer, if it consists only of members.
    pub(crate) fn pointer(&self) -> Option<String> {
        let escaped = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        Some(self.names()?.into_iter().map(escaped).collect())
    }
}

/// Returns the end of the name at the start of the text; a backslash escapes the next character.
fn name_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '.' | '[' => return at,
            _ => {}
        }
    }
    text.len()
}

fn bracket(text: &str) -> Option<Step> {
    if let Some(filter) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        let (path, wanted) = filter.split_once("==")?;
        let path = path.trim().strip_prefix("@.")?;
        let wanted = wanted.trim();
        let wanted = match wanted.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
            Some(text) => Value::from(text),
            None => serde_json::from_str(wanted).ok()?,
        };
        return Some(Step::Where(
            path.split('.').map(str::to_owned).collect(),
            wanted,
        ));
    }
    if text == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = text.parse() {
        return Some(Step::Index(index));
    }
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    let name = quoted('\'').or_else(|| quoted('"'))?;
    Some(Step::Member(name.to_owned()))
}

impl Step {
    fn take<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Member(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Self::Index(at), Value::Array(list)) => {
                let at = if *at < 0 {
                    *at + list.len() as i64
                } else {
                    *at
                };
                let at = usize::try_from(at).ok();
                at.and_then(|at| list.get(at)).into_iter().collect()
            }
            (Self::All, Value::Array(list)) => list.iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::Where(path, wanted), Value::Array(list)) => {
                let holds = |item: &&Value| {
                    let found = path.iter().try_fold(*item, |value, name| value.get(name));
                    found == Some(wanted)
                };
                list.iter().filter(holds).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_definitions_find_their_values() {
        let value = json!({"spec": {"size": 3, "a.b": 1, "list": [{"n": 1}, {"n": 2}]},
            "status": {"conditions": [{"type": "A", "status": "no"}, {"type": "Ready", "status": "True"}]}});
        let find = |path: &str| -> Vec<Value> {
            let path = Path::parse(path).expect("a path");
            path.find(&value).into_iter().cloned().collect()
        };
        assert_eq!(find(".spec.size"), [json!(3)]);
        assert_eq!(find(".spec.list[1].n"), [json!(2)]);
        assert_eq!(find(".spec.list[*].n"), [json!(1), json!(2)]);
        assert_eq!(find(".spec.list[-1].n"), [json!(2)]);
        assert_eq!(find("$.spec['a.b']"), [json!(1)]);
        assert_eq!(find(".spec.a\\.b"), [json!(1)]);
        assert_eq!(
            find(".status.conditions[?(@.type==\"Ready\")].status"),
            [json!("True")]
        );
        assert_eq!(
            find(".status.conditions[?(@.type=='A')].status"),
            [json!("no")]
        );
        assert!(find(".nothing.here").is_empty());
        for bad in ["", "spec", ".", ".a..b", ".a[", "[?(x)]"] {
            assert_eq!(Path::parse(bad), None, "{bad}");
        }
        assert_eq!(
            Path::parse(".a.b").and_then(|p| p.pointer()),
            Some("/a/b".to_owned())
        );
    }
}
