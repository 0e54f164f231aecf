//! The manifests controller. It applies the files of configured folders when the server starts and when they change,
//! and deletes objects that are removed from the files.
//!
//! | file | content |
//! |---|---|
//! | `folder` | the files of a folder, within limits |
//! | `document` | the objects of a file |
//! | `inventory` | the stored list of objects that were applied from a file, and its Events |
//! | `apply` | applies a file |
//! | `prune` | deletes objects that a file no longer contains |
//! | `cluster` | kinds, server-side apply, deletion |
//! | `progress` | the first pass, which readiness waits for |
//!
//! One worker applies the files in their order. A file that fails is retried with backoff and does not stop the others.
//! The folders are polled. While no file changes, no request is sent.

mod apply;
mod cluster;
mod document;
mod folder;
mod inventory;
mod progress;
mod prune;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tenure_manager::{Backoff, Cause, Runnable, Scope};
use tokio::time::{Instant, MissedTickBehavior};

use crate::work::Work;
use cluster::Cluster;
use document::ObjectId;
pub(crate) use folder::Folder;
use folder::{Listing, Stamp};
use inventory::Inventories;
pub use progress::FirstPass;
pub(crate) use progress::Progress;

/// Field manager of applied objects, and source of Events.
const MANAGER: &str = "tenure-manifests";

/// Interval between two scans of the folders.
const PERIOD: Duration = Duration::from_secs(2);

/// Number of consecutive scans that must miss a file before its objects are deleted. Editors replace a file by removing
/// it first.
const MISSED: u8 = 2;

/// Message about a folder without entries.
const EMPTY: &str = "the folder is empty; the objects of its files stay, because the folder may not be mounted; \
    create a file such as .keep in it to delete them";

/// Time without progress after which the first pass ends even if files still fail.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file of a folder. The derived order is the order of application.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FileId {
    /// Position of the folder.
    folder: usize,
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Apply(FileId),
    /// Delete objects that the file no longer contains.
    Prune(FileId),
}

/// Returns the manifests as a leader controller.
pub(crate) fn runnable(client: Client, folders: Vec<Folder>, progress: Arc<Progress>) -> Runnable {
    let folders: Arc<[Folder]> = folders.into();
    Runnable::new("manifests", move |scope| {
        let controller = Controller::new(client.clone(), folders.clone(), progress.clone());
        async move { controller.run(scope).await }
    })
    .restart(Backoff::default())
}

/// Returns whether a folder contains a file to apply, or cannot be read.
pub(crate) fn any_file(folders: &[Folder]) -> bool {
    let has_files = |folder: &Folder| match folder.list() {
        Ok(listing) => listing.is_some_and(|listing| !listing.files.is_empty()),
        Err(_) => true,
    };
    folders.iter().any(has_files)
}

/// State of a file.
struct Known {
    stamp: Stamp,
    /// The file changed. It is read after it stayed the same for one period, because it may be half written.
    changing: bool,
    /// The file was not read since it was found or changed, so its objects are unknown.
    unread: bool,
    content: Option<Content>,
    /// The last reported failure.
    reported: Option<(String, Instant)>,
}

/// The content of a file at its last read.
struct Content {
    checksum: String,
    /// The objects; `None` if the file is invalid.
    objects: Option<Vec<ObjectId>>,
    /// Positions of the objects that are applied.
    applied: HashSet<usize>,
    complete: bool,
}

impl Known {
    fn new(stamp: Stamp, changing: bool) -> Self {
        Self {
            stamp,
            changing,
            unread: true,
            content: None,
            reported: None,
        }
    }
}

/// Files whose objects stay although the files are not applied.
#[derive(Default)]
struct Kept {
    skipped: BTreeSet<FileId>,
    /// Entries that cannot be used: files, and folders with everything below them.
    unusable: BTreeSet<FileId>,
    /// Folders whose content is unknown, because they may not be mounted.
    folders: BTreeSet<usize>,
}

impl Kept {
    fn contains(&self, id: &FileId) -> bool {
        let FileId { folder, path } = id;
        let mut above = path.match_indices('/').map(|(end, _)| FileId {
            folder: *folder,
            path: path[..end].to_owned(),
        });
        self.folders.contains(folder)
            || self.skipped.contains(id)
            || self.unusable.contains(id)
            || above.any(|folder| self.unusable.contains(&folder))
    }
}

struct Controller {
    folders: Arc<[Folder]>,
    cluster: Cluster,
    inventories: Inventories,
    progress: Arc<Progress>,
    work: Work<Task>,
    files: BTreeMap<FileId, Known>,
    kept: Kept,
    /// Device and number of each folder when its files were found.
    roots: BTreeMap<usize, (u64, u64)>,
    /// Number of scans of the folders.
    looks: u64,
    /// Number of consecutive scans that did not find the file of an inventory.
    missed: BTreeMap<FileId, u8>,
    /// Whether the inventories are loaded. They are loaded when the first folder exists.
    loaded: bool,
    first: First,
    problems: Vec<String>,
}

/// The files of the first pass.
struct First {
    /// Whether the folders were listed.
    listed: bool,
    files: usize,
    untried: BTreeSet<FileId>,
    unapplied: BTreeSet<FileId>,
    invalid: BTreeSet<FileId>,
    progress_at: Instant,
}

impl Controller {
    fn new(client: Client, folders: Arc<[Folder]>, progress: Arc<Progress>) -> Self {
        Self {
            folders,
            cluster: Cluster::new(client.clone()),
            inventories: Inventories::new(client),
            progress,
            work: Work::new("manifests"),
            files: BTreeMap::new(),
            kept: Kept::default(),
            roots: BTreeMap::new(),
            looks: 0,
            missed: BTreeMap::new(),
            loaded: false,
            first: First {
                listed: false,
                files: 0,
                untried: BTreeSet::new(),
                unapplied: BTreeSet::new(),
                invalid: BTreeSet::new(),
                progress_at: Instant::now(),
            },
            problems: Vec::new(),
        }
    }

    /// Runs everything in this task, so that nothing of the term runs after it ends or is dropped.
    async fn run(mut self, scope: Scope) -> Result<(), Cause> {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let task = tokio::select! {
                biased;
                () = scope.cancelled() => return Ok(()),
                _ = ticks.tick() => None,
                task = self.work.next(&scope) => task,
            };
            let work = async {
                match task {
                    None => self.look().await?,
                    Some(task) => {
                        let done = match &*task {
                            Task::Apply(id) => self.apply(&scope, id).await,
                            Task::Prune(id) => self.prune(&scope, id).await,
                        };
                        self.work.done(&task, done);
                    }
                }
                self.publish();
                Ok::<_, Cause>(())
            };
            tokio::select! {
                biased;
                () = scope.cancelled() => return Ok(()),
                done = work => done?,
            }
        }
    }

    /// Scans the folders and queues changed files.
    async fn look(&mut self) -> Result<(), Cause> {
        let folders = self.folders.clone();
        let listings = tokio::task::spawn_blocking(move || {
            folders.iter().map(Folder::list).collect::<Vec<_>>()
        });
        let listings = listings.await?;
        if !self.loaded && listings.iter().any(|listing| !matches!(listing, Ok(None))) {
            self.inventories.load(&self.folders).await?;
            self.loaded = true;
        }
        self.looks += 1;
        let mut problems = Vec::new();
        self.kept.folders.clear();
        for (folder, listing) in listings.into_iter().enumerate() {
            let path = self.folders[folder].path.display().to_string();
            let compared = match listing {
                Ok(None) => Err(None),
                Ok(Some(listing)) if listing.empty => {
                    let applied = self.inventories.iter().any(|(id, _)| id.folder == folder);
                    Err(applied.then(|| EMPTY.to_owned()))
                }
                Ok(Some(mut listing)) => {
                    let of = |problem: String| format!("{path}/{problem}");
                    problems.extend(listing.problems.drain(..).map(of));
                    self.compare(folder, listing).map_err(Some)
                }
                Err(error) => Err(Some(error)),
            };
            // A missing folder deletes nothing, because it may not be mounted.
            if let Err(problem) = compared {
                problems.extend(problem.map(|problem| format!("{path}: {problem}")));
                self.missed.retain(|id, _| id.folder != folder);
                self.kept.folders.insert(folder);
            }
        }
        for problem in problems
            .iter()
            .filter(|problem| !self.problems.contains(problem))
        {
            tracing::warn!(problem, "ignored a part of the manifests");
        }
        self.problems = problems;
        if !self.first.listed {
            self.first.listed = true;
            self.first.files = self.files.len();
            self.first.untried = self.files.keys().cloned().collect();
            self.first.unapplied = self.first.untried.clone();
            self.first.progress_at = Instant::now();
        }
        Ok(())
    }

    /// Compares a folder with its last scan.
    ///
    /// # Errors
    /// Returns the reason if missing files do not count as removed.
    fn compare(&mut self, folder: usize, listing: Listing) -> Result<(), String> {
        let file = |path: String| FileId { folder, path };
        let present: BTreeMap<FileId, Stamp> = listing
            .files
            .into_iter()
            .map(|(path, stamp)| (file(path), stamp))
            .collect();
        let Kept {
            skipped, unusable, ..
        } = &mut self.kept;
        skipped.retain(|id| id.folder != folder);
        skipped.extend(listing.skipped.into_iter().map(file));
        unusable.retain(|id| id.folder != folder);
        unusable.extend(listing.unusable.into_iter().map(file));
        self.files
            .retain(|id, _| id.folder != folder || present.contains_key(id));
        // The first pass does not wait for a file that was removed before it was read.
        let removed = |id: &FileId| id.folder == folder && !present.contains_key(id);
        self.first.untried.retain(|id| !removed(id));
        self.first.unapplied.retain(|id| !removed(id));
        for (id, stamp) in present {
            match self.files.get_mut(&id) {
                Some(known) if known.stamp != stamp => {
                    known.stamp = stamp;
                    (known.changing, known.unread) = (true, true);
                }
                Some(known) if known.changing => {
                    known.changing = false;
                    self.work.add(Task::Apply(id));
                }
                Some(_) => {}
                None => {
                    // At the start, existing files are applied without a delay.
                    let changing = self.first.listed;
                    self.files.insert(id.clone(), Known::new(stamp, changing));
                    if !changing {
                        self.work.add(Task::Apply(id));
                    }
                }
            }
        }
        let inventories = self.inventories.iter().map(|(id, _)| id);
        let gone: BTreeSet<FileId> = inventories
            .filter(|id| id.folder == folder)
            .filter(|id| !self.files.contains_key(id) && !self.kept.contains(id))
            .cloned()
            .collect();
        let root = self.roots.entry(folder).or_insert(listing.root);
        if *root != listing.root && !gone.is_empty() {
            return Err(format!(
                "the folder was replaced and {} of its files are missing; their objects stay, because the folder may \
                 not be mounted; restart the server to delete them",
                gone.len()
            ));
        }
        *root = listing.root;
        self.missed
            .retain(|id, _| id.folder != folder || gone.contains(id));
        for id in gone {
            let missed = self.missed.entry(id.clone()).or_default();
            *missed = missed.saturating_add(1);
            // The file is queued only once. Afterwards the queue schedules its retries.
            if *missed == MISSED {
                self.work.add(Task::Prune(id));
            }
        }
        Ok(())
    }

    /// Returns whether the objects of all files are known. Until then, an object that moves from one file to another
    /// looks like a removed one. The second scan notices a file that was being written when the server started.
    fn is_settled(&self) -> bool {
        self.looks >= 2 && self.files.values().all(|known| !known.unread)
    }

    fn is_removed(&self, id: &FileId) -> bool {
        self.missed.get(id).is_some_and(|missed| *missed >= MISSED)
    }

    /// Publishes the state of the first pass.
    fn publish(&mut self) {
        if !self.first.listed || self.progress.is_done() {
            return;
        }
        let First {
            files,
            untried,
            unapplied,
            invalid,
            progress_at,
            ..
        } = &self.first;
        let stuck = untried.is_empty() && progress_at.elapsed() >= PATIENCE;
        self.progress.publish(FirstPass {
            done: unapplied.is_empty() || stuck,
            files: *files,
            failed: unapplied.len() + invalid.len(),
        });
    }

    /// Returns the name of a file as the annotation of its objects contains it.
    fn owner(&self, id: &FileId) -> String {
        format!("{}/{}", self.folders[id.folder].source, id.path)
    }

    /// Returns the path of the file for messages.
    fn shown(&self, id: &FileId) -> String {
        let path = self.folders[id.folder].path.join(&id.path);
        path.display().to_string()
    }
}
