//! The files of a folder, with limits on their number, depth and size.
//!
//! Names that begin with a dot are ignored. A symbolic link is followed only if its target is inside the same folder.
//! This is true for the links of a mounted ConfigMap or Secret (`x.yaml` -> `..data/x.yaml`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Maximum number of files in one folder.
pub(super) const MAX_FILES: usize = 2_000;

/// Maximum number of names in one folder and its subfolders, including files of other types.
const MAX_NAMES: usize = 20_000;

/// Maximum depth of subfolders.
const MAX_DEPTH: usize = 8;

/// Maximum size of one file in bytes.
pub(super) const MAX_BYTES: u64 = 8 << 20;

/// Suffix of a file that disables the file of the same name without the suffix.
const SKIP: &str = ".skip";

/// A folder whose files are applied.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    /// Name of the folder in inventories, which is the same after a restart.
    pub(crate) source: String,
    pub(crate) path: PathBuf,
}

/// Content of a folder at one moment.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Device and number of the folder, which change when something is mounted on it or unmounted from it.
    pub(super) root: (u64, u64),
    /// Whether the folder has no entries, like a mount point without a mount.
    pub(super) empty: bool,
    /// The files to apply, by their path in the folder.
    pub(super) files: BTreeMap<String, Stamp>,
    /// Paths with a `.skip` file next to them, whether they exist or not.
    pub(super) skipped: BTreeSet<String>,
    /// Paths of entries that cannot be used.
    pub(super) unusable: BTreeSet<String>,
    /// Reason for each unusable path.
    pub(super) problems: Vec<String>,
}

/// Properties of a file that change when its content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        Self {
            place: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Reason why one file was not read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The file no longer exists.
    Gone,
    /// The file was written while it was read.
    Changing,
    /// The file could not be read this time.
    Temporary(String),
    /// The file cannot be used.
    Unusable(String),
}

impl Folder {
    /// Lists the files. Returns `None` if the folder does not exist.
    ///
    /// # Errors
    /// Returns the reason if the content of the folder is not completely known.
    pub(super) fn list(&self) -> Result<Option<Listing>, String> {
        let root = match fs::canonicalize(&self.path) {
            Ok(root) => root,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut walk = Walk {
            root: &root,
            names: 0,
            trail: vec![root.clone()],
            listing: Listing::default(),
        };
        walk.folder(&root, "")?;
        let empty = walk.names == 0;
        let mut listing = walk.listing;
        let metadata = fs::metadata(&root).map_err(|error| error.to_string())?;
        listing.root = (metadata.dev(), metadata.ino());
        listing.empty = empty;
        listing
            .files
            .retain(|path, _| !listing.skipped.contains(path));
        Ok(Some(listing))
    }

    /// Reads one file of a listing. Also returns its properties, so that the caller can detect a change.
    pub(super) fn read(&self, path: &str) -> Result<(Vec<u8>, Stamp), ReadError> {
        let root = fs::canonicalize(&self.path)?;
        let target = fs::canonicalize(root.join(path))?;
        if !target.starts_with(&root) {
            return Err(ReadError::Unusable(OUTSIDE.to_owned()));
        }
        // The path had no links when it was listed. If a link or a pipe has replaced the file since, the flags keep it
        // from being opened or waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&target, flags, Mode::empty());
        let file = File::from(file.map_err(std::io::Error::from)?);
        let before = file.metadata()?;
        if !before.is_file() {
            return Err(ReadError::Unusable(IRREGULAR.to_owned()));
        }
        let mut bytes = Vec::new();
        let read = (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes);
        if read? as u64 > MAX_BYTES {
            return Err(ReadError::Unusable(format!(
                "the file is larger than {MAX_BYTES} bytes; split it"
            )));
        }
        let stamp = Stamp::new(&before);
        if stamp != Stamp::new(&file.metadata()?) {
            return Err(ReadError::Changing);
        }
        Ok((bytes, stamp))
    }
}

/// Classifies a read error by whether a retry can succeed.
impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> Self {
        let why = format!("cannot read the file: {error}");
        match error.kind() {
            ErrorKind::NotFound => Self::Gone,
            // Changed permissions count as a change of the file, which causes another attempt.
            ErrorKind::PermissionDenied => Self::Unusable(why),
            _ => Self::Temporary(why),
        }
    }
}

const IRREGULAR: &str = "it is not a regular file";
const OUTSIDE: &str = "the symbolic link points outside the folder; copy the file into the folder";

/// State of a scan of one folder.
struct Walk<'a> {
    root: &'a Path,
    names: usize,
    /// The folders from the root to the current one, so that a link to one of them is not followed.
    trail: Vec<PathBuf>,
    listing: Listing,
}

impl Walk<'_> {
    /// Scans a folder whose path has no links.
    fn folder(&mut self, folder: &Path, below: &str) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            self.names += 1;
            if self.names > MAX_NAMES {
                return Err(format!("more than {MAX_NAMES} names; use a smaller folder"));
            }
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                let name = name.to_string_lossy();
                self.problem(below, &name, "the name is not UTF-8; rename the file");
                continue;
            };
            if !name.starts_with('.') {
                self.entry(&folder.join(name), below, name)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, below: &str, name: &str) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            // The file was removed in the meantime, or is a dangling link. Both count as no file.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let relative = format!("{below}{name}");
        if !target.starts_with(self.root) {
            self.problem(below, name, OUTSIDE);
            return Ok(());
        }
        let metadata = match fs::symlink_metadata(&target) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        if metadata.is_dir() {
            if self.trail.contains(&target) {
                return Ok(());
            }
            if self.trail.len() > MAX_DEPTH {
                let why = format!("more than {MAX_DEPTH} levels of folders; move the files up");
                self.problem(below, name, &why);
                return Ok(());
            }
            self.trail.push(target.clone());
            let walked = self.folder(&target, &format!("{relative}/"));
            self.trail.pop();
            return walked;
        }
        if let Some(skipped) = name.strip_suffix(SKIP) {
            self.listing.skipped.insert(format!("{below}{skipped}"));
        } else if is_manifest(name) && !metadata.is_file() {
            self.problem(below, name, IRREGULAR);
        } else if is_manifest(name) {
            if self.listing.files.len() == MAX_FILES {
                return Err(format!("more than {MAX_FILES} files; use several folders"));
            }
            self.listing.files.insert(relative, Stamp::new(&metadata));
        }
        Ok(())
    }

    fn problem(&mut self, below: &str, name: &str, why: &str) {
        let path = format!("{below}{name}");
        self.listing.problems.push(format!("{path}: {why}"));
        self.listing.unusable.insert(path);
    }
}

fn is_manifest(name: &str) -> bool {
    [".yaml", ".yml", ".json"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(path: &Path) -> Folder {
        Folder {
            source: "test".to_owned(),
            path: path.to_owned(),
        }
    }

    fn names(listing: &Listing) -> Vec<&str> {
        listing.files.keys().map(String::as_str).collect()
    }

    #[test]
    fn listing_is_sorted_and_has_manifests_only() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("sub/.hidden")).unwrap();
        for name in [
            "b.yaml",
            "a.yml",
            "c.json",
            "d.txt",
            ".e.yaml",
            "f.yaml",
            "sub/g.yaml",
            "sub/.hidden/h.yaml",
            "f.yaml.skip",
            "gone.yaml.skip",
        ] {
            fs::write(temp.path().join(name), "").unwrap();
        }
        let listing = folder(temp.path()).list().unwrap().unwrap();
        assert_eq!(names(&listing), ["a.yml", "b.yaml", "c.json", "sub/g.yaml"]);
        let skipped: Vec<_> = listing.skipped.iter().collect();
        assert_eq!(skipped, ["f.yaml", "gone.yaml"]);
        assert!(folder(&temp.path().join("none")).list().unwrap().is_none());
    }

    #[test]
    fn links_of_a_mounted_config_map_are_followed_and_links_out_of_the_folder_are_not() {
        let temp = tempfile::tempdir().unwrap();
        let (inside, outside) = (temp.path().join("in"), temp.path().join("out"));
        fs::create_dir_all(inside.join("..2026_01/sub")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(inside.join("..2026_01/a.yaml"), "a").unwrap();
        fs::write(inside.join("..2026_01/sub/b.yaml"), "b").unwrap();
        fs::write(outside.join("c.yaml"), "c").unwrap();
        symlink("..2026_01", inside.join("..data")).unwrap();
        symlink("..data/a.yaml", inside.join("a.yaml")).unwrap();
        symlink("..data/sub", inside.join("sub")).unwrap();
        symlink(outside.join("c.yaml"), inside.join("c.yaml")).unwrap();
        symlink(&outside, inside.join("d")).unwrap();
        symlink(".", inside.join("loop")).unwrap();
        let folder = folder(&inside);
        let before = folder.list().unwrap().unwrap();
        assert_eq!(names(&before), ["a.yaml", "sub/b.yaml"]);
        assert_eq!(before.problems.len(), 2, "{:?}", before.problems);
        let unusable: Vec<_> = before.unusable.iter().collect();
        assert_eq!(unusable, ["c.yaml", "d"]);
        let (bytes, stamp) = folder.read("a.yaml").unwrap();
        assert_eq!(
            (bytes.as_slice(), stamp),
            (&b"a"[..], before.files["a.yaml"])
        );
        let read = folder.read("c.yaml");
        assert!(
            matches!(read, Err(ReadError::Unusable(why)) if why.contains("outside the folder"))
        );

        // A new version of the ConfigMap.
        fs::create_dir(inside.join("..2026_02")).unwrap();
        fs::write(inside.join("..2026_02/a.yaml"), "A").unwrap();
        symlink("..2026_02", inside.join("..data_tmp")).unwrap();
        fs::rename(inside.join("..data_tmp"), inside.join("..data")).unwrap();
        let after = folder.list().unwrap().unwrap();
        assert_eq!(names(&after), ["a.yaml"]);
        assert_ne!(before.files["a.yaml"], after.files["a.yaml"]);
        let (bytes, stamp) = folder.read("a.yaml").unwrap();
        assert_eq!(
            (bytes.as_slice(), stamp),
            (&b"A"[..], after.files["a.yaml"])
        );
    }

    #[test]
    fn empty_folder_is_marked_until_it_has_any_entry() {
        let temp = tempfile::tempdir().unwrap();
        let listing = folder(temp.path()).list().unwrap().unwrap();
        assert!(listing.empty);
        fs::write(temp.path().join(".keep"), "").unwrap();
        let kept = folder(temp.path()).list().unwrap().unwrap();
        assert!(!kept.empty && kept.files.is_empty());
        assert_eq!(kept.root, listing.root);
        let other = tempfile::tempdir().unwrap();
        let other = folder(other.path()).list().unwrap().unwrap();
        assert_ne!(other.root, listing.root);
    }

    #[test]
    fn pipe_with_the_name_of_a_manifest_is_unusable_and_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a.yaml");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let listing = folder(temp.path()).list().unwrap().unwrap();
        assert!(listing.files.is_empty());
        assert!(listing.unusable.contains("a.yaml"));
        let read = folder(temp.path()).read("a.yaml");
        assert!(matches!(read, Err(ReadError::Unusable(why)) if why == IRREGULAR));
    }

    #[test]
    fn read_errors_that_may_pass_are_temporary() {
        let of = |error: rustix::io::Errno| ReadError::from(std::io::Error::from(error));
        for error in [rustix::io::Errno::MFILE, rustix::io::Errno::IO] {
            assert!(matches!(of(error), ReadError::Temporary(_)), "{error}");
        }
        assert!(matches!(of(rustix::io::Errno::NOENT), ReadError::Gone));
        let denied = of(rustix::io::Errno::ACCESS);
        assert!(matches!(denied, ReadError::Unusable(_)));
    }

    #[test]
    fn number_of_files_depth_and_size_are_limited() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("1/2/3/4/5/6/7/8/9");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x.yaml"), "").unwrap();
        fs::write(deep.with_file_name("y.yaml"), "").unwrap();
        let listing = folder(temp.path()).list().unwrap().unwrap();
        assert_eq!(names(&listing), ["1/2/3/4/5/6/7/8/y.yaml"]);
        assert!(listing.problems[0].starts_with("1/2/3/4/5/6/7/8/9: more than 8 levels"));

        let large = File::create(temp.path().join("large.yaml")).unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        let read = folder(temp.path()).read("large.yaml");
        assert!(matches!(read, Err(ReadError::Unusable(why)) if why.contains("larger than")));

        for number in 0..MAX_FILES {
            File::create(temp.path().join(format!("{number}.yaml"))).unwrap();
        }
        let error = folder(temp.path()).list().unwrap_err();
        assert!(error.contains("more than 2000 files"), "{error}");
    }
}
