//! AdmissionReview, read and answered. Pure.

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use serde_json::Value;
use thiserror::Error;

use super::lookups::{BadLookUps, LookUps};
use crate::dns::{BadName, Label};
use crate::plan::{Decision, Outcome};

/// The most warnings of one answer; each is cut at 256 bytes by the API server, all of them at 4096.
const WARNINGS_MAX: usize = 8;

/// Question about one pod.
#[derive(Debug)]
pub struct Question {
    request: AdmissionRequest<DynamicObject>,
    /// The pod as JSON.
    pub pod: Value,
    /// Namespace of the pod.
    pub namespace: Label,
    /// Nothing may be left behind: no Event.
    pub dry_run: bool,
}

/// Review that is no question about a pod.
#[derive(Debug, Error)]
pub enum BadReview {
    /// Not an AdmissionReview at all.
    #[error("the body is no AdmissionReview of admission.k8s.io/v1: {0}")]
    NotAReview(String),
    /// A review of something else.
    #[error("{0} of {1} is nothing that this webhook answers: its configuration asks for too much")]
    NotACreatedPod(String, String),
    /// A review whose namespace is none.
    #[error(transparent)]
    BadNamespace(#[from] BadName),
}

impl Question {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// The body asks something else, or names a namespace that cannot be.
    pub fn read(body: &[u8]) -> Result<Question, BadReview> {
        let review: AdmissionReview<DynamicObject> =
            serde_json::from_slice(body).map_err(|error| BadReview::NotAReview(error.to_string()))?;
        if review.types.kind != "AdmissionReview" {
            return Err(BadReview::NotAReview(format!("its kind is `{}`", review.types.kind)));
        }
        let request: AdmissionRequest<DynamicObject> =
            review.try_into().map_err(|_| BadReview::NotAReview("it has no request".to_owned()))?;
        let object = request.object.as_ref();
        let is_pod = request.resource.group.is_empty() && request.resource.resource == "pods";
        let created = request.operation == Operation::Create && request.sub_resource.is_none();
        let (Some(object), true) = (object, is_pod && created) else {
            return Err(BadReview::NotACreatedPod(
                format!("{:?}", request.operation).to_uppercase(),
                request.resource.resource.clone(),
            ));
        };
        let pod = serde_json::to_value(object).map_err(|error| BadReview::NotAReview(error.to_string()))?;
        let namespace =
            Label::new("the namespace of the review", request.namespace.as_deref().unwrap_or_default())?;
        Ok(Question { dry_run: request.dry_run, pod, namespace, request })
    }

    /// The look-ups that the decision takes.
    ///
    /// # Errors
    /// The pod names what cannot be looked up, or too much.
    pub fn look_ups(&self) -> Result<LookUps, BadLookUps> {
        LookUps::of(self.namespace.clone(), &self.pod)
    }

    /// The answer to what was planned.
    pub fn answer(&self, outcome: &Outcome) -> AdmissionReview<DynamicObject> {
        let mut response = AdmissionResponse::from(&self.request);
        let mut warnings: Vec<String> =
            outcome.warnings.iter().map(|warning| format!("tensorlane: {warning}")).collect();
        match &outcome.decision {
            Decision::Inject(plan) if plan.patch.0.is_empty() => {}
            Decision::Inject(plan) => match response.with_patch(plan.patch.clone()) {
                Ok(patched) => response = patched,
                Err(error) => return self.refuse(500, &error.to_string()),
            },
            Decision::Skip(skip) => warnings.push(format!("tensorlane: no sidecar: {skip}")),
            Decision::Deny(deny) => return with(self.refuse(403, &deny.to_string()), warnings),
        }
        with(response.into_review(), warnings)
    }

    /// A refusal with this status.
    pub fn refuse(&self, code: u16, why: &str) -> AdmissionReview<DynamicObject> {
        let mut response = AdmissionResponse::from(&self.request).deny(format!("tensorlane: {why}"));
        response.result.code = code;
        response.into_review()
    }
}

fn with(
    mut review: AdmissionReview<DynamicObject>,
    mut warnings: Vec<String>,
) -> AdmissionReview<DynamicObject> {
    warnings.truncate(WARNINGS_MAX);
    if let Some(response) = &mut review.response
        && !warnings.is_empty()
    {
        response.warnings = Some(warnings);
    }
    review
}
