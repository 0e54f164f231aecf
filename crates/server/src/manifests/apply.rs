//! Applies one file.

use std::collections::HashSet;
use std::time::Duration;

use tenure_manager::Scope;
use tokio::time::Instant;

use super::document::{self, Document, ObjectId};
use super::folder::ReadError;
use super::inventory::{Inventory, Tone, checksum, shortened};
use super::{Content, Controller, FileId, Task};

/// Shortest time between two reports of different failures of one file.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// A file that was read.
enum Read {
    Gone,
    /// The file is being written or replaced. It is queued again when it no longer changes.
    Changing,
    /// The file could not be read this time.
    Failed(String),
    /// The content is applied already, or known to be invalid.
    Same,
    Invalid(String, String),
    Documents(String, Vec<Document>),
}

impl Controller {
    /// Applies a file.
    ///
    /// # Errors
    /// Returns the reason if the file has to be retried. An invalid file is reported and not retried before it changes.
    pub(super) async fn apply(&mut self, scope: &Scope, id: &FileId) -> Result<(), String> {
        let read = self.read(id).await?;
        if let Some(known) = self.files.get_mut(id) {
            match read {
                Read::Changing => (known.changing, known.unread) = (true, true),
                Read::Failed(_) => {}
                _ => known.unread = false,
            }
        }
        let result = match read {
            Read::Changing => return Ok(()),
            Read::Failed(why) => {
                self.report(id, &why).await?;
                Err(why)
            }
            Read::Gone | Read::Same => Ok(()),
            Read::Invalid(checksum, why) => self.reject(id, checksum, why).await,
            Read::Documents(checksum, documents) => {
                self.apply_documents(scope, id, checksum, documents).await
            }
        };
        self.first.untried.remove(id);
        if result.is_ok() && self.first.unapplied.remove(id) {
            self.first.progress_at = Instant::now();
        }
        result
    }

    async fn read(&self, id: &FileId) -> Result<Read, String> {
        // The file was removed or skipped since it was queued.
        let Some(known) = self.files.get(id) else {
            return Ok(Read::Gone);
        };
        if known.changing {
            return Ok(Read::Changing);
        }
        let stamp = known.stamp;
        let content = known.content.as_ref().filter(|content| content.complete);
        let complete = content.map(|content| content.checksum.clone());
        let (folders, id) = (self.folders.clone(), id.clone());
        let read = move || {
            let bytes = match folders[id.folder].read(&id.path) {
                Ok((bytes, now)) if now == stamp => bytes,
                // The next scan of the folder finds the change or the removal.
                Ok(_) | Err(ReadError::Gone | ReadError::Changing) => return Read::Changing,
                Err(ReadError::Temporary(why)) => return Read::Failed(why),
                Err(ReadError::Unusable(why)) => return Read::Invalid(String::new(), why),
            };
            let checksum = checksum(&bytes);
            if complete.as_ref() == Some(&checksum) {
                return Read::Same;
            }
            match document::parse(&id.path, &bytes) {
                Ok(documents) => Read::Documents(checksum, documents),
                Err(why) => Read::Invalid(checksum, why),
            }
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| error.to_string())
    }

    /// Reports a file that cannot be applied unless it changes. Objects of an earlier version of the file stay.
    async fn reject(&mut self, id: &FileId, checksum: String, why: String) -> Result<(), String> {
        // The file has changed since its last report, so this report is not a repetition.
        if let Some(known) = self.files.get_mut(id) {
            let why = shortened(&why);
            known.reported.take_if(|(last, _)| *last != why);
        }
        self.report(id, &why).await?;
        if self.first.unapplied.contains(id) {
            self.first.invalid.insert(id.clone());
        }
        if let Some(known) = self.files.get_mut(id) {
            known.content = Some(Content {
                checksum,
                objects: None,
                applied: HashSet::new(),
                complete: true,
            });
        }
        Ok(())
    }

    async fn apply_documents(
        &mut self,
        scope: &Scope,
        id: &FileId,
        checksum: String,
        documents: Vec<Document>,
    ) -> Result<(), String> {
        let objects: Vec<ObjectId> = documents
            .iter()
            .map(|document| document.id.clone())
            .collect();
        let Some(known) = self.files.get_mut(id) else {
            return Ok(());
        };
        let content = known
            .content
            .take()
            .filter(|content| content.checksum == checksum);
        let mut content = content.unwrap_or_else(|| Content {
            checksum: checksum.clone(),
            objects: Some(objects.clone()),
            applied: HashSet::new(),
            complete: false,
        });
        let mut applied = std::mem::take(&mut content.applied);
        known.content = Some(content);
        if let Err(why) = self.list_objects(id, &objects).await {
            self.report(id, &why).await?;
            return Err(why);
        }

        let owner = self.owner(id);
        let mut failure: Option<String> = None;
        let mut failures = 0;
        for (at, document) in documents.into_iter().enumerate() {
            if applied.contains(&at) {
                continue;
            }
            scope.check().map_err(|error| error.to_string())?;
            let Document { place, id, object } = document;
            match self.cluster.apply(&id, object, &owner).await {
                Ok(()) => {
                    applied.insert(at);
                    self.first.progress_at = Instant::now();
                }
                Err(why) => {
                    failures += 1;
                    failure.get_or_insert_with(|| format!("{place} ({id}): {why}"));
                }
            }
        }
        if let Some(content) = self
            .files
            .get_mut(id)
            .and_then(|known| known.content.as_mut())
        {
            content.applied = applied;
            content.complete = failure.is_none();
        }
        match failure {
            None => {
                self.first.invalid.remove(id);
                let finished = self.finish(id, checksum, &objects).await;
                // The next attempt must finish the file instead of skipping it as unchanged.
                if let (Err(_), Some(known)) = (&finished, self.files.get_mut(id))
                    && let Some(content) = &mut known.content
                {
                    content.complete = false;
                }
                finished
            }
            Some(mut why) => {
                if failures > 1 {
                    why = format!("{why}; {} more objects failed", failures - 1);
                }
                self.report(id, &why).await?;
                Err(why)
            }
        }
    }

    /// Adds the objects of a file to its inventory, before they are applied.
    async fn list_objects(&mut self, id: &FileId, objects: &[ObjectId]) -> Result<(), String> {
        let mut next = self.inventories.get(id).cloned().unwrap_or_default();
        let listed: HashSet<String> = next.objects.iter().map(ObjectId::to_line).collect();
        let new = objects
            .iter()
            .filter(|object| !listed.contains(&object.to_line()));
        next.objects.extend(new.cloned());
        self.inventories.write(&self.folders, id, next).await
    }

    /// Records that a file is applied completely, and queues the deletion of objects that it no longer contains.
    async fn finish(
        &mut self,
        id: &FileId,
        checksum: String,
        objects: &[ObjectId],
    ) -> Result<(), String> {
        let before = self.inventories.get(id).cloned().unwrap_or_default();
        let secret = objects.iter().any(ObjectId::is_secret);
        let news = secret || before.checksum != checksum || before.error.is_some();
        let next = Inventory {
            checksum: if secret { String::new() } else { checksum },
            error: None,
            ..before
        };
        let stale = next.objects.len() > objects.len();
        self.inventories.write(&self.folders, id, next).await?;
        if let Some(known) = self.files.get_mut(id) {
            known.reported = None;
        }
        let file = self.shown(id);
        if news {
            tracing::info!(file, objects = objects.len(), "applied a manifest");
            let message = format!("{file}: applied {} objects", objects.len());
            let inventories = &self.inventories;
            inventories
                .event(&self.folders, id, Tone::Normal, "Applied", &message)
                .await;
        }
        if stale {
            self.work.add(Task::Prune(id.clone()));
        }
        Ok(())
    }

    /// Reports a failure once, in the log, in the inventory and as an Event. The rate of reports about one file is
    /// limited.
    pub(super) async fn report(&mut self, id: &FileId, why: &str) -> Result<(), String> {
        let why = shortened(why);
        let now = Instant::now();
        let before = self.inventories.get(id).cloned().unwrap_or_default();
        let stored = before.error.as_ref() == Some(&why);
        if stored && !self.files.contains_key(id) {
            return Ok(());
        }
        let reported = self.files.get(id).and_then(|known| known.reported.as_ref());
        if reported.is_some_and(|(last, at)| *last == why || now - *at < REPORT_EVERY) {
            return Ok(());
        }
        let file = self.shown(id);
        tracing::warn!(file, error = why, "cannot apply a manifest");
        let next = Inventory {
            error: Some(why.clone()),
            ..before
        };
        self.inventories.write(&self.folders, id, next).await?;
        if let Some(known) = self.files.get_mut(id) {
            known.reported = Some((why.clone(), now));
        }
        if !stored {
            let (inventories, message) = (&self.inventories, format!("{file}: {why}"));
            inventories
                .event(&self.folders, id, Tone::Warning, "Failed", &message)
                .await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::manifests::{Folder, Progress};

    #[tokio::test]
    async fn file_that_changed_since_the_last_scan_is_read_after_it_has_settled() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a.yaml");
        fs::write(&path, "# a").unwrap();
        // No request is sent.
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let client = tenure::work_client(config).unwrap();
        let folder = Folder {
            source: "test".to_owned(),
            path: temp.path().to_owned(),
        };
        let id = FileId {
            folder: 0,
            path: "a.yaml".to_owned(),
        };
        let mut controller = Controller::new(client, [folder].into(), Progress::new());
        controller.loaded = true;
        let read = async |controller: &Controller| controller.read(&id).await.unwrap();
        controller.look().await.unwrap();
        assert!(matches!(read(&controller).await, Read::Documents(..)));
        controller.files.get_mut(&id).unwrap().unread = false;
        assert!(!controller.is_settled(), "only one look");
        controller.look().await.unwrap();
        assert!(controller.is_settled());

        fs::write(&path, "# longer").unwrap();
        assert!(matches!(read(&controller).await, Read::Changing));
        controller.look().await.unwrap();
        assert!(matches!(read(&controller).await, Read::Changing));
        assert!(!controller.is_settled(), "not read again");
        controller.look().await.unwrap();
        assert!(matches!(read(&controller).await, Read::Documents(..)));

        fs::rename(&path, temp.path().join("b.yaml")).unwrap();
        assert!(matches!(read(&controller).await, Read::Changing));
        controller.look().await.unwrap();
        assert!(matches!(read(&controller).await, Read::Gone));
        assert!(!controller.is_settled(), "the new file is not read");
    }
}
