//! `--provision-journal`: a finalizer on a claim while its volume may be lost.
//!
//! The finalizer is set before the driver is asked. It stays until the volume object exists, or until it is certain
//! that no volume exists. The next leader therefore finds the claim, even if this process dies and the claim is
//! deleted.

use crate::cluster::ClusterError;
use crate::controller::{Controller, lock};
use crate::names::JOURNAL_FINALIZER;
use crate::objects::{Claim, has_finalizer};
use crate::state::Failure;

impl Controller {
    /// Returns whether the driver may be creating the volume of a claim, requested by this process or, according to the
    /// journal, by a previous leader.
    pub(crate) fn is_begun(&self, claim: &Claim) -> bool {
        self.is_journalled(claim) || self.ledger.is_in_progress(claim.uid())
    }

    /// Adds the finalizer, if the claim does not have it.
    pub(crate) async fn add_journal_finalizer(&self, claim: &Claim) -> Result<(), Failure> {
        let deleting = claim.metadata.deletion_timestamp.is_some();
        if !self.options.provision_journal || self.is_begun(claim) || deleting {
            return Ok(());
        }
        match self.set_journal_finalizer(claim, true).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::ignored("the claim was deleted")),
            Err(error) => Err(Failure::no_change(error.to_string())),
        }
    }

    /// Removes the finalizer of a claim whose volume can no longer be lost.
    pub(crate) async fn remove_journal_finalizer(&self, claim: &Claim) -> Result<(), ClusterError> {
        if !self.options.provision_journal {
            return Ok(());
        }
        self.set_journal_finalizer(claim, false).await.map(drop)
    }

    /// Returns whether a bound or deleted claim with the finalizer certainly has no volume in progress.
    pub(crate) fn needs_no_volume(&self, claim: &Claim) -> bool {
        let name = self.options.volume_name(claim.uid());
        let unsaved = name.is_ok_and(|name| lock(&self.unsaved).contains_key(&name));
        if unsaved || self.ledger.is_in_progress(claim.uid()) {
            return false;
        }
        let bound = !claim.spec.volume_name.is_empty();
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let over = deleting && self.ledger.is_settled(claim.uid());
        has_finalizer(&claim.metadata, JOURNAL_FINALIZER) && (bound || over)
    }

    /// Returns whether the claim has the finalizer. The finalizer of a completed claim may have been removed since this
    /// copy was read.
    fn is_journalled(&self, claim: &Claim) -> bool {
        has_finalizer(&claim.metadata, JOURNAL_FINALIZER) && !self.ledger.is_settled(claim.uid())
    }

    async fn set_journal_finalizer(&self, claim: &Claim, set: bool) -> Result<bool, ClusterError> {
        let uid = claim.metadata.uid.as_deref();
        let change = (JOURNAL_FINALIZER, set);
        let (namespace, name) = (claim.namespace(), claim.name());
        self.cluster
            .set_finalizer::<Claim>(namespace, name, uid, change)
            .await
    }
}
