//! Names that a review gives for look-ups at the API server. Pure.
//!
//! Nobody proves to the webhook that it is the API server, so a review may name anything. What becomes a part of a path
//! is checked here and in [`crate::dns`], and there is only so much of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use thiserror::Error;

use crate::dns::{BadName, Label, Subdomain};

/// The most resource claims of a pod that are looked up, each by one or two calls. A pod with more is refused.
pub const CLAIMS_MAX: usize = 32;

/// The most bytes of the version, the kind and the UID of an owner, each. Kubernetes itself has shorter ones.
const OWNER_BYTES_MAX: usize = 320;

/// Names that cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadLookUps {
    /// Text that is no name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// More resource claims than are looked up.
    #[error(
        "the pod has {0} resource claims, and at most {CLAIMS_MAX} are looked up: use fewer claims that ask for several devices each, or tensorlane.dev/inject: disabled"
    )]
    TooManyClaims(usize),
}

/// Look-ups that a decision about a pod takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookUps {
    /// The namespace of the pod.
    pub namespace: Label,
    /// Resource claims of the pod, each once.
    pub claims: Vec<Claim>,
}

/// Resource claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name that the pod gives it.
    pub name: String,
    /// Kind of the object that says what is asked for.
    pub kind: &'static str,
    /// Name of that object.
    pub object: Subdomain,
}

impl LookUps {
    /// Reads them from a pod.
    ///
    /// # Errors
    /// A claim has no name of Kubernetes, or there are too many.
    pub fn of(namespace: Label, pod: &Value) -> Result<LookUps, BadLookUps> {
        let all = pod.pointer("/spec/resourceClaims").and_then(Value::as_array);
        let all = all.map_or(&[][..], Vec::as_slice);
        let mut claims: Vec<Claim> = Vec::new();
        for claim in all {
            if let Some(claim) = read(claim)?
                && !claims.contains(&claim)
            {
                if claims.len() == CLAIMS_MAX {
                    return Err(BadLookUps::TooManyClaims(all.len()));
                }
                claims.push(claim);
            }
        }
        Ok(LookUps { namespace, claims })
    }
}

/// A claim by its name or by that of its template; none where neither is said.
fn read(claim: &Value) -> Result<Option<Claim>, BadName> {
    let text = |key: &str| claim.get(key).and_then(Value::as_str);
    let object = text("resourceClaimName").map(|object| ("ResourceClaim", object));
    let template = || text("resourceClaimTemplateName").map(|object| ("ResourceClaimTemplate", object));
    let (Some(name), Some((kind, object))) = (text("name"), object.or_else(template)) else {
        return Ok(None);
    };
    Ok(Some(Claim { name: name.to_owned(), kind, object: Subdomain::new("the resource claim", object)? }))
}

/// Owner of a pod, or of what owns the pod: its name can be looked up, and all of it is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Group and version.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: Subdomain,
    /// UID of the owner.
    pub uid: String,
}

impl Owner {
    /// Takes a reference; none where it names nothing that can be there.
    pub fn of(reference: &OwnerReference) -> Option<Owner> {
        let OwnerReference { api_version, kind, name, uid, .. } = reference;
        if [api_version, kind, uid].iter().any(|text| text.len() > OWNER_BYTES_MAX) {
            return None;
        }
        let name = Subdomain::new("the owner", name).ok()?;
        Some(Owner { api_version: api_version.clone(), kind: kind.clone(), name, uid: uid.clone() })
    }

    /// Owner that controls a pod.
    pub fn of_pod(pod: &Value) -> Option<Owner> {
        let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
        let controller = owners.iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
        Owner::of(&serde_json::from_value(controller.clone()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(claims: &Value) -> Result<Vec<Claim>, BadLookUps> {
        let namespace = Label::new("namespace", "ml").unwrap();
        LookUps::of(namespace, &json!({"spec": {"resourceClaims": claims}})).map(|look_ups| look_ups.claims)
    }

    #[test]
    fn claims_are_found_by_name_and_by_template_and_each_once() {
        let found = of(&json!([
            {"name": "a", "resourceClaimName": "mine"},
            {"name": "b", "resourceClaimTemplateName": "one-gpu"},
            {"name": "c"},
            {"name": "a", "resourceClaimName": "mine"},
        ]));
        let own = |name: &str, kind, object: &str| Claim {
            name: name.to_owned(),
            kind,
            object: Subdomain::new("claim", object).unwrap(),
        };
        let wanted = vec![own("a", "ResourceClaim", "mine"), own("b", "ResourceClaimTemplate", "one-gpu")];
        assert_eq!(found, Ok(wanted));
    }

    #[test]
    fn a_claim_whose_name_leads_elsewhere_is_refused() {
        for key in ["resourceClaimName", "resourceClaimTemplateName"] {
            let found = of(&json!([{"name": "a", key: "../../../../api/v1/secrets"}]));
            let error = found.unwrap_err().to_string();
            assert!(error.contains("resource claim") && error.contains("secrets"), "{error}");
        }
    }

    #[test]
    fn as_many_claims_as_are_looked_up_are_taken_and_one_more_is_refused_with_a_remedy() {
        let claims = |count: usize| {
            let claim = |number| json!({"name": format!("c{number}"), "resourceClaimName": "x"});
            Value::Array((0..count).map(claim).collect())
        };
        assert_eq!(of(&claims(CLAIMS_MAX)).unwrap().len(), CLAIMS_MAX);
        let error = of(&claims(100_000)).unwrap_err().to_string();
        assert!(error.contains("100000 resource claims") && error.contains("use fewer"), "{error}");
    }

    #[test]
    fn an_owner_whose_name_leads_elsewhere_or_that_is_long_is_none() {
        let owner = |kind: &str, name: &str| {
            let owner =
                json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": true});
            Owner::of_pod(&json!({"metadata": {"ownerReferences": [owner]}}))
        };
        assert_eq!(owner("ReplicaSet", "r-1.x").unwrap().name.as_str(), "r-1.x");
        assert_eq!(owner("ReplicaSet", "r/../../secrets"), None);
        assert_eq!(owner(&"x".repeat(1 << 20), "r"), None);
    }
}
