//! Deletes the objects that a file no longer contains.
//!
//! An object is deleted only if no file contains it and its annotation names the file that it was removed from. An
//! object that moves from one file to another therefore stays. Nothing is deleted until every file was read.

use std::collections::{HashMap, HashSet};

use tenure_manager::Scope;

use super::cluster::describe;
use super::document::{Key, ObjectId};
use super::inventory::{Inventory, Tone};
use super::{Controller, FileId, PERIOD, Task};

/// The objects that files contain.
#[derive(Default)]
struct Claims<'a> {
    /// Whether an inventory lists the object too.
    objects: HashMap<Key<'a>, bool>,
    /// The same without namespaces, for kinds that have none.
    names: HashSet<(&'a str, &'a str, &'a str)>,
}

impl<'a> Claims<'a> {
    fn add(&mut self, object: &'a ObjectId, recorded: bool) {
        let key = object.key();
        *self.objects.entry(key).or_default() |= recorded;
        self.names.insert((key.0, key.1, key.3));
    }

    fn contains_name(&self, object: &ObjectId) -> bool {
        let (group, kind, _, name) = object.key();
        self.names.contains(&(group, kind, name))
    }
}

/// Result of pruning one file.
#[derive(Default)]
struct Pruned {
    /// Objects that stay in the inventory.
    kept: Vec<ObjectId>,
    deleted: usize,
    failure: Option<String>,
}

impl Controller {
    /// Deletes the objects that are in the inventory of a file and not in the file.
    ///
    /// # Errors
    /// Returns the reason if a deletion must be retried.
    pub(super) async fn prune(&mut self, scope: &Scope, id: &FileId) -> Result<(), String> {
        let Some(inventory) = self.inventories.get(id).cloned() else {
            return Ok(());
        };
        if !self.is_settled() {
            self.work.add_after(Task::Prune(id.clone()), PERIOD);
            return Ok(());
        }
        let gone = match self.files.get(id) {
            // The file keeps its objects, or exists again. If it is removed later, the object is queued again.
            None if self.kept.contains(id) || !self.is_removed(id) => return Ok(()),
            None => true,
            // The old objects are deleted only after all new ones are applied.
            Some(known) => match &known.content {
                Some(content) if content.complete && content.objects.is_some() => false,
                _ => return Ok(()),
            },
        };
        let pruned = self.prune_objects(scope, id, &inventory.objects).await?;
        let Pruned {
            kept,
            deleted,
            failure,
        } = pruned;
        if deleted > 0 {
            let file = self.shown(id);
            tracing::info!(file, objects = deleted, "deleted objects of a manifest");
            let message = format!("{file}: deleted {deleted} objects that it does not contain");
            let inventories = &self.inventories;
            inventories
                .event(&self.folders, id, Tone::Normal, "Pruned", &message)
                .await;
        }
        if gone && kept.is_empty() {
            let removed = self.inventories.remove(&self.folders, id).await;
            self.missed.remove(id);
            return removed.map_err(|error| describe(&error));
        }
        let next = Inventory {
            objects: kept,
            ..inventory
        };
        self.inventories.write(&self.folders, id, next).await?;
        match failure {
            None => Ok(()),
            Some(why) => {
                self.report(id, &why).await?;
                Err(why)
            }
        }
    }

    /// Deletes objects in the reverse order of their application, so that a definition is deleted after its objects.
    async fn prune_objects(
        &mut self,
        scope: &Scope,
        id: &FileId,
        objects: &[ObjectId],
    ) -> Result<Pruned, String> {
        let owner = self.owner(id);
        let Self {
            cluster,
            inventories,
            files,
            kept,
            ..
        } = self;
        let mut own = Claims::default();
        let mut others = Claims::default();
        for (file, known) in files.iter() {
            let content = known.content.as_ref();
            let claims = if file == id { &mut own } else { &mut others };
            let objects = content.and_then(|content| content.objects.as_ref());
            objects
                .into_iter()
                .flatten()
                .for_each(|object| claims.add(object, false));
        }
        for (file, inventory) in inventories.iter() {
            if file != id && (files.contains_key(file) || kept.contains(file)) {
                inventory
                    .objects
                    .iter()
                    .for_each(|object| others.add(object, true));
            }
        }
        let current: HashSet<String> = match files.get(id).and_then(|known| known.content.as_ref())
        {
            None => HashSet::new(),
            Some(content) => content
                .objects
                .iter()
                .flatten()
                .map(ObjectId::to_line)
                .collect(),
        };

        let mut pruned = Pruned::default();
        for object in objects.iter().rev() {
            scope.check().map_err(|error| error.to_string())?;
            if current.contains(&object.to_line()) {
                pruned.kept.push(object.clone());
                continue;
            }
            // The same object in another version of its API.
            if own.objects.contains_key(&object.key()) {
                continue;
            }
            match others.objects.get(&object.key()) {
                Some(true) => continue,
                // Another file contains the object, but its inventory does not list it yet.
                Some(false) => {
                    pruned.kept.push(object.clone());
                    pruned.failure = Some(format!(
                        "{object} is not yet in the inventory of its new file"
                    ));
                    continue;
                }
                None => {}
            }
            let deleted = match cluster.resource(object).await {
                // The API server deleted the objects together with the definition of their kind.
                Ok(None) => Ok(false),
                Ok(Some(resource)) => {
                    let claimed = own.contains_name(object) || others.contains_name(object);
                    if claimed && !resource.namespaced {
                        continue;
                    }
                    cluster.delete(object, &resource, &owner).await
                }
                Err(error) => Err(error),
            };
            match deleted {
                Ok(deleted) => pruned.deleted += usize::from(deleted),
                Err(error) => {
                    pruned.kept.push(object.clone());
                    let why = format!("cannot delete {object}: {}", describe(&error));
                    pruned.failure.get_or_insert(why);
                }
            }
        }
        pruned.kept.reverse();
        Ok(pruned)
    }
}
