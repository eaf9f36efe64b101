//! Applies each action by a call.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tensorlane_proto::crd::{DEFAULT_EXCHANGE, PeerSpec, TensorExchange, TensorPeer};
use thiserror::Error;

use super::build::Action;
use crate::manifests::{Gap, Installation, PEER_POLICY, gap};
use crate::names::FIELD_MANAGER;

/// The manager of what the operator says in the status of a peer, beside what the sidecar says.
const STATUS_MANAGER: &str = "tensorlane-operator-status";
/// The role and its binding in each namespace.
const PEER_ROLE: &str = "tensorlane-peer";

/// Time that a call may take. A leader that hangs is worse than one that tries again.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// A call that did not do what it should.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The API server refused, or was not there.
    #[error(transparent)]
    Kube(#[from] Box<kube::Error>),
    /// By the library: a type of Kubernetes is always JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// No answer came.
    #[error("no answer from the API server within {} seconds", CALL_DEADLINE.as_secs())]
    Deadline,
}

impl From<kube::Error> for ApplyError {
    fn from(error: kube::Error) -> ApplyError {
        ApplyError::Kube(Box::new(error))
    }
}

/// Does things at an API server.
#[derive(Clone)]
pub struct Applier(Client, Recorder);

impl Applier {
    /// By this client.
    pub fn new(client: Client) -> Applier {
        let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        Applier(client, recorder)
    }

    /// Finds the gap in the policy on the status of peers and its binding; none where peers are guarded.
    ///
    /// # Errors
    /// It cannot be found out.
    pub async fn gap(&self, installation: &Installation) -> Result<Option<Gap>, ApplyError> {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.0.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.0.clone());
        let both = async { tokio::try_join!(policies.get_opt(PEER_POLICY), bindings.get_opt(PEER_POLICY)) };
        let (policy, binding) =
            tokio::time::timeout(CALL_DEADLINE, both).await.map_err(|_| ApplyError::Deadline)??;
        let policy = policy.map(serde_json::to_value).transpose()?;
        let binding = binding.map(serde_json::to_value).transpose()?;
        Ok(gap(policy.as_ref(), binding.as_ref(), installation))
    }

    /// Does one thing.
    ///
    /// # Errors
    /// It is not done; the same action can be tried again.
    pub async fn apply(&self, namespace: &str, action: &Action) -> Result<(), ApplyError> {
        tokio::time::timeout(CALL_DEADLINE, self.call(namespace, action))
            .await
            .map_err(|_| ApplyError::Deadline)?
    }

    async fn call(&self, namespace: &str, action: &Action) -> Result<(), ApplyError> {
        match action {
            Action::MakeDefaultExchange => self.make_default_exchange(namespace).await,
            Action::ApplyRoleBinding { owners } => self.apply_role_binding(namespace, owners).await,
            Action::ApplyPeer { name, spec, forgets } => {
                self.apply_peer(namespace, name, spec, forgets.as_deref()).await
            }
            Action::SetPeerCondition { name, condition } => {
                let patch = json!({
                    "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer",
                    "status": {"conditions": [condition]},
                });
                let peers: Api<TensorPeer> = Api::namespaced(self.0.clone(), namespace);
                peers.patch_status(name, &ours(STATUS_MANAGER), &Patch::Apply(patch)).await?;
                Ok(())
            }
            Action::SetExchangeStatus { name, status } => {
                let patch = json!({
                    "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange", "status": status,
                });
                let exchanges: Api<TensorExchange> = Api::namespaced(self.0.clone(), namespace);
                exchanges.patch_status(name, &ours(FIELD_MANAGER), &Patch::Apply(patch)).await?;
                Ok(())
            }
            Action::ReportExchange { name, uid, condition } => {
                let exchange = ObjectReference {
                    api_version: Some("tensorlane.dev/v1alpha1".to_owned()),
                    kind: Some("TensorExchange".to_owned()),
                    name: Some(name.clone()),
                    namespace: Some(namespace.to_owned()),
                    uid: uid.clone(),
                    ..ObjectReference::default()
                };
                Ok(self.1.publish(&event(condition), &exchange).await?)
            }
        }
    }

    /// Made once and never again changed: from then on it belongs to people.
    async fn make_default_exchange(&self, namespace: &str) -> Result<(), ApplyError> {
        let exchanges: Api<TensorExchange> = Api::namespaced(self.0.clone(), namespace);
        let exchange = TensorExchange::new(DEFAULT_EXCHANGE, Default::default());
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match exchanges.create(&parameters, &exchange).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            made => Ok(made.map(|_| ())?),
        }
    }

    async fn apply_role_binding(&self, namespace: &str, owners: &[OwnerReference]) -> Result<(), ApplyError> {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": PEER_ROLE, "ownerReferences": owners},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": PEER_ROLE},
            "subjects": [{
                "apiGroup": group, "kind": "Group", "name": format!("system:serviceaccounts:{namespace}"),
            }],
        });
        let bindings: Api<RoleBinding> = Api::namespaced(self.0.clone(), namespace);
        bindings.patch(PEER_ROLE, &ours(FIELD_MANAGER), &Patch::Apply(binding)).await?;
        Ok(())
    }

    /// Applies the owner of a peer, and nothing of what the former pod said. That goes before, and once more after,
    /// because only from the middle call on can nobody but the new pod write there. If it has, the last call meets
    /// another version.
    async fn apply_peer(
        &self,
        namespace: &str,
        name: &str,
        spec: &PeerSpec,
        forgets: Option<&str>,
    ) -> Result<(), ApplyError> {
        let peers: Api<TensorPeer> = Api::namespaced(self.0.clone(), namespace);
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": spec.pod_uid});
        let labels = json!({crate::names::EXCHANGE: spec.exchange});
        let peer = json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": spec,
        });
        if let Some(seen) = forgets {
            // Before, so that whoever is interrupted here finds the old UID and begins again. Of the version that was seen:
            // whoever sees late must not forget what the new pod has said since.
            let nothing = json!({"metadata": {"resourceVersion": seen}, "status": null});
            match peers.patch_status(name, &PatchParams::default(), &Patch::Merge(nothing)).await {
                // It went with its pod meanwhile.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                reset => _ = reset?,
            }
        }
        let applied = peers.patch(name, &ours(FIELD_MANAGER), &Patch::Apply(peer)).await?;
        if forgets.is_none() {
            return Ok(());
        }
        // Until then the old pod could still write.
        let nothing = json!({
            "metadata": {"resourceVersion": applied.resource_version()},
            "status": null,
        });
        match peers.patch_status(name, &PatchParams::default(), &Patch::Merge(nothing)).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
            reset => Ok(reset.map(|_| ())?),
        }
    }
}

/// Event about an exchange; the sentences of its conditions are all shorter than an Event may be.
fn event(condition: &Condition) -> Event {
    let is_well = condition.status == "True";
    Event {
        type_: if is_well { EventType::Normal } else { EventType::Warning },
        reason: condition.reason.clone(),
        note: Some(condition.message.clone()),
        action: "Validate".to_owned(),
        secondary: None,
    }
}

/// Applied by us, over whoever else has written there: nobody else should.
fn ours(manager: &str) -> PatchParams {
    PatchParams::apply(manager).force()
}
