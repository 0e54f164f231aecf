//! Tests of file rotation on a real file system.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn options(path: &Path, max_bytes: u64, max_backups: usize) -> Options {
    Options {
        max_bytes,
        max_backups,
        ..Options::new(path)
    }
}

#[test]
fn long_lines_are_written_to_a_full_file_that_cannot_be_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("logs");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("audit.log");
    let mut file = RotatedFile::open(&options(&path, 100, 3)).unwrap();
    file.write(b"first\n").unwrap();
    // Without the folder no new file can be created.
    std::fs::remove_dir_all(&folder).unwrap();
    let long = [vec![b'x'; 3 << 20], b"\n".to_vec()].concat();
    file.write(&long).unwrap();
    assert_eq!(file.size, 6 + long.len() as u64);
}

#[test]
fn full_files_are_renamed_and_the_oldest_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let other = dir.path().join("audit-notes.log");
    std::fs::write(&other, "x").unwrap();
    let mut file = RotatedFile::open(&options(&path, 100, 3)).unwrap();
    let line = |number: usize| format!("{number:019}\n");
    for batch in 0..10 {
        let lines: String = (0..5).map(|n| line(batch * 5 + n)).collect();
        file.write(lines.as_bytes()).unwrap();
    }
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| *path != other)
        .collect();
    names.sort();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(other.exists());
    let mut kept = String::new();
    for name in &names {
        let text = std::fs::read_to_string(name).unwrap();
        assert!(!text.is_empty() && text.len() <= 100, "{name:?}: {text}");
        let mode = std::fs::metadata(name).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name:?}");
        kept += &text;
    }
    let expected: String = (30..50).map(line).collect();
    assert_eq!(kept, expected);
    // A line that is longer than the size limit of a file is still written.
    let long = "y".repeat(300) + "\n";
    file.write(long.as_bytes()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), long);
}

#[test]
fn existing_file_is_continued_and_links_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    std::fs::write(&path, "before\n").unwrap();
    let mut file = RotatedFile::open(&options(&path, 0, 0)).unwrap();
    file.write(b"after\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\nafter\n");
    let link = dir.path().join("link.log");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let refused = RotatedFile::open(&options(&link, 0, 0));
    assert!(matches!(refused, Err(AuditError::File(..))));
    let device = RotatedFile::open(&options(Path::new("/dev/null"), 0, 0));
    assert!(matches!(device, Err(AuditError::NotAFile(_))));
}

#[test]
fn failed_rotation_keeps_recording() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("logs");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("audit.log");
    let mut file = RotatedFile::open(&options(&path, 10, 1)).unwrap();
    file.write(b"123456789\n").unwrap();
    // Without the folder no new file can be created.
    std::fs::remove_dir_all(&folder).unwrap();
    file.write(b"abcdefghi\n").unwrap();
    assert_eq!(file.size, 20);
    assert!(file.rotate_at > 20);
    // The old file was unlinked, so there is nothing to rename.
    std::fs::create_dir(&folder).unwrap();
    file.rotate_at = 20;
    file.write(b"ABCDEFGHI\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "ABCDEFGHI\n");
}

#[test]
fn moved_file_is_replaced_at_the_next_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let mut file = RotatedFile::open(&options(&path, 10, 1)).unwrap();
    file.write(b"123456789\n").unwrap();
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    file.write(b"abcdefghi\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "abcdefghi\n");
    assert_eq!((file.size, file.rotate_at), (10, 10));
}

#[test]
fn backup_that_cannot_be_removed_does_not_fail_the_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    // A folder with the name of a backup cannot be removed as a file.
    let folder = dir.path().join("audit-2020-01-01T00-00-00.000.log");
    std::fs::create_dir(&folder).unwrap();
    let old = dir.path().join("audit-2020-01-02T00-00-00.000.log");
    std::fs::write(&old, "old").unwrap();
    let mut file = RotatedFile::open(&options(&path, 10, 1)).unwrap();
    file.write(b"123456789\n").unwrap();
    file.write(b"abcdefghi\n").unwrap();
    assert_eq!((file.size, file.rotate_at), (10, 10));
    assert!(folder.exists());
    assert!(!old.exists());
}
