//! The file in memory through which the wrapper moves the deadline of its watchdog.
//!
//! A write to it never waits for the reader, and the reader always finds the newest deadline, regardless of how long it
//! was stopped. A pipe has neither property.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

/// Size of the deadline and its complement, with which the reader detects an incomplete write.
const HEAD: usize = 16;

/// Number of attempts of a reader after an incomplete write.
const TRIES: u32 = 100;

/// A deadline, in nanoseconds of `CLOCK_BOOTTIME`, followed by the [crash release](super::crash_release), and by the
/// command and its arguments.
#[derive(Debug)]
pub(super) struct FenceFile(File);

impl FenceFile {
    /// Creates the file. It contains the command, because the arguments of the watchdog's own process are public. A
    /// tool that kills processes by the name of the command must not kill the watchdog too. `release` contains no NUL.
    pub(super) fn create(deadline: u64, release: &str, argv: &[OsString]) -> io::Result<Self> {
        let file = Self(memfd_create("tenure-fence", MemfdFlags::CLOEXEC)?.into());
        file.write(deadline)?;
        let argv = argv.iter().map(|word| word.as_bytes());
        let words: Vec<&[u8]> = [release.as_bytes()].into_iter().chain(argv).collect();
        file.0.write_all_at(&words.join(&0), HEAD as u64)?;
        Ok(file)
    }

    /// Moves the deadline.
    pub(super) fn write(&self, deadline: u64) -> io::Result<()> {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&deadline.to_le_bytes());
        head[8..].copy_from_slice(&(!deadline).to_le_bytes());
        self.0.write_all_at(&head, 0)
    }

    /// Returns the deadline.
    pub(super) fn read(&self) -> io::Result<u64> {
        for _ in 0..TRIES {
            let (mut deadline, mut complement) = ([0; 8], [0; 8]);
            self.0.read_exact_at(&mut deadline, 0)?;
            self.0.read_exact_at(&mut complement, 8)?;
            let deadline = u64::from_le_bytes(deadline);
            if deadline == !u64::from_le_bytes(complement) {
                return Ok(deadline);
            }
            std::thread::yield_now();
        }
        Err(io::Error::other("the deadline is damaged"))
    }

    /// Returns the crash release, and the command with its arguments.
    pub(super) fn words(&self) -> io::Result<(OsString, Vec<OsString>)> {
        let length = usize::try_from(self.0.metadata()?.len()).unwrap_or(HEAD);
        let mut text = vec![0; length.saturating_sub(HEAD)];
        self.0.read_exact_at(&mut text, HEAD as u64)?;
        let words = text.split(|byte| *byte == 0);
        let mut words = words.map(|word| OsStr::from_bytes(word).to_owned());
        let release = words.next().unwrap_or_default();
        Ok((release, words.collect()))
    }
}

impl From<OwnedFd> for FenceFile {
    fn from(file: OwnedFd) -> Self {
        Self(file.into())
    }
}

impl AsFd for FenceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn newest_deadline_and_all_words_are_read() {
        let words = ["sh", "-c", "", "x y"].map(OsString::from);
        let file = FenceFile::create(7, "{}", &words).unwrap();
        let other = FenceFile::from(file.as_fd().try_clone_to_owned().unwrap());
        for deadline in 0..10_000 {
            file.write(deadline).unwrap();
        }
        assert_eq!(other.read().unwrap(), 9_999);
        assert_eq!(other.words().unwrap(), ("{}".into(), words.to_vec()));
        let odd = [OsString::from_vec(vec![0xff, 0xfe])];
        let file = FenceFile::create(u64::MAX, "", &odd).unwrap();
        assert_eq!(file.words().unwrap(), (OsString::new(), odd.to_vec()));
        assert_eq!(file.read().unwrap(), u64::MAX);
    }

    #[test]
    fn half_a_write_is_an_error() {
        let file = FenceFile::create(7, "", &[]).unwrap();
        file.0.write_all_at(&[9], 0).unwrap();
        assert!(file.read().is_err());
    }
}
