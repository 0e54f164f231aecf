//! One attempt to provision: look up all inputs, call the driver, check its response.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use tenure_csi::v1::{CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest};
use tenure_csi::{CallError, Driver};

use crate::cluster::ClusterError;
use crate::controller::Controller;
use crate::migration::TopologyTerm;
use crate::objects::{AttributesClass, Claim, Class};
use crate::plan::{self, Draft};
use crate::secrets::Secrets;
use crate::state::{Failure, FailureKind};
use crate::topology::{self, Input};
use crate::volume::{self, VolumeInputs};

/// Number of attempts to delete an unusable volume before the next attempt to provision.
const CLEAN_UPS: usize = 5;

/// Created storage that has no volume object yet.
#[derive(Clone)]
pub(crate) struct Made {
    /// The object to post.
    pub(crate) object: Box<PersistentVolume>,
    /// Secrets for deleting the storage.
    pub(crate) secrets: BTreeMap<String, String>,
    /// The driver's handle of the volume.
    pub(crate) handle: String,
    /// Topology terms from which the volume is accessible.
    pub(crate) places: Vec<TopologyTerm>,
}

impl Made {
    pub(crate) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns whether the object has an in-tree source.
    pub(crate) fn is_in_tree(&self) -> bool {
        let spec = self.object.spec.as_ref();
        spec.is_some_and(|spec| spec.csi.is_none())
    }
}

/// A complete request to the driver, with the inputs for checking its response.
struct Question {
    request: CreateVolumeRequest,
    fs_type: String,
    from_source: bool,
    attributes_class: Option<String>,
    secrets: Secrets,
}

impl Controller {
    /// Creates the volume of a claim. Does not post the volume object.
    pub(crate) async fn provision(
        &self,
        claim: &Arc<Claim>,
        class: &Class,
    ) -> Result<Made, Failure> {
        let question = match self.translated(class) {
            Ok(translated) => self.question(claim, &translated).await,
            Err(error) => Err(Failure::finished(format!(
                "storageclass {}: {error}",
                claim.class()
            ))),
        };
        let question = question.map_err(|failure| failure.before_asking(self.is_begun(claim)))?;
        self.ask(claim, class, question).await
    }

    /// Looks up all inputs. Does not call the driver.
    async fn question(&self, claim: &Claim, class: &Class) -> Result<Question, Failure> {
        let draft = plan::draft(&self.facts, &self.options, self.attributes, claim, class);
        let draft = draft.inspect_err(|failure| {
            if failure.kind == FailureKind::Ignored {
                let message = "Assuming an external populator will provision the volume";
                self.events
                    .claim_as("external-provisioner", claim, "Provisioning", message);
            }
        })?;
        let Draft {
            mut request,
            fs_type,
            source,
            attributes_class,
        } = draft;
        if let Some(source) = &source {
            request.volume_content_source = Some(self.content_source(claim, class, source).await?);
        }
        if self.topology() {
            let input = Input {
                claim: claim.name(),
                driver: &self.facts.name,
                allowed: &class.allowed_topologies,
                selected: claim.selected_node_or_alpha(),
                strict: self.options.strict_topology,
                immediate: self.options.immediate_topology,
            };
            let mut memory = self.ledger.topology(claim.uid());
            request.accessibility_requirements = topology::requirement(&input, self, &mut memory)?;
            self.ledger.choose_topology(claim.uid(), memory);
        }
        let secrets = Secrets::resolve(&class.parameters, &request.name, claim);
        let secrets = secrets.map_err(Failure::no_change)?;
        if let Some(secret) = &secrets.provisioner {
            let found = self.cluster.secret(secret).await;
            request.secrets = found.map_err(|error| Failure::no_change(error.to_string()))?;
        }
        if let Some(name) = &attributes_class {
            request.mutable_parameters = self.mutable_parameters(name).await?;
        }
        self.add_journal_finalizer(claim).await?;
        Ok(Question {
            request,
            fs_type,
            from_source: source.is_some(),
            attributes_class,
            secrets,
        })
    }

    async fn ask(
        &self,
        claim: &Arc<Claim>,
        class: &Class,
        question: Question,
    ) -> Result<Made, Failure> {
        let Question {
            request,
            fs_type,
            from_source,
            attributes_class,
            secrets,
        } = question;
        let name = request.name.clone();
        let requested = request
            .capacity_range
            .map_or(0, |range| range.required_bytes);
        let credentials = request.secrets.clone();
        let answer = self.create_storage(claim, class, request).await?;
        let accepted = volume::accept(answer, requested, from_source);
        let (made, bytes) = match accepted {
            Ok(accepted) => accepted,
            Err(unfit) => return Err(self.clean_up(unfit, credentials).await),
        };
        let token = self.options.fencing_token_annotation.then(|| self.token());
        let object = volume::build(&VolumeInputs {
            driver: &self.facts.name,
            identity: &self.identity,
            claim,
            class,
            name: &name,
            fs_type: &fs_type,
            secrets: &secrets,
            volume: &made,
            bytes,
            topology: self.topology(),
            readonly: self.options.controller_publish_readonly,
            attributes_class: attributes_class.as_deref(),
            token: token.filter(|token| !token.is_empty()),
        });
        let object = match self.with_source_of(class, object) {
            Ok(object) => object,
            Err(error) => {
                let message = format!("volume {}: {error}", made.volume_id);
                return Err(self.unusable(&message, &made.volume_id, &credentials).await);
            }
        };
        let places = match self.topology() {
            true => volume::places(&made.accessible_topology),
            false => Vec::new(),
        };
        Ok(Made {
            object: Box::new(object),
            secrets: credentials,
            handle: made.volume_id,
            places,
        })
    }

    async fn mutable_parameters(&self, name: &str) -> Result<BTreeMap<String, String>, Failure> {
        let found = self.cluster.get::<AttributesClass>(name).await;
        let found = found.map_err(|error| Failure::no_change(error.to_string()))?;
        if found.driver_name != self.facts.name {
            return Err(Failure::finished(format!(
                "volumeattributesclasses {name}: it is for driver {:?}, not {:?}",
                found.driver_name, self.facts.name
            )));
        }
        Ok(found.parameters)
    }

    /// Deletes an unusable volume. The next attempt starts from nothing only after the deletion succeeded.
    async fn clean_up(&self, unfit: volume::Unfit, secrets: BTreeMap<String, String>) -> Failure {
        let mut message = unfit.message;
        if let Some(id) = unfit.volume_id
            && !self.delete_unfit(&id, &secrets).await
        {
            message.push_str(&format!(
                "; deleting volume {id} failed, it may be left behind"
            ));
        }
        Failure::in_background(message)
    }

    /// Deletes the storage of a volume object that the API server rejected, so that the claim starts again.
    pub(crate) async fn refused(&self, made: &Made, error: &ClusterError) -> Failure {
        let message = format!("the API server refuses the volume object: {error}");
        self.unusable(&message, &made.handle, &made.secrets).await
    }

    /// Deletes the storage of a volume that cannot have an object, so that the claim starts again.
    async fn unusable(
        &self,
        message: &str,
        id: &str,
        secrets: &BTreeMap<String, String>,
    ) -> Failure {
        if self.delete_unfit(id, secrets).await {
            return Failure::finished(message);
        }
        Failure::in_background(format!(
            "{message}; deleting volume {id} failed, it may be left behind"
        ))
    }

    /// Deletes an unusable volume with a few attempts. Returns whether it is gone.
    async fn delete_unfit(&self, id: &str, secrets: &BTreeMap<String, String>) -> bool {
        let tries = async {
            for _ in 0..CLEAN_UPS {
                match self.delete_storage(&self.driver, id, secrets.clone()).await {
                    Ok(()) => return true,
                    Err(error) => {
                        tracing::warn!(volume_id = id, %error, "cannot delete the unusable volume");
                    }
                }
            }
            false
        };
        let limit = self.options.timeout;
        tokio::time::timeout(limit, tries).await.unwrap_or(false)
    }

    /// Creates storage, or returns the storage that an earlier attempt created. All creations go through this function,
    /// which checks the term immediately before the call.
    async fn create_storage(
        &self,
        claim: &Arc<Claim>,
        class: &Class,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Failure> {
        let allowed = self.check();
        allowed.map_err(|failure| failure.before_asking(self.is_begun(claim)))?;
        tracing::info!(
            claim = claim.key(),
            volume = request.name,
            token = self.token(),
            "CreateVolume"
        );
        self.ledger.pursue(claim);
        let driver = self.driver.migrated(self.is_migrated(class));
        let answer = driver.create_volume(request).await;
        let can_move = self.topology() && claim.selected_node_or_alpha().is_some();
        answer.map_err(|error| Failure::of_call(&error, can_move))
    }

    /// Deletes storage. All deletions go through this function, which checks the term immediately before the call.
    /// `driver` is the client of our driver, with the metric labels of this call.
    pub(crate) async fn delete_storage(
        &self,
        driver: &Driver,
        id: &str,
        secrets: BTreeMap<String, String>,
    ) -> Result<(), CallError> {
        let allowed = self.check();
        allowed.map_err(|failure| CallError::new(tenure_csi::Code::Aborted, failure.message))?;
        tracing::info!(volume_id = id, token = self.token(), "DeleteVolume");
        let request = DeleteVolumeRequest {
            volume_id: id.to_owned(),
            secrets,
        };
        driver.delete_volume(request).await.map(drop)
    }
}
