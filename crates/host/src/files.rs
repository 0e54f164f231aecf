//! Files with secrets: checks of their owner and mode, and atomic writes.
//!
//! The rule is that of sshd's `StrictModes`, also for root. A secret belongs to the user of the process or to root, and other
//! users can neither read nor change it. Volumes of Kubernetes are the exception: their files belong to root. The group of
//! the pod (`fsGroup`) can read them, or all users of the pod if the volume has no `defaultMode`.
//!
//! Errors have the kind [`PermissionDenied`](ErrorKind::PermissionDenied) and contain the command that corrects the file.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Maximum size of a file with secrets.
const MAX_BYTES: u64 = 16 << 20;

/// Maximum number of attempts to find a temporary name that does not exist.
const ATTEMPTS: u32 = 8;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const OTHERS: u32 = 0o007;
const GROUP_OR_OTHERS: u32 = 0o077;
const SETGID: u32 = 0o2000;

/// Owner and mode of a file, and whether the exception for volumes applies.
#[derive(Clone, Copy, Debug)]
struct Facts {
    owner: u32,
    mode: u32,
    /// The folder has the layout of a volume of Kubernetes and belongs to root.
    in_volume: bool,
}

/// The problem with the owner or mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Owner,
    Writable,
    Readable,
}

/// Checks a file for the user `me`.
fn fault(facts: Facts, me: u32, secret: bool) -> Option<Fault> {
    let Facts {
        owner,
        mode,
        in_volume,
    } = facts;
    if owner != me && owner != 0 {
        return Some(Fault::Owner);
    }
    if mode & (GROUP_WRITES | OTHERS_WRITE) != 0 {
        return Some(Fault::Writable);
    }
    if !secret || mode & GROUP_OR_OTHERS == 0 || (owner == 0 && in_volume) {
        return None;
    }
    // The group is the only way for another user than root to read a file of root.
    let for_group = owner == 0 && me != 0 && mode & OTHERS == 0;
    (!for_group).then_some(Fault::Readable)
}

/// Reads a text file that a user wrote and that must be secret.
///
/// # Errors
/// Returns an error if the file cannot be read, belongs to another user, or if other users can read or change it.
pub fn read_secret(path: &Path) -> io::Result<String> {
    read_checked(path, |_| true)
}

/// Reads a text file that other users must not change, and that is secret if `is_secret` says so.
///
/// # Errors
/// Returns an error if the file cannot be read, belongs to another user, or if other users have too much access.
pub fn read_checked(path: &Path, is_secret: impl FnOnce(&str) -> bool) -> io::Result<String> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    let text = text_of(file)?;
    // A pipe, for example of a shell's `<(...)`, has no name that others could open.
    if !found.is_file() {
        return Ok(text);
    }
    let facts = Facts {
        owner: found.uid(),
        mode: found.mode(),
        in_volume: is_in_volume(path),
    };
    match fault(facts, me(), is_secret(&text)) {
        None => Ok(text),
        Some(fault) => Err(denied(path, facts, fault, "600")),
    }
}

/// Reads a text file that this program wrote. If other users have access although the file belongs to the user of this
/// process, removes that access and logs it.
///
/// # Errors
/// Returns an error if the file cannot be read or belongs to another user.
pub fn read_own(path: &Path) -> io::Result<String> {
    let file = open(path)?;
    tighten_open(path, &file)?;
    text_of(file)
}

/// Removes the access of other users to a file that this program wrote. Returns no error if the file does not exist.
///
/// # Errors
/// Returns an error if the file belongs to another user, or its mode cannot be changed.
pub fn tighten(path: &Path) -> io::Result<()> {
    match open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        opened => tighten_open(path, &opened?),
    }
}

fn tighten_open(path: &Path, file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    let facts = Facts {
        owner: found.uid(),
        mode: found.mode(),
        in_volume: is_in_volume(path),
    };
    match fault(facts, me(), true).filter(|_| found.is_file()) {
        None => Ok(()),
        Some(Fault::Owner) => Err(denied(path, facts, Fault::Owner, "600")),
        Some(_) if facts.owner == me() => {
            rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
            log_change(path, found.mode(), "600");
            Ok(())
        }
        Some(fault) => Err(denied(path, facts, fault, "600")),
    }
}

/// Creates a folder and its parents for this user only, or checks an existing one. Removes the access of other users to a
/// folder of this user and logs it.
///
/// # Errors
/// Returns an error if the folder cannot be created, belongs to another user, or if other users may have put files there.
pub fn claim_folder(path: &Path) -> io::Result<()> {
    create_folder(path)?;
    let found = std::fs::metadata(path)?;
    let Some(fault) = folder_fault(found.uid(), found.mode(), me()) else {
        if found.uid() == me() && found.mode() & GROUP_OR_OTHERS != 0 {
            set_private(path, found.mode())?;
        }
        return Ok(());
    };
    // An empty folder contains no file of another user, so it is safe to correct its mode.
    let own = fault == Fault::Writable && found.uid() == me();
    if own && std::fs::read_dir(path)?.next().is_none() {
        return set_private(path, found.mode());
    }
    Err(folder_denied(path, &found, fault))
}

/// Checks an existing folder whose files this process trusts. A folder that does not exist is not an error.
///
/// # Errors
/// Returns an error if the folder belongs to another user, or if others can create files in it.
pub fn check_folder(path: &Path) -> io::Result<()> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    match folder_fault(found.uid(), found.mode(), me()) {
        None => Ok(()),
        Some(fault) => Err(folder_denied(path, &found, fault)),
    }
}

/// Checks a folder for the user `me`. Members of the group may write to two kinds of folders:
///
/// - a volume of Kubernetes, which belongs to root and has the setgid bit;
/// - a folder of this user, because its mode can be corrected.
fn folder_fault(owner: u32, mode: u32, me: u32) -> Option<Fault> {
    if owner != me && owner != 0 {
        return Some(Fault::Owner);
    }
    let for_group = owner == me || mode & SETGID != 0;
    let writable = mode & OTHERS_WRITE != 0 || (mode & GROUP_WRITES != 0 && !for_group);
    writable.then_some(Fault::Writable)
}

/// Creates a folder and its parents with access for this user only. An existing folder is not changed.
///
/// # Errors
/// Returns an error if the folder cannot be created.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a file with this mode. An existing file or link is an error.
///
/// # Errors
/// Returns an error if the file cannot be created or exists.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    options
        .write(true)
        .create_new(true)
        .mode(mode)
        .custom_flags(flags);
    options.open(path)
}

/// A new file with a random name in the folder of its target. [`place`](Self::place) replaces the target with it. Dropping
/// it before that removes it.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    part: PathBuf,
    target: PathBuf,
    placed: bool,
}

impl Replacement {
    /// Creates the file with this mode. If the path of the target or of the new file is a symbolic link, the link is not
    /// followed.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn create(target: &Path, mode: u32) -> io::Result<Self> {
        let mut attempt = 1;
        loop {
            let random = RandomState::new().build_hasher().finish();
            let mut name = target.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{random:016x}.part"));
            let part = target.with_file_name(name);
            match create(&part, mode) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                created => {
                    return Ok(Self {
                        file: created?,
                        part,
                        target: target.to_owned(),
                        placed: false,
                    });
                }
            }
        }
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Replaces the target with the file.
    ///
    /// # Errors
    /// Returns an error if the target cannot be replaced.
    pub fn place(mut self) -> io::Result<()> {
        std::fs::rename(&self.part, &self.target)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.placed {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

/// Replaces a file in one step, so that readers never see a part of it.
///
/// # Errors
/// Returns an error if the file cannot be written. Nothing is left behind.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut new = Replacement::create(path, mode)?;
    new.file().write_all(content)?;
    new.place()
}

/// Like [`replace`], but the content survives a power failure.
///
/// # Errors
/// Returns an error if the file cannot be written. Nothing is left behind.
pub fn replace_durably(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut new = Replacement::create(path, mode)?;
    new.file().write_all(content)?;
    new.file().sync_all()?;
    new.place()
}

/// Returns a warning if other users can read or change this file. For files such as a kubeconfig, which other programs
/// use despite loose permissions.
#[must_use]
pub fn warning(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let facts = Facts {
        owner: found.uid(),
        mode: found.mode(),
        in_volume: is_in_volume(path),
    };
    // The owner is not checked, because root uses the files of other users on purpose.
    let fault = fault(facts, me(), true).filter(|fault| *fault != Fault::Owner)?;
    Some(format!(
        "{}: {}",
        path.display(),
        describe(path, facts, fault, "600")
    ))
}

fn open(path: &Path) -> io::Result<File> {
    // Another user may have replaced the file by a named pipe. Opening it must not wait for a writer.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(path)
}

fn text_of(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        let why = format!("the file is larger than {} MiB", MAX_BYTES >> 20);
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(text)
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns whether the folder of a file has the layout of a Secret, ConfigMap or projected volume: files are links into the
/// folder that the link `..data` names, and everything belongs to root.
fn is_in_volume(path: &Path) -> bool {
    let Some(folder) = path.parent() else {
        return false;
    };
    let is_roots =
        |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == 0);
    let link = folder.join("..data");
    is_roots(folder) && is_roots(&link) && link.is_symlink() && path.is_symlink()
}

fn set_private(path: &Path, old: u32) -> io::Result<()> {
    rustix::fs::chmod(path, Mode::RWXU)?;
    log_change(path, old, "700");
    Ok(())
}

fn log_change(path: &Path, old: u32, new: &'static str) {
    let (path, old) = (path.display(), format!("{:o}", old & 0o7777));
    tracing::warn!(%path, old, new, "removed the access of other users");
}

fn describe(path: &Path, facts: Facts, fault: Fault, mode: &str) -> String {
    let (me, name) = (me(), quoted(path));
    let access = match fault {
        Fault::Owner => {
            let owner = facts.owner;
            return format!(
                "it belongs to user {owner}, and this process runs as user {me}; run `chown {me} {name}`"
            );
        }
        Fault::Writable => "change",
        Fault::Readable => "read",
    };
    let own = if facts.owner == me {
        String::new()
    } else {
        format!("chown {me} {name} && ")
    };
    format!("other users can {access} it; run `{own}chmod {mode} {name}`")
}

fn denied(path: &Path, facts: Facts, fault: Fault, mode: &str) -> io::Error {
    let why = describe(path, facts, fault, mode);
    io::Error::new(ErrorKind::PermissionDenied, why)
}

fn folder_denied(path: &Path, found: &Metadata, fault: Fault) -> io::Error {
    let facts = Facts {
        owner: found.uid(),
        mode: found.mode(),
        in_volume: false,
    };
    let mut why = describe(path, facts, fault, "700");
    if fault == Fault::Writable {
        why += ", or choose a folder in it";
    }
    io::Error::new(ErrorKind::PermissionDenied, why)
}

/// Returns a path quoted as one word for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const ME: u32 = 1000;

    fn file(owner: u32, mode: u32) -> Facts {
        Facts {
            owner,
            mode: 0o100_000 | mode,
            in_volume: false,
        }
    }

    #[test]
    fn secret_must_belong_to_its_reader_or_root_and_be_private() {
        let cases = [
            (ME, 0o600, None),
            (ME, 0o400, None),
            (ME, 0o640, Some(Fault::Readable)),
            (ME, 0o604, Some(Fault::Readable)),
            (ME, 0o620, Some(Fault::Writable)),
            (ME, 0o602, Some(Fault::Writable)),
            (0, 0o600, None),
            (0, 0o440, None),
            (0, 0o640, None),
            (0, 0o644, Some(Fault::Readable)),
            (0, 0o660, Some(Fault::Writable)),
            (7, 0o600, Some(Fault::Owner)),
        ];
        for (owner, mode, wanted) in cases {
            assert_eq!(
                fault(file(owner, mode), ME, true),
                wanted,
                "{owner} {mode:o}"
            );
        }
        assert_eq!(
            fault(file(7, 0o600), 0, true),
            Some(Fault::Owner),
            "root too"
        );
        assert_eq!(fault(file(0, 0o640), 0, true), Some(Fault::Readable));
        assert_eq!(fault(file(ME, 0o644), ME, false), None, "it is not secret");
        assert_eq!(fault(file(ME, 0o666), ME, false), Some(Fault::Writable));
    }

    #[test]
    fn volumes_of_kubernetes_may_be_readable_but_not_writable() {
        for (me, mode, wanted) in [
            (ME, 0o644, None),
            (0, 0o644, None),
            (0, 0o440, None),
            (ME, 0o646, Some(Fault::Writable)),
        ] {
            let facts = Facts {
                in_volume: true,
                ..file(0, mode)
            };
            assert_eq!(fault(facts, me, true), wanted, "{me} {mode:o}");
        }
    }

    #[test]
    fn folder_must_belong_to_its_user_or_be_a_kubernetes_volume() {
        for (owner, mode, wanted) in [
            (ME, 0o700, None),
            (ME, 0o755, None),
            (ME, 0o775, None),
            (ME, 0o777, Some(Fault::Writable)),
            (ME, 0o1777, Some(Fault::Writable)),
            (0, 0o755, None),
            (0, 0o2775, None),
            (0, 0o2770, None),
            (0, 0o775, Some(Fault::Writable)),
            (0, 0o2777, Some(Fault::Writable)),
            (7, 0o700, Some(Fault::Owner)),
        ] {
            let found = folder_fault(owner, 0o040_000 | mode, ME);
            assert_eq!(found, wanted, "{owner} {mode:o}");
        }
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn loose_secret_is_refused_with_the_command_that_corrects_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's a token");
        fs::write(&path, "secret").unwrap();
        set(&path, 0o644);
        let error = read_secret(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        let text = error.to_string();
        let command = text.split('`').nth(1).unwrap();
        assert!(command.starts_with("chmod 600 '"), "{text}");
        assert!(warning(&path).is_some_and(|text| text.contains(command)));
        let mut shell = std::process::Command::new("sh");
        assert!(shell.args(["-c", command]).status().unwrap().success());
        assert_eq!(read_secret(&path).unwrap(), "secret");
        assert_eq!(warning(&path), None);
        set(&path, 0o644);
        assert_eq!(read_checked(&path, |_| false).unwrap(), "secret");
        set(&path, 0o666);
        let error = read_checked(&path, |_| false).unwrap_err().to_string();
        assert!(error.contains("other users can change it"), "{error}");
    }

    #[test]
    fn own_files_and_folders_are_corrected() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("data/inner");
        claim_folder(&folder).unwrap();
        assert_eq!(
            (mode(&folder), mode(&temp.path().join("data"))),
            (0o700, 0o700)
        );
        let path = folder.join("token");
        assert!(tighten(&path).is_ok(), "it does not exist");
        assert_eq!(read_own(&path).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&path, "secret").unwrap();
        set(&path, 0o664);
        assert_eq!(read_own(&path).unwrap(), "secret");
        assert_eq!(mode(&path), 0o600);
        set(&folder, 0o775);
        claim_folder(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
    }

    #[test]
    fn world_writable_folder_is_rejected_unless_it_is_empty() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("data");
        fs::create_dir(&folder).unwrap();
        set(&folder, 0o777);
        assert!(check_folder(&folder).is_err());
        claim_folder(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        fs::write(folder.join("planted"), "").unwrap();
        set(&folder, 0o1777);
        for error in [claim_folder(&folder), check_folder(&folder)] {
            let text = error.unwrap_err().to_string();
            assert!(
                text.contains("other users can change it; run `chmod 700 "),
                "{text}"
            );
            assert!(text.ends_with("or choose a folder in it"), "{text}");
        }
        assert!(check_folder(&temp.path().join("none")).is_ok());
    }

    #[test]
    fn replacement_does_not_follow_links_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("file"));
        fs::write(&victim, "mine").unwrap();
        symlink(&victim, &path).unwrap();
        assert!(create(&path, 0o600).is_err());
        replace(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(mode(&path), 0o600);
        replace_durably(&path, b"newer", 0o600).unwrap();
        let part = Replacement::create(&path, 0o600).unwrap();
        assert_eq!(mode(&part.part), 0o600);
        assert_ne!(part.part, Replacement::create(&path, 0o600).unwrap().part);
        drop(part);
        fs::create_dir_all(folder.path().join("full/inner")).unwrap();
        assert!(replace(&folder.path().join("full"), b"", 0o600).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn volume_layout_is_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("..2026_01");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("token"), "secret").unwrap();
        symlink("..2026_01", folder.path().join("..data")).unwrap();
        let path = folder.path().join("token");
        symlink("..data/token", &path).unwrap();
        assert_eq!(is_in_volume(&path), me() == 0, "it belongs to root");
        assert!(!is_in_volume(&inner.join("token")));
    }
}
