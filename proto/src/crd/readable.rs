//! Conditions as others may have written them. The API server looks at a time less closely than we read it, so an object
//! that it has taken may not be readable whole; one word of one condition must not hide the object, or the list it is in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Leaves out the conditions that cannot be read.
pub(super) fn conditions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Condition>, D::Error> {
    let all = Option::<Vec<Value>>::deserialize(from)?.unwrap_or_default();
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::crd::{ExchangeStatus, PeerStatus};

    #[test]
    fn a_condition_that_cannot_be_read_hides_nothing_else() {
        let condition = |kind: &str, time: &str| json!({"type": kind, "status": "True", "reason": "X", "message": "", "lastTransitionTime": time});
        let conditions = json!([
            condition("Wrong", "2026-01-01T00:00:00ZTx"),
            condition("Ready", "2026-01-01T00:00:00Z"),
            condition("Worse", "2026-01-01T00:00:00+99:99"),
            {"type": "Half"},
        ]);
        let status = json!({"addresses": ["10.0.0.1:1"], "conditions": conditions});
        let peer: PeerStatus = serde_json::from_value(status.clone()).unwrap();
        let kinds: Vec<&str> = peer.conditions.iter().map(|one| one.type_.as_str()).collect();
        assert_eq!((kinds, peer.addresses), (vec!["Ready"], vec!["10.0.0.1:1".to_owned()]));
        let exchange: ExchangeStatus = serde_json::from_value(json!({"conditions": conditions})).unwrap();
        assert_eq!(exchange.conditions.len(), 1);
        assert_eq!(serde_json::from_value::<PeerStatus>(json!({})).unwrap(), PeerStatus::default());
    }
}
