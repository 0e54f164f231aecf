//! The present state in a file, replaced as a whole, so that readers never see half of it.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Queue, newest};
use crate::elect::view::Answer;

/// Keeps the file until there is no more news.
pub(crate) async fn serve(path: PathBuf, mut queue: Queue) {
    while let Some((news, shares)) = newest(&mut queue).await {
        let (file, answer) = (path.clone(), news.answer);
        // A disk may hang.
        let written = tokio::task::spawn_blocking(move || write(&file, &answer));
        let limit = shares.iter().map(super::Share::left).min();
        let limit = limit.unwrap_or(super::PATIENCE);
        match tokio::time::timeout(limit, written).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => warn(&path, &error.to_string()),
            Ok(Err(error)) => warn(&path, &error.to_string()),
            Err(_) => warn(&path, "the disk does not answer"),
        }
    }
}

fn warn(path: &Path, error: &str) {
    tracing::warn!(path = %path.display(), error, "cannot write the state file");
}

fn write(path: &Path, answer: &Answer) -> std::io::Result<()> {
    let part = path.with_extension("part");
    let mut file = std::fs::File::create(&part)?;
    serde_json::to_writer(&mut file, answer)?;
    file.write_all(b"\n")?;
    std::fs::rename(&part, path)
}
