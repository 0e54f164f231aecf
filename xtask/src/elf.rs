//! The headers of a 64-bit little-endian ELF program: its loader and libraries, and its memory protection.

/// Types of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const STACK: u32 = 0x6474_e551;
const RELRO: u32 = 0x6474_e552;

/// Permissions of a segment.
const EXECUTE: u32 = 1;
const WRITE: u32 = 2;

/// Tags of dynamic entries, and their flags.
const NEEDED: u64 = 1;
const BIND_NOW: u64 = 24;
const FLAGS: u64 = 30;
const FLAGS_1: u64 = 0x6fff_fffb;
const FLAGS_BIND_NOW: u64 = 8;
const FLAGS_1_NOW: u64 = 1;

/// The type of position-independent programs and of libraries.
const SHARED: u16 = 3;

/// The parts of the headers that are checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Number of loaders and libraries.
    pub(crate) needs: usize,
    position_independent: bool,
    relro: bool,
    bind_now: bool,
    plain_stack: bool,
    writable_code: bool,
}

impl Elf {
    /// Returns `None` if the bytes are not a complete 64-bit little-endian ELF file.
    pub(crate) fn parse(elf: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(elf.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(elf.get(at..at + 8)?.try_into().ok()?));
        let place = |at: usize| usize::try_from(long(at)?).ok();
        if elf.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let (table, size, count) = (place(0x20)?, usize::from(half(0x36)?), half(0x38)?);
        let mut found = Self {
            position_independent: half(0x10)? == SHARED,
            ..Self::default()
        };
        for n in 0..usize::from(count) {
            let header = table + n * size;
            let flags = word(header + 0x04)?;
            match word(header)? {
                INTERPRETER => found.needs += 1,
                RELRO => found.relro = true,
                STACK => found.plain_stack = flags & EXECUTE == 0,
                LOAD => found.writable_code |= flags & (WRITE | EXECUTE) == WRITE | EXECUTE,
                DYNAMIC => {
                    let (start, length) = (place(header + 0x08)?, place(header + 0x20)?);
                    for entry in (start..start + length).step_by(16) {
                        let value = long(entry + 8)?;
                        match long(entry)? {
                            NEEDED => found.needs += 1,
                            BIND_NOW => found.bind_now = true,
                            FLAGS => found.bind_now |= value & FLAGS_BIND_NOW != 0,
                            FLAGS_1 => found.bind_now |= value & FLAGS_1_NOW != 0,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// Returns the missing protections against exploits of a memory error.
    pub(crate) fn missing_protection(&self) -> Vec<&'static str> {
        let checks = [
            (self.position_independent, "its address is not random"),
            (self.relro, "its relocated data stay writable"),
            (self.bind_now, "its functions are bound late"),
            (self.plain_stack, "its stack is executable"),
            (!self.writable_code, "it has code that is writable"),
        ];
        let missing = checks.into_iter().filter(|(done, _)| !done);
        missing.map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// Returns the offset of the program header of this type.
    fn header(elf: &[u8], kind: u32) -> usize {
        let table = usize::try_from(u64::from_le_bytes(elf[0x20..0x28].try_into().unwrap()));
        let headers = (0..usize::from(elf[0x38])).map(|n| table.unwrap() + n * 56);
        let mut headers = headers.filter(|at| elf[*at..*at + 4] == kind.to_le_bytes());
        headers.next().unwrap()
    }

    #[test]
    fn dynamic_program_needs_a_loader_and_text_is_not_parsed() {
        // Test programs are linked dynamically, with at least a loader and libc.
        let own = own();
        assert!(Elf::parse(&own).unwrap().needs >= 2);
        assert_eq!(Elf::parse(b"#!/bin/sh\n"), None);
        assert_eq!(Elf::parse(&own[..100]), None, "cut off");
    }

    #[test]
    fn missing_protection_of_a_program_is_named() {
        let own = own();
        let missing = |elf: &[u8]| Elf::parse(elf).unwrap().missing_protection();
        assert_eq!(missing(&own), Vec::<&str>::new());
        let mut fixed = own.clone();
        fixed[0x10] = 2;
        assert_eq!(missing(&fixed), ["its address is not random"]);
        let mut stack = own.clone();
        stack[header(&own, STACK) + 4] = 7;
        assert_eq!(missing(&stack), ["its stack is executable"]);
        let mut data = own.clone();
        data[header(&own, RELRO)] = 0;
        assert_eq!(missing(&data), ["its relocated data stay writable"]);
        let mut late = own.clone();
        late[header(&own, DYNAMIC)] = 0;
        assert_eq!(missing(&late), ["its functions are bound late"]);
        let mut code = own.clone();
        code[header(&own, LOAD) + 4] = 7;
        assert_eq!(missing(&code), ["it has code that is writable"]);
    }
}
