//! Looks up members of JSON objects.

use serde_json::Value;

/// Returns the value at a JSON pointer. The pointer must not contain escapes or indices, which this crate does not use.
/// `Value::pointer` supports them but copies every segment, and each write looks up dozens of pointers.
pub(crate) fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let mut members = pointer.split('/');
    members.next();
    members.try_fold(object, |value, member| value.as_object()?.get(member))
}

/// Returns the text at a JSON pointer, or an empty text if it is absent.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the list at a JSON pointer, or an empty list if it is absent.
pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    at(object, pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns the entries of the map at a JSON pointer.
pub(crate) fn entries<'a>(
    object: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(object, pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}
