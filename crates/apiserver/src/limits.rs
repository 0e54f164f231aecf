//! Size limits of decoded bodies, for all formats.
//!
//! The HTTP layer limits the size of a body. These limits prevent a short body from growing far beyond that when it is
//! decoded, defaulted or patched. They also ensure that every stored object can be parsed again.

use serde_json::Value;

/// Maximum size of a request body in bytes.
pub const MAX_BODY: usize = 3 << 20;

/// Maximum number of values in one body, counting fields and list elements.
pub const MAX_VALUES: usize = 200_000;

/// Maximum nesting of a body. The JSON parser stops at 128, so stored objects stay well below.
pub const MAX_DEPTH: usize = 100;

/// Maximum nesting of an object including its managed fields. The JSON parser stops at 128.
pub const MAX_STORED_DEPTH: usize = 120;

/// Maximum size of a stored object in bytes: the default limit of a request to etcd.
pub const MAX_STORED_BYTES: usize = 3 << 19;

/// Returns the levels of nesting of a value; a scalar has none.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
