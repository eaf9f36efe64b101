//! Planner: whether a pod gets a sidecar, and what the pod is then.
//!
//! ```text
//!   strip what an earlier call added ──> asked? ──no──> Skip(why)
//!                                          │yes
//!        can it be served? ──no──> Deny(why, and what to do)
//!                                          │yes
//!   settle: annotation, else exchange, else the installation ──> resources under quota, limits, pod-level ──> edit
//! ```
//!
//! [`plan`] is a pure function of plain data: what a webhook, a command line and a test hand in. Calling it again with
//! its own result gives that result, also after somebody else has added containers in between: what was added before
//! is taken away first, and no more than that. What an API server has written into our part, or put in another order,
//! is no change. Nothing but what the sidecar needs is touched; fields that this version of the types does not
//! know pass through, because pods are edited as JSON and only read as types.

mod alike;
mod asked;
mod diff;
mod edit;
mod facts;
mod foreign;
mod gpu;
mod limits;
mod mesh;
mod place;
mod quota;
mod reason;
mod resources;
mod sets;
mod settle;
mod sidecar;
mod status;
mod strip;
mod volumes;

pub use asked::Asked;
pub(crate) use asked::matches;
pub use diff::diff;
pub use facts::{Claims, Defaults, Facts, LimitRange, Namespace, Quota};
pub use mesh::{LINKERD_INJECT, OF_NAMESPACE};
pub use reason::{Deny, OverLimit, OverQuota, Skip, Unsupported};
pub use resources::Requests;
pub use status::{Added, Raised, Status, Written};

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use crate::annotations::{self, Wishes};
use crate::names::{DEFAULT_ACCOUNT, PREFIX, SIDECAR};
use strip::{Earlier, Stripped};

/// Decision about a pod, and what its owner is told besides.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The decision.
    pub decision: Decision,
    /// Sentences for whoever made the pod.
    pub warnings: Vec<String>,
}

/// Decision about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Gets a sidecar.
    Inject(Box<Plan>),
    /// Did not ask for a sidecar.
    Skip(Skip),
    /// Asked for a sidecar and cannot be served.
    Deny(Deny),
}

/// A pod with its sidecar.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Asker for the sidecar.
    pub asked: Asked,
    /// The exchange that it belongs to.
    pub exchange: String,
    /// The whole pod.
    pub pod: Value,
    /// Patch that leads from the pod that was handed in to this one.
    pub patch: json_patch::Patch,
    /// Requests of the pod without its sidecar: what others count who read the template.
    pub own: Requests,
    /// Requests of the pod with its sidecar: what nodes, quotas and scalers count.
    pub whole: Requests,
}

/// Labels of a node that say its system. The second one is the name that the first had.
const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];

/// The parts of a pod that are read. A template of a Deployment has the same.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct View {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: PodSpec,
}

impl View {
    /// The service account of the pod. The API server fills it in before it calls webhooks; a template may say none.
    fn account(&self) -> &str {
        // The second one is the name that the field had.
        let said = [&self.spec.service_account_name, &self.spec.service_account];
        let said = said.into_iter().flatten().map(String::as_str).find(|name| !name.is_empty());
        said.unwrap_or(DEFAULT_ACCOUNT)
    }
}

/// Decides about a pod, given as the JSON of a `Pod` or of a pod's template.
pub fn plan(pod: &Value, facts: &Facts) -> Outcome {
    let stripped = strip::strip(pod);
    let bare = &stripped.pod;
    let view = View::deserialize(bare).or_else(|error| View::deserialize(&filled(bare)).map_err(|_| error));
    let view = match view {
        Ok(view) => view,
        // Whoever asks for nothing gets no refusal from us: the API server says what is wrong.
        Err(_) if !asked::asks_unread(bare, facts) => {
            return Outcome::quiet(Decision::Skip(Skip::NotRequested));
        }
        Err(error) => return Outcome::quiet(Decision::Deny(Deny::NotAPod(unreadable(bare, &error)))),
    };
    let said = view.metadata.annotations.clone().unwrap_or_default();
    let mut warnings = annotations::unknown(&said);
    let decision = decide(pod, stripped, &view, facts, &mut warnings);
    Outcome { decision: decision.unwrap_or_else(Decision::from), warnings }
}

/// Maps whose values are texts.
const TEXTS: [&str; 3] = ["annotations", "labels", "nodeSelector"];

/// A pod of a file as an API server takes it: a null is a field that is not there, or an empty text among texts.
fn filled(pod: &Value) -> Value {
    fn fields(value: &Value, are_texts: bool) -> Value {
        match value {
            Value::Object(all) => all
                .iter()
                .filter(|(_, value)| are_texts || !value.is_null())
                .map(|(key, value)| match value {
                    Value::Null => (key.clone(), Value::String(String::new())),
                    value => (key.clone(), fields(value, TEXTS.contains(&key.as_str()))),
                })
                .collect(),
            Value::Array(items) => items.iter().map(|item| fields(item, false)).collect(),
            other => other.clone(),
        }
    }
    fields(pod, false)
}

/// The reason why a pod cannot be read. Annotations and labels that are no text are named: YAML reads `true` as no text.
fn unreadable(pod: &Value, error: &serde_json::Error) -> String {
    let no_text = ["annotations", "labels"].into_iter().find_map(|kind| {
        let all = pod.pointer(&format!("/metadata/{kind}"))?.as_object()?;
        let (key, value) = all.iter().find(|(_, value)| !value.is_string() && !value.is_null())?;
        Some(format!("metadata.{kind}[{key:?}] is {value}, which is no text: write it in quotes"))
    });
    no_text.unwrap_or_else(|| error.to_string())
}

fn decide(
    pod: &Value,
    stripped: Stripped,
    view: &View,
    facts: &Facts,
    warnings: &mut Vec<String>,
) -> Result<Decision, Deny> {
    let said = view.metadata.annotations.clone().unwrap_or_default();
    let asked = match asked::asked(view, &said, facts, warnings)? {
        Ok(asked) => asked,
        Err(skip) => return Ok(Decision::Skip(skip)),
    };
    let Stripped { pod: bare, earlier } = stripped;
    warnings.extend(earlier.iter().flat_map(|earlier| earlier.warnings.clone()));
    let wishes = annotations::read(&said).map_err(Deny::InvalidValues)?;
    refuse_what_cannot_run(view, facts)?;
    let containers = chosen_containers(view, &wishes)?;
    refuse_what_is_taken(view, &containers)?;
    let settled = settle::settle(&wishes, &asked, view, facts)?;
    let place = place(view, &wishes, earlier.as_ref(), warnings);
    let budget = resources::budget(view, &settled, facts, place)?;
    let mut status = Status::new(&asked, &settled);
    status.behind = init_containers(view).into_iter().skip(place).collect();
    status.annotations = mesh::annotations(view, facts, &handed_in(pod), warnings);
    let edit = edit::Edit { facts, settled: &settled, budget: &budget, chosen: &containers, place };
    let mut changed = edit.apply(bare, status);
    alike::keep(pod, &mut changed);
    let patch = diff(pod, &changed);
    let [own, whole] = [budget.own, budget.whole].map(Requests::from);
    Ok(Decision::Inject(Box::new(Plan {
        asked,
        exchange: settled.exchange,
        pod: changed,
        patch,
        own,
        whole,
    })))
}

/// The annotations of a pod as it was handed in.
fn handed_in(pod: &Value) -> BTreeMap<String, String> {
    let all = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    all.into_iter().flatten().filter_map(text).collect()
}

/// Names of the init containers, in their order.
fn init_containers(view: &View) -> Vec<String> {
    view.spec.init_containers.iter().flatten().map(|container| container.name.clone()).collect()
}

/// Number of init containers before the sidecar. A name that is not among them may come yet.
fn place(view: &View, wishes: &Wishes, earlier: Option<&Earlier>, warnings: &mut Vec<String>) -> usize {
    let others = init_containers(view);
    let after = wishes.after.clone().unwrap_or_default();
    let absent: Vec<&str> =
        after.iter().filter(|name| !others.contains(name)).map(String::as_str).take(8).collect();
    if !absent.is_empty() {
        warnings.push(format!(
            "{PREFIX}after names {}, which is no init container of the pod by now: the sidecar is behind it once it is there",
            absent.join(", ")
        ));
    }
    place::place(&place::Order {
        others: &others,
        ahead: earlier.and_then(|earlier| earlier.ahead),
        behind: earlier.map_or(&[], |earlier| &earlier.status.behind),
        named: wishes.containers.as_deref(),
        after: &after,
    })
}

/// Refuses if no sidecar of ours can run, whatever the pod says.
fn refuse_what_cannot_run(view: &View, facts: &Facts) -> Result<(), Deny> {
    let spec = &view.spec;
    if facts.namespace.excluded {
        return Err(Deny::ExcludedNamespace(facts.namespace.name.clone()));
    }
    if spec.host_network == Some(true) {
        return Err(Deny::HostNetwork);
    }
    match other_system(spec) {
        Some(place) => Err(Deny::NotLinux(place)),
        None => Ok(()),
    }
}

/// The field of a pod that wants nodes of another system than Linux, with its value.
fn other_system(spec: &PodSpec) -> Option<String> {
    let said = spec.os.iter().map(|os| ("spec.os.name".to_owned(), &os.name));
    let selected = OS_LABELS.into_iter().filter_map(|label| {
        let value = spec.node_selector.as_ref()?.get(label)?;
        Some((format!("spec.nodeSelector[{label:?}]"), value))
    });
    let wrong = said.chain(selected).find(|(_, value)| *value != "linux");
    wrong.map(|(place, value)| format!("{place}: {value}")).or_else(|| affinity_without_linux(spec))
}

/// The required affinity that leaves no node with Linux: each of its terms keeps them out.
fn affinity_without_linux(spec: &PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let keeps_out = |one: &&NodeSelectorRequirement| {
        let has_linux = one.values.iter().flatten().any(|value| value == "linux");
        let wanted = match one.operator.as_str() {
            "In" => false,
            "NotIn" => true,
            _ => return false,
        };
        OS_LABELS.contains(&one.key.as_str()) && has_linux == wanted
    };
    let of_term = |term: &NodeSelectorTerm| term.match_expressions.iter().flatten().find(keeps_out).cloned();
    let all: Option<Vec<_>> = required.node_selector_terms.iter().map(of_term).collect();
    let first = all?.into_iter().next()?;
    let values = first.values.unwrap_or_default().join(", ");
    Some(format!("a required nodeAffinity with {} {} [{values}]", first.key, first.operator))
}

/// The names, paths and ports that the sidecar needs must be free.
fn refuse_what_is_taken(view: &View, chosen: &[String]) -> Result<(), Deny> {
    let spec = &view.spec;
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    if all().any(|container| container.name == SIDECAR) {
        return Err(Deny::NameTaken { what: "container", name: SIDECAR.to_owned() });
    }
    let volumes = spec.volumes.iter().flatten();
    if let Some(volume) = volumes.map(|volume| &volume.name).find(|name| volumes::is_ours(name)) {
        return Err(Deny::NameTaken { what: "volume", name: volume.clone() });
    }
    volumes::refuse_use_of_ours(spec)?;
    for container in all() {
        let in_the_way = |path: &&str| chosen.contains(&container.name) && volumes::is_in_the_way(path);
        let mut mounts = container.volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str());
        if let Some(path) = mounts.find(in_the_way) {
            return Err(Deny::MountConflict { container: container.name.clone(), path: path.to_owned() });
        }
        let mut ports = container.ports.iter().flatten().filter(|port| sidecar::listens_on(port));
        if let Some(port) = ports.next().map(|port| port.container_port) {
            return Err(Deny::PortTaken { container: container.name.clone(), port });
        }
    }
    Ok(())
}

/// The containers that see the sockets: those that are named, else all but those of other injectors and those that stand
/// before the sidecar because of `after`. Refuses names of containers that would wait for the sidecar before it runs.
fn chosen_containers(view: &View, wishes: &Wishes) -> Result<Vec<String>, Deny> {
    let spec = &view.spec;
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let there: Vec<String> = all.map(|container| container.name.clone()).collect();
    let after = wishes.after.as_deref().unwrap_or_default();
    let ahead = place::ahead(&init_containers(view), after);
    let Some(named) = &wishes.containers else {
        let uses = |(index, name): &(usize, String)| *index >= ahead && !foreign::is_known(name);
        return Ok(there.into_iter().enumerate().filter(uses).map(|(_, name)| name).collect());
    };
    let sooner = |name: &&String| there.iter().take(ahead).any(|one| one == *name);
    if let Some(name) = named.iter().find(|name| after.contains(name)) {
        return Err(Deny::Contradiction(format!(
            "{PREFIX}after and {PREFIX}containers both name {name:?}: before the sidecar runs there are no sockets, so take it out of one of them"
        )));
    }
    if let Some(name) = named.iter().find(sooner) {
        return Err(Deny::Contradiction(format!(
            "{PREFIX}containers names {name:?}, which runs before {:?}, which {PREFIX}after names: it would wait for a sidecar that starts later, so move it behind, or take it out of {PREFIX}containers",
            there[ahead - 1]
        )));
    }
    match named.iter().find(|name| !there.contains(name)) {
        Some(name) => Err(Deny::UnknownContainer { name: name.clone(), there }),
        None => Ok(named.clone()),
    }
}

impl Outcome {
    fn quiet(decision: Decision) -> Outcome {
        Outcome { decision, warnings: Vec::new() }
    }
}

impl From<Deny> for Decision {
    fn from(deny: Deny) -> Decision {
        Decision::Deny(deny)
    }
}

impl Decision {
    /// The label in metrics: `injected`, or that of the reason.
    pub const fn label(&self) -> &'static str {
        match self {
            Decision::Inject(_) => "injected",
            Decision::Skip(skip) => skip.label(),
            Decision::Deny(deny) => deny.label(),
        }
    }
}
