//! The current state in a file, which is replaced as a whole, so that readers never see a part of it.

use std::path::{Path, PathBuf};

use tenure_host::files;

use super::{Queue, newest};
use crate::commands::elect::view::Answer;

/// Updates the file until the queue is closed.
pub(crate) async fn serve(path: PathBuf, mut queue: Queue) {
    while let Some((change, shares)) = newest(&mut queue).await {
        let (file, answer) = (path.clone(), change.answer);
        // A disk may block.
        let written = tokio::task::spawn_blocking(move || write(&file, &answer));
        let limit = shares.iter().map(super::Share::left).min();
        let limit = limit.unwrap_or(super::PATIENCE);
        match tokio::time::timeout(limit, written).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => warn(&path, &error.to_string()),
            Ok(Err(error)) => warn(&path, &error.to_string()),
            Err(_) => warn(&path, "the disk did not respond in time"),
        }
    }
}

fn warn(path: &Path, error: &str) {
    tracing::warn!(path = %path.display(), error, "cannot write the state file");
}

fn write(path: &Path, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    replace(path, &line)
}

/// Replaces a file that programs of other users can read.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    files::replace(path, content, 0o644)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn links_in_the_folder_of_a_state_file_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, state) = (folder.path().join("victim"), folder.path().join("state"));
        fs::write(&victim, "mine").unwrap();
        for name in ["state", "state.part"] {
            symlink(&victim, folder.path().join(name)).unwrap();
        }
        replace(&state, b"new\n").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&state).unwrap(), "new\n");
        let metadata = fs::symlink_metadata(&state).unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.permissions().mode() & 0o133, 0);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            3,
            "nothing is left over"
        );
    }

    #[test]
    fn state_file_that_cannot_be_replaced_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir_all(state.join("full")).unwrap();
        assert!(replace(&state, b"new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
