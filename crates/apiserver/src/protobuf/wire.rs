//! The protobuf wire format: tags, varints, lengths. Every read is bounds-checked.

use super::Error;

/// The payload of a tag.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// Returns the bytes of a string, bytes or message field.
    pub(super) fn bytes(self) -> Result<&'a [u8], Error> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::WireType),
        }
    }

    /// Returns a whole number; negative ones are two's complement.
    pub(super) fn number(self) -> Result<i64, Error> {
        match self {
            Self::Varint(number) => Ok(number.cast_signed()),
            _ => Err(Error::WireType),
        }
    }

    /// Returns a double.
    pub(super) fn float(self) -> Result<f64, Error> {
        match self {
            Self::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(Error::WireType),
        }
    }

    /// Returns a text.
    pub(super) fn text(self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::Utf8)
    }
}

/// Iterates over the fields of a message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the number and payload of the next field, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Payload<'a>)>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Error::Tag)?;
        if number == 0 {
            return Err(Error::Tag);
        }
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => Payload::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Error::Truncated)?;
                Payload::Bytes(self.take(length)?)
            }
            5 => Payload::Fixed32(u32::from_le_bytes(self.array()?)),
            // The API does not use groups, so their wire types are rejected like invalid ones.
            _ => return Err(Error::Tag),
        };
        Ok(Some((number, payload)))
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for (at, &byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                if at == 9 && byte > 1 {
                    return Err(Error::Varint);
                }
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < 10 {
            Error::Truncated
        } else {
            Error::Varint
        })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (head, tail) = self.rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(Error::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u32, Payload<'_>)>, Error> {
        let mut fields = Fields::new(bytes);
        let mut found = Vec::new();
        while let Some(field) = fields.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn every_wire_type_is_decoded() {
        let bytes = [
            0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0,
        ];
        let expected = [
            (1, Payload::Varint(150)),
            (2, Payload::Bytes(b"hi")),
            (3, Payload::Fixed32(1)),
            (4, Payload::Fixed64(2)),
        ];
        assert_eq!(all(&bytes).unwrap(), expected);
    }

    #[test]
    fn negative_numbers_take_ten_bytes() {
        let mut bytes = vec![0x08];
        bytes.extend([0xff; 9]);
        bytes.push(1);
        assert_eq!(all(&bytes).unwrap()[0].1.number(), Ok(-1));
        bytes[10] = 2;
        assert_eq!(all(&bytes), Err(Error::Varint));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        assert_eq!(all(&[0x80]), Err(Error::Truncated));
        assert_eq!(all(&[0x12, 5, 1]), Err(Error::Truncated));
        assert_eq!(
            all(&[
                0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1
            ]),
            Err(Error::Truncated)
        );
        assert_eq!(all(&[0x00]), Err(Error::Tag));
        assert_eq!(all(&[0x0b]), Err(Error::Tag));
        assert_eq!(all(&[0xff; 11]), Err(Error::Varint));
        assert_eq!(all(&[0x1d, 1]), Err(Error::Truncated));
    }
}
