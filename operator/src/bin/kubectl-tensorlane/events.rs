//! Events that speak of an object, and of what it has made: a controller tells a refusal on the object next to the pods, such as
//! the Job of a JobSet.

use serde_json::{Value, json};
use tensorlane_operator::inspect::Seen;
use tensorlane_operator::inspect::refusals::{Involved, refused};

use crate::read::Reader;

/// The most steps from what makes pods to what was asked about: a LeaderWorkerSet makes a StatefulSet, that a leader, and that a
/// StatefulSet of workers.
const STEPS_MAX: usize = 4;

/// Events that speak of an object.
pub(crate) struct Told {
    /// List of the Events.
    pub(crate) events: Seen,
    /// Ok if it could be read who made what else was refused a pod; else why not.
    pub(crate) makers: Result<(), String>,
}

impl Reader {
    /// Reads the Events that speak of the object and of what it has made.
    pub(crate) async fn told(&self, kind: &str, name: &str, object: Option<&Value>) -> Told {
        let events = self.list("v1", "Event", Some(self.namespace()), "").await;
        let mut own = vec![(kind.to_owned(), name.to_owned())];
        let mut makers = Ok(());
        if let Some(uid) = object.and_then(|object| object.pointer("/metadata/uid")?.as_str()) {
            // A Deployment says by its own condition whether it is refused.
            let others = if kind == "Deployment" { Vec::new() } else { refused(&events, kind, name) };
            for involved in others {
                match self.is_made_by(&involved, uid).await {
                    Ok(true) => own.push((involved.kind, involved.name)),
                    Ok(false) => {}
                    Err(why) => makers = Err(why),
                }
            }
        }
        Told { events: about(events, &own), makers }
    }

    /// Returns whether an object was made by the one of this uid, or by something that this one has made.
    async fn is_made_by(&self, involved: &Involved, uid: &str) -> Result<bool, String> {
        let mut at = involved.clone();
        for _ in 0..STEPS_MAX {
            let object = match self.get(&at.version, &at.kind, Some(self.namespace()), &at.name).await {
                Seen::There(object) => object,
                Seen::Missing => return Ok(false),
                Seen::Hidden(why) => return Err(format!("{} {}: {why}", at.kind, at.name)),
            };
            let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            let owners = owners.map_or(&[][..], Vec::as_slice);
            let controller = owners.iter().find(|owner| owner["controller"] == true);
            let Some(owner) = controller.or(owners.first()) else { return Ok(false) };
            if owner["uid"] == uid {
                return Ok(true);
            }
            let said = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
            at = Involved { version: said("apiVersion"), kind: said("kind"), name: said("name") };
        }
        Ok(false)
    }
}

/// Events that speak of these objects, by kind and name.
fn about(events: Seen, objects: &[(String, String)]) -> Seen {
    let is_it = |event: &&Value| {
        let Involved { kind, name, .. } = Involved::of(event);
        objects.contains(&(kind, name))
    };
    match events {
        Seen::There(_) => {
            let ours: Vec<&Value> = events.items().iter().filter(is_it).collect();
            Seen::There(json!({"items": ours}))
        }
        other => other,
    }
}
