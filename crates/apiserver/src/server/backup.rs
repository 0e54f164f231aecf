//! Backup of a running server: [`Handle::backup`](super::Handle::backup) in the same process, `GET /tenure/backup`
//! over HTTP.
//!
//! The path is a non-resource URL. Only `system:masters` and roles that name it may read it.

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::AsyncReadExt as _;

use crate::respond::{self, Body};
use crate::status::Failure;
use crate::store::backup::{self, BackupError, Report, Snapshot, Source};

/// The path of backups.
pub(super) const PATH: &str = "/tenure/backup";

const CHUNK: usize = 64 * 1024;

/// A store of any engine that supports backups.
#[derive(Clone)]
pub(super) struct Saver(pub(super) Arc<dyn Source + Send + Sync>);

impl Source for Saver {
    fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }
}

impl Saver {
    /// Saves the current state to a file.
    pub(super) async fn save(&self, path: &Path) -> Result<Report, BackupError> {
        let (saver, path) = (self.clone(), path.to_owned());
        let saved = tokio::task::spawn_blocking(move || backup::save(&saver, path)).await;
        saved.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Responds with the bytes of a backup, from an unlinked temporary file.
    pub(super) async fn answer(&self) -> Response<Body> {
        match self.open().await {
            Err(error) => {
                respond::failure(&Failure::internal(format!("the backup failed: {error}")))
            }
            Ok(file) => {
                let mut response = Response::new(streamed(file));
                let kind = HeaderValue::from_static("application/octet-stream");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
        }
    }

    /// Creates, opens and unlinks the file in one blocking task, so that a disconnecting client cannot leave it behind.
    async fn open(&self) -> Result<tokio::fs::File, Box<dyn std::error::Error + Send + Sync>> {
        let saver = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let name = format!("tenure-backup-{}", uuid::Uuid::new_v4());
            let folder = std::env::temp_dir().join(name);
            crate::pki::create_private_folder(&folder)?;
            let path = folder.join("backup");
            let opened = backup::save(&saver, &path)
                .map_err(Into::into)
                .and_then(|_| std::fs::File::open(&path).map_err(Into::into));
            let _ = std::fs::remove_dir_all(&folder);
            opened
        });
        let opened = opened
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        opened.map(tokio::fs::File::from_std)
    }
}

/// Responds for a server whose data is in etcd or a custom store.
pub(super) fn not_supported() -> Response<Body> {
    let why =
        "this server does not store the data itself; back up etcd with `etcdctl snapshot save`";
    respond::failure(&Failure::generic(501, "NotImplemented", why))
}

fn streamed(file: tokio::fs::File) -> Body {
    let chunks = stream::try_unfold(file, async |mut file| {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut chunk).await?;
        let frame = Frame::<Bytes>::data(chunk.freeze());
        Ok::<_, std::io::Error>((read > 0).then_some((frame, file)))
    });
    StreamBody::new(chunks).boxed_unsync()
}
