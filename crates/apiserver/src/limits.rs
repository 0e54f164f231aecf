//! How large a decoded body may become, whatever its format.
//!
//! The size of a body is bounded by the HTTP layer; these bounds keep a short body from growing far
//! beyond that when it is decoded, filled in or patched, and keep every stored object readable.

use serde_json::Value;

/// Values in one body, counting fields and list elements.
pub const MAX_VALUES: usize = 200_000;

/// Levels of nesting. The JSON reader stops at 128, so what is stored stays well below.
pub const MAX_DEPTH: usize = 100;

/// How deeply an object with its owners of fields may nest. The reader of JSON ends at 128.
pub const MAX_STORED_DEPTH: usize = 120;

/// Bytes of a stored object, as many as etcd takes in a request unless it is told otherwise.
pub const MAX_STORED_BYTES: usize = 3 << 19;

/// The levels of nesting of a value; a scalar has none.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
