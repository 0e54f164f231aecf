//! Scalars and the types that are a message on the wire but a single value in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

use super::Error;
use super::wire::{Fields, Payload};
use crate::schema::Type;
use crate::timestamp;

/// Converts one leaf to JSON.
pub(super) fn scalar(ty: &Type, payload: Payload<'_>) -> Result<Value, Error> {
    Ok(match ty {
        Type::String => Value::from(payload.text()?),
        Type::Bool => Value::Bool(payload.number()? != 0),
        Type::Int32 => Value::from(low_half(payload.number()?)),
        Type::Int64 => Value::from(payload.number()?),
        Type::Float64 => Number::from_f64(payload.float()?).map_or(Value::Null, Value::Number),
        Type::Bytes => Value::String(STANDARD.encode(payload.bytes()?)),
        Type::Time => time(payload.bytes()?, |seconds, _| {
            timestamp::format_seconds(seconds)
        })?,
        Type::MicroTime => time(payload.bytes()?, timestamp::format_micros)?,
        Type::Quantity => quantity(payload.bytes()?)?,
        Type::IntOrString => int_or_string(payload.bytes()?)?,
        Type::Raw | Type::FieldsV1 | Type::Json => raw(payload.bytes()?)?,
        _ => return Err(Error::WireType),
    })
}

/// Returns the numbers of a packed list.
pub(super) fn packed(bytes: &[u8]) -> Result<Vec<u64>, Error> {
    let mut numbers = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = rest
            .iter()
            .position(|&b| b < 0x80)
            .ok_or(Error::Truncated)?
            + 1;
        let (one, tail) = rest.split_at(length);
        // Prepends an artificial tag, so that the only varint reader can be used.
        let mut tagged = vec![0x08];
        tagged.extend_from_slice(one);
        if let Some((_, Payload::Varint(number))) = Fields::new(&tagged).next()? {
            numbers.push(number);
        }
        rest = tail;
    }
    Ok(numbers)
}

/// Parses JSON text inside a message.
pub(super) fn json(bytes: &[u8]) -> Result<Value, Error> {
    crate::strict::decode(None, bytes)
        .map(|decoded| decoded.value)
        .map_err(|error| Error::Json(error.to_string()))
}

/// Truncates an integer that is too long for its field, as Go does.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the wire carries 32-bit numbers as 64 bits"
)]
fn low_half(number: i64) -> i32 {
    number as i32
}

/// {1: seconds, 2: nanos}; an empty message is an absent time.
fn time(bytes: &[u8], format: fn(i64, i32) -> Option<String>) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => seconds = payload.number()?,
            2 => nanos = low_half(payload.number()?),
            _ => {}
        }
    }
    let text = format(seconds, nanos).ok_or_else(|| {
        Error::Value(crate::canonical::Error::Text(format!(
            "time out of range: {seconds} seconds"
        )))
    })?;
    Ok(Value::String(text))
}

/// {1: text}; an absent text is zero.
fn quantity(bytes: &[u8]) -> Result<Value, Error> {
    let mut text = "";
    let mut fields = Fields::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            text = payload.text()?;
        }
    }
    Ok(Value::from(if text.is_empty() { "0" } else { text }))
}

/// {1: type, 2: number, 3: text}.
fn int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let (mut which, mut number, mut text) = (0, 0, "");
    let mut fields = Fields::new(bytes);
    while let Some((field, payload)) = fields.next()? {
        match field {
            1 => which = payload.number()?,
            2 => number = low_half(payload.number()?),
            3 => text = payload.text()?,
            _ => {}
        }
    }
    Ok(if which == 0 {
        Value::from(number)
    } else {
        Value::from(text)
    })
}

/// {1: JSON text}; an absent text is null.
fn raw(bytes: &[u8]) -> Result<Value, Error> {
    let mut text: &[u8] = b"";
    let mut fields = Fields::new(bytes);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            text = payload.bytes()?;
        }
    }
    if text.is_empty() {
        Ok(Value::Null)
    } else {
        json(text)
    }
}
