//! Events about elections: queued behind lock requests, and dropped if they become too old.

use std::time::Duration;

use tenure_core::{FencingToken, WallTime};
use tokio::time::timeout as within;

use super::Done;
use crate::events::Note;
use crate::hub::entry::{Entry, World};
use crate::plain::plain;

/// Timeout for posting an Event.
const POST: Duration = Duration::from_secs(2);

impl Entry {
    /// Posts an Event about the lock object. Elections do not wait for it, except when they finish.
    pub(in crate::hub) fn note(
        &mut self,
        world: &mut World,
        what: &'static str,
        reason: Option<&'static str>,
        token: &FencingToken,
    ) {
        if world.client.is_none() || !self.events {
            return;
        }
        let now = world.clock.now();
        // Events are named after their instant, so the Events about the two objects of a multi lock use different
        // instants.
        for (object, later) in (0..self.lock.references(None).len()).zip(0..) {
            let at = WallTime::from_micros(now.wall.as_micros() + later);
            let note = Note {
                object,
                what,
                reason,
                token: token.clone(),
                replaced: self.replaced.filter(|_| reason.is_none()),
                at,
            };
            world.requests.queue_post(now.local, self.id, note);
            self.posts += 1;
        }
    }

    /// Posts the next queued Event.
    pub(in crate::hub) fn post(&self, world: &mut World, note: Note) {
        let Some(client) = world.client.clone() else {
            return;
        };
        let mut objects = self.lock.references(self.last.as_ref()).into_iter();
        let (about, identity) = (objects.nth(note.object), self.shared.identity.clone());
        let source = self.event_source.clone();
        let post = async move {
            let Some(about) = about else {
                return Done::Posted(Ok(()));
            };
            Done::Posted(
                match within(POST, note.post(client, about, &identity, source.as_deref())).await {
                    Ok(result) => result.map_err(|error| plain(&error)),
                    Err(_) => Err("no answer in time".to_owned()),
                },
            )
        };
        world.requests.post(self.id, post);
    }
}
