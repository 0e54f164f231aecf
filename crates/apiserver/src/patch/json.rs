//! JSON patch (RFC 6902), with limits that prevent a short patch from creating a huge object.

use json_patch::{AddOperation, Patch, PatchOperation, jsonptr::PointerBuf};
use serde_json::{Map, Value};

use super::Error;
use crate::limits::{MAX_DEPTH, depth};

/// Maximum number of operations in one patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// Maximum number of bytes that all copy operations of one patch may copy, which bounds repeated doubling.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// Maximum number of list elements that the operations of one patch may move: each insertion and each removal moves the
/// elements behind it. The limit is some tens of milliseconds of work.
const MAX_MOVED: usize = 20_000_000;

/// Maximum number of depth measurements of the object during one patch.
const MAX_LOOKS: usize = 100;

/// Number of operations up to which a patch takes no longer than the handling of one object.
const FEW_OPERATIONS: usize = 100;

/// Returns whether a short JSON patch can take long: it has many operations, or some that copy or move values.
pub(crate) fn is_heavy(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Operation {
        op: String,
    }
    // The operations before an invalid one are applied before the patch is rejected.
    let Ok(operations) = serde_json::from_slice::<Vec<Operation>>(body) else {
        return true;
    };
    let long = |operation: &Operation| matches!(&*operation.op, "copy" | "move");
    operations.len() > FEW_OPERATIONS || operations.iter().any(long)
}

/// Applies a JSON patch.
///
/// # Errors
/// Returns an error if the body is not a list of operations (400), the list is too long (413), or an operation fails
/// (422).
pub fn json(mut target: Value, body: &[u8]) -> Result<Value, Error> {
    let operations: Vec<Map<String, Value>> =
        serde_json::from_slice(body).map_err(|error| Error::Malformed(error.to_string()))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(Error::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut bounds = Bounds {
        copied: 0,
        moved: 0,
        looks: 0,
        depth: depth(&target),
    };
    for operation in operations {
        let operation: PatchOperation = serde_json::from_value(Value::Object(operation))
            .map_err(|error| Error::Rejected(error.to_string()))?;
        bounds.check(&operation, &target)?;
        let Some(operation) = as_upstream(operation, &target) else {
            continue;
        };
        json_patch::patch(&mut target, &Patch(vec![operation]))
            .map_err(|error| Error::Rejected(error.to_string()))?;
    }
    if depth(&target) > MAX_DEPTH {
        return Err(too_deep());
    }
    Ok(target)
}

/// Adapts an operation to the real server, which is laxer than the RFC about a missing key of an existing map. There,
/// replacing the key adds it, a copy of it is null, and a test for null succeeds. Returns `None` if nothing remains to
/// be done.
fn as_upstream(operation: PatchOperation, target: &Value) -> Option<PatchOperation> {
    let missing = |path: &PointerBuf| {
        let parent = path.parent().and_then(|parent| parent.resolve(target).ok());
        parent.is_some_and(Value::is_object) && path.resolve(target).is_err()
    };
    Some(match operation {
        PatchOperation::Replace(op) if missing(&op.path) => PatchOperation::Add(AddOperation {
            path: op.path,
            value: op.value,
        }),
        PatchOperation::Copy(op) if missing(&op.from) => PatchOperation::Add(AddOperation {
            path: op.path,
            value: Value::Null,
        }),
        PatchOperation::Test(op) if op.value.is_null() && missing(&op.path) => return None,
        other => other,
    })
}

/// The remaining budget of the patch. `depth` is never less than the actual depth of the object.
struct Bounds {
    copied: usize,
    moved: usize,
    looks: usize,
    depth: usize,
}

impl Bounds {
    fn check(&mut self, operation: &PatchOperation, target: &Value) -> Result<(), Error> {
        let below = |path: &PointerBuf, inner: usize| path.count().saturating_add(inner);
        let listed = |path: &PointerBuf| {
            let parent = path.parent().and_then(|parent| parent.resolve(target).ok());
            parent.and_then(Value::as_array).map_or(0, Vec::len)
        };
        self.moved = self.moved.saturating_add(match operation {
            PatchOperation::Add(op) => listed(&op.path),
            PatchOperation::Remove(op) => listed(&op.path),
            PatchOperation::Copy(op) => listed(&op.path),
            PatchOperation::Move(op) => listed(&op.path).saturating_add(listed(&op.from)),
            PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
        });
        if self.moved > MAX_MOVED {
            return Err(Error::TooLarge(format!(
                "The operations of the JSON patch move more than {MAX_MOVED} list elements; replace \
                 the list"
            )));
        }
        let reached = match operation {
            PatchOperation::Add(op) => below(&op.path, depth(&op.value)),
            PatchOperation::Replace(op) => below(&op.path, depth(&op.value)),
            PatchOperation::Move(op) => below(&op.path, self.depth),
            PatchOperation::Copy(op) => {
                let size = op
                    .from
                    .resolve(target)
                    .map_or(0, |value| value.to_string().len());
                self.copied = self.copied.saturating_add(size);
                if self.copied > MAX_COPIED {
                    return Err(Error::Rejected("the patch copies too much".to_owned()));
                }
                below(&op.path, self.depth)
            }
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        self.depth = self.depth.max(reached);
        if self.depth > 2 * MAX_DEPTH {
            // The estimate only grows, so the depth is measured again before the patch is rejected. Each measurement
            // visits the whole object.
            self.looks += 1;
            if self.looks > MAX_LOOKS {
                return Err(too_deep());
            }
            self.depth = depth(target);
            if self.depth > MAX_DEPTH {
                return Err(too_deep());
            }
            self.depth += reached.min(MAX_DEPTH);
        }
        Ok(())
    }
}

fn too_deep() -> Error {
    Error::Rejected("the patched object is nested too deeply".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    fn apply(target: Value, patch: &Value) -> Result<Value, Error> {
        json(target, patch.to_string().as_bytes())
    }

    #[test]
    fn recorded_json_patches_give_the_recorded_results() {
        let lease = value!({"metadata": {"labels": {"a": "b"}}, "spec": {"holderIdentity": "a"}});
        let patch = value!([
            {"op": "test", "path": "/spec/holderIdentity", "value": "a"},
            {"op": "replace", "path": "/spec/holderIdentity", "value": "q"},
            {"op": "add", "path": "/metadata/labels/x~1y", "value": "1"},
        ]);
        let patched = apply(lease.clone(), &patch).unwrap();
        assert_eq!(
            patched,
            value!({"metadata": {"labels": {"a": "b", "x/y": "1"}}, "spec": {"holderIdentity": "q"}})
        );
        let failed = apply(patched, &patch).unwrap_err();
        assert_eq!(failed.code(), 422);
        let absent = value!([{"op": "remove", "path": "/spec/absent"}]);
        assert_eq!(apply(lease.clone(), &absent).unwrap_err().code(), 422);
        assert_eq!(
            apply(lease, &value!({"not": "a list"})).unwrap_err().code(),
            400
        );
    }

    #[test]
    fn operations_that_move_long_lists_are_bounded() {
        let list = |length: usize| value!({ "l": vec![0; length] });
        let many = |count: usize| -> Value {
            (0..count)
                .map(|_| value!({"op": "add", "path": "/l/0", "value": 1}))
                .collect()
        };
        assert!(apply(list(1_000), &many(5_000)).is_ok());
        let refused = apply(list(100_000), &many(5_000)).unwrap_err();
        assert_eq!(refused.code(), 413);
        let removed: Value = (0..5_000)
            .map(|_| value!({"op": "remove", "path": "/l/0"}))
            .collect();
        assert_eq!(apply(list(100_000), &removed).unwrap_err().code(), 413);
        let moved: Value = (0..5_000)
            .map(|_| value!({"op": "move", "from": "/l/0", "path": "/l/1"}))
            .collect();
        assert_eq!(apply(list(100_000), &moved).unwrap_err().code(), 413);
    }

    #[test]
    fn every_operation_is_applied() {
        let patch = value!([
            {"op": "add", "path": "/l/-", "value": 3},
            {"op": "add", "path": "/l/0", "value": 0},
            {"op": "move", "from": "/a", "path": "/b"},
            {"op": "copy", "from": "/b", "path": "/c"},
            {"op": "remove", "path": "/l/1"},
        ]);
        let patched = apply(value!({"a": {"x": 1}, "l": [1, 2]}), &patch).unwrap();
        assert_eq!(
            patched,
            value!({"b": {"x": 1}, "c": {"x": 1}, "l": [0, 2, 3]})
        );
    }

    #[test]
    fn invalid_operations_and_documents_are_rejected() {
        for patch in [
            value!([{"op": "jump", "path": "/a"}]),
            value!([{"op": "add", "path": "a", "value": 1}]),
            value!([{"op": "add", "path": "/x/y", "value": 1}]),
            value!([{"op": "add", "path": "/l/9", "value": 1}]),
            value!([{"path": "/a"}]),
        ] {
            assert_eq!(
                apply(value!({"a": 1, "l": []}), &patch).unwrap_err().code(),
                422,
                "{patch}"
            );
        }
        for body in ["", "x", "[1]", "{}", "\"x\"", "null"] {
            assert_eq!(
                json(value!({}), body.as_bytes()).unwrap_err().code(),
                400,
                "{body}"
            );
        }
        let many = vec![value!({"op": "test", "path": "", "value": {}}); MAX_OPERATIONS + 1];
        assert_eq!(
            apply(value!({}), &Value::Array(many)).unwrap_err().code(),
            413
        );
    }

    #[test]
    fn heavy_patches_are_long_or_copy_or_cannot_be_read() {
        let add = value!({"op": "add", "path": "/x", "value": 1});
        let heavy =
            |operations: Vec<Value>| is_heavy(Value::Array(operations).to_string().as_bytes());
        assert!(!heavy(vec![add.clone(); FEW_OPERATIONS]));
        assert!(heavy(vec![add.clone(); FEW_OPERATIONS + 1]));
        for op in ["copy", "move"] {
            let long = value!({"op": op, "from": "/a", "path": "/b"});
            assert!(heavy(vec![add.clone(), long]), "{op}");
        }
        assert!(heavy(vec![add, value!({"path": "/x"})]));
        let twice = br#"[{"op": "add", "op": "copy", "from": "/a", "path": "/b"}]"#;
        assert!(is_heavy(twice));
    }

    #[test]
    fn repeated_copies_and_deep_nesting_are_rejected() {
        let copies = vec![value!({"op": "copy", "from": "", "path": "/x"}); 1000];
        assert_eq!(
            apply(value!({"a": "b"}), &Value::Array(copies))
                .unwrap_err()
                .code(),
            422
        );
        let mut moves = Vec::new();
        for _ in 0..4000 {
            moves.push(value!({"op": "add", "path": "/b", "value": {}}));
            moves.push(value!({"op": "move", "from": "/a", "path": "/b/a"}));
            moves.push(value!({"op": "move", "from": "/b", "path": "/a"}));
        }
        moves.truncate(MAX_OPERATIONS);
        assert_eq!(
            apply(value!({"a": {}}), &Value::Array(moves))
                .unwrap_err()
                .code(),
            422
        );
        let harmless = vec![value!({"op": "move", "from": "/a", "path": "/a"}); 5000];
        assert!(apply(value!({"a": {}}), &Value::Array(harmless)).is_ok());
    }
}
