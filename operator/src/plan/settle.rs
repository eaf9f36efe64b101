//! Settles what holds for a sidecar: what the pod says, else what its exchange says, else what the installation says.

use tensorlane_proto::crd::{
    DEFAULT_EXCHANGE, Encryption, ExchangeSpec, GpuMode, LogLevel, Neighbours, Prefer, Requirement, SameNode,
    Security, TransportKind,
};

use super::asked::Asked;
use super::facts::Facts;
use super::reason::{Deny, Unsupported};
use super::{View, gpu, sets};
use crate::abilities::{unsupported, unsupported_wishes};
use crate::annotations::{
    ARENA_MAX, ARENA_MIN, BASE_MAX, BASE_MIN, SEAT, SEATS, SEATS_MAX, SetsVolume, Wishes, cpu, memory,
};
use crate::quantity::Amount;

/// Most readers of a tensor that one sidecar serves at a time.
const FAN_OUT_MAX: u32 = 8;

/// The most members that a refusal names.
const MEMBERS_SHOWN: usize = 20;

/// Everything that is decided about a sidecar, its resources under limits excepted.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) exchange: String,
    pub(super) arena: Amount,
    /// With what the seats add.
    pub(super) base: Amount,
    /// Seats for peers; absent where they are those that a sidecar has anyway.
    pub(super) seats: Option<u32>,
    pub(super) cpu: Amount,
    pub(super) log_level: LogLevel,
    pub(super) gpu: GpuMode,
    /// Absent where neither pod nor exchange says anything.
    pub(super) transports: Option<Vec<TransportKind>>,
    /// Absent where the exchange does not say it.
    pub(super) prefer: Option<Prefer>,
    pub(super) require: Vec<Requirement>,
    pub(super) encryption: Option<Encryption>,
    pub(super) neighbours: Option<Neighbours>,
    pub(super) lease_grace: Option<String>,
    pub(super) ticket_ttl: Option<String>,
    pub(super) same_node: SameNode,
    /// The volume of the pod for sets on files, which the sidecar can write.
    pub(super) sets: Option<SetsVolume>,
    /// Absent where the exchange does not say it.
    pub(super) fan_out: Option<u32>,
    /// The pod does not share its process namespace yet, and is to.
    pub(super) share_process_namespace: bool,
}

/// Decides all of it.
pub(super) fn settle(wishes: &Wishes, asked: &Asked, view: &View, facts: &Facts) -> Result<Settled, Deny> {
    let (exchange, spec) = exchange(wishes, asked, facts)?;
    refuse_strangers(view, &exchange, &spec)?;
    refuse_unsupported(wishes, &exchange, &spec, facts)?;
    let sizes = Sizes::of(wishes, &exchange, &spec, facts)?;
    let same_node = same_node(&exchange, &spec, facts)?;
    let sets = sets::volume(wishes, &view.spec, facts)?;
    let fan_out = count(&exchange, "fanOut", spec.fan_out, 0, FAN_OUT_MAX)?;
    let share_process_namespace = share_process_namespace(wishes, view)?;
    let gpu = gpu_mode(wishes, &spec, view, facts, share_process_namespace)?;
    let transports = transports(wishes, &spec, &exchange)?;
    let require = require(wishes, &spec);
    let Security { encryption, neighbours } = spec.security.clone().unwrap_or_default();
    let sidecar = spec.sidecar.clone().unwrap_or_default();
    let gc = spec.gc.clone().unwrap_or_default();
    Ok(Settled {
        exchange,
        arena: sizes.arena,
        base: sizes.base,
        seats: (sizes.seats != SEATS).then_some(sizes.seats),
        cpu: sizes.cpu,
        log_level: wishes.log_level.or(sidecar.log_level).unwrap_or(facts.defaults.log_level),
        gpu,
        transports,
        prefer: spec.prefer,
        require,
        encryption,
        neighbours,
        lease_grace: gc.lease_grace,
        ticket_ttl: gc.ticket_ttl,
        same_node,
        sets,
        fan_out,
        share_process_namespace,
    })
}

/// The exchange and what it says. Only `default` may be absent: it is made with the first pod.
fn exchange(wishes: &Wishes, asked: &Asked, facts: &Facts) -> Result<(String, ExchangeSpec), Deny> {
    let wanted = match (&wishes.exchange, asked) {
        (Some(name), _) | (None, Asked::Exchange(name)) => name.clone(),
        (None, _) => DEFAULT_EXCHANGE.to_owned(),
    };
    match facts.exchanges.get(&wanted) {
        Some(spec) => Ok((wanted, spec.clone())),
        None if wanted == DEFAULT_EXCHANGE => Ok((wanted, ExchangeSpec::default())),
        None => Err(Deny::ExchangeMissing {
            name: wanted,
            namespace: facts.namespace.name.clone(),
            there: facts.exchanges.keys().take(20).cloned().collect(),
        }),
    }
}

/// Refuses a pod that is none of the exchange's members. `default` is open to all, whatever it says.
fn refuse_strangers(view: &View, exchange: &str, spec: &ExchangeSpec) -> Result<(), Deny> {
    let account = view.account();
    if exchange == DEFAULT_EXCHANGE || spec.admits(account) {
        return Ok(());
    }
    let members = spec.members.iter().flat_map(|members| &members.service_accounts).take(MEMBERS_SHOWN);
    Err(Deny::NotAMember {
        exchange: exchange.to_owned(),
        account: account.to_owned(),
        members: members.cloned().collect(),
    })
}

/// Refuses what this release cannot do. This comes before everything else that can be wrong with those words: whoever
/// corrects a contradiction of something that cannot be had anyway has corrected nothing.
///
/// The pod asked, so it is refused and not skipped: a sidecar with such settings never starts, the pod would hang in its
/// init containers, and a pod without a sidecar would look for its sockets for ever. An exchange that is not accepted
/// takes no pod at all, also none that the lack does not touch (a mode of GPUs, a pod without one): an exchange of which
/// some pods run and others do not is harder to understand than one that is refused.
fn refuse_unsupported(
    wishes: &Wishes,
    exchange: &str,
    spec: &ExchangeSpec,
    facts: &Facts,
) -> Result<(), Deny> {
    let found = Unsupported {
        exchange: exchange.to_owned(),
        of_exchange: unsupported(spec, &facts.abilities),
        of_pod: unsupported_wishes(wishes, &facts.abilities),
    };
    if found.of_exchange.is_empty() && found.of_pod.is_empty() {
        return Ok(());
    }
    Err(Deny::Unsupported(Box::new(found)))
}

struct Sizes {
    arena: Amount,
    base: Amount,
    seats: u32,
    cpu: Amount,
}

impl Sizes {
    /// The API server has checked what an exchange says, against the rules of the version that is installed there.
    fn of(wishes: &Wishes, exchange: &str, spec: &ExchangeSpec, facts: &Facts) -> Result<Sizes, Deny> {
        let read = |field, text: Option<&String>, parse: &dyn Fn(&str) -> Result<Amount, String>| {
            let refused = |text: &String, wrong| Deny::InvalidExchange {
                exchange: exchange.to_owned(),
                field,
                value: text.chars().take(80).collect(),
                wrong,
            };
            text.map(|text| parse(text).map_err(|wrong| refused(text, wrong))).transpose()
        };
        let resources = spec.sidecar.as_ref().and_then(|sidecar| sidecar.resources.as_ref());
        let arena = spec.arena.as_ref().and_then(|arena| arena.size.as_ref());
        let arena = read("arena.size", arena, &|text| memory(text, ARENA_MIN, ARENA_MAX))?;
        let base = resources.and_then(|resources| resources.memory.as_ref());
        let base = read("sidecar.resources.memory", base, &|text| memory(text, BASE_MIN, BASE_MAX))?;
        let time = read("sidecar.resources.cpu", resources.and_then(|r| r.cpu.as_ref()), &cpu)?;
        let defaults = &facts.defaults;
        let seats = spec.peers.as_ref().and_then(|peers| peers.max);
        let seats = count(exchange, "peers.max", seats, 1, SEATS_MAX)?.unwrap_or(defaults.seats);
        Ok(Sizes {
            arena: wishes.arena.or(arena).unwrap_or(defaults.arena),
            base: wishes.memory.or(base).unwrap_or(defaults.base) + of_seats(seats),
            seats,
            cpu: wishes.cpu.or(time).unwrap_or(defaults.cpu),
        })
    }
}

/// Bytes that seats take beside what is said: what is said is for [`SEATS`] of them.
fn of_seats(seats: u32) -> Amount {
    Amount::whole(u64::from(seats.saturating_sub(SEATS)) * SEAT)
}

/// Takes a number that a sidecar takes, or it would not start. The API server has checked it, as it has sizes.
fn count(
    exchange: &str,
    field: &'static str,
    said: Option<i32>,
    least: u32,
    most: u32,
) -> Result<Option<u32>, Deny> {
    let Some(said) = said else { return Ok(None) };
    let taken = u32::try_from(said).ok().filter(|said| (least..=most).contains(said));
    taken.map(Some).ok_or_else(|| Deny::InvalidExchange {
        exchange: exchange.to_owned(),
        field,
        value: said.to_string(),
        wrong: format!("not a number from {least} to {most}"),
    })
}

fn same_node(exchange: &str, spec: &ExchangeSpec, facts: &Facts) -> Result<SameNode, Deny> {
    let mode = spec.same_node.unwrap_or(SameNode::Off);
    let level = facts.namespace.pod_security();
    if mode == SameNode::HostPath && level != "privileged" {
        return Err(Deny::HostPathForbidden {
            exchange: exchange.to_owned(),
            namespace: facts.namespace.name.clone(),
            level: level.to_owned(),
        });
    }
    Ok(mode)
}

/// Returns whether the pod is to share its process namespace and does not yet.
fn share_process_namespace(wishes: &Wishes, view: &View) -> Result<bool, Deny> {
    let spec = &view.spec;
    if wishes.share_process_namespace != Some(true) {
        return Ok(false);
    }
    let against = |what| {
        Err(Deny::Contradiction(format!(
            "tensorlane.dev/share-process-namespace: true and {what} of the pod contradict each other: take one away"
        )))
    };
    match spec.share_process_namespace {
        Some(true) => Ok(false),
        Some(false) => against("shareProcessNamespace: false"),
        None if spec.host_pid == Some(true) => against("hostPID: true"),
        None => Ok(true),
    }
}

/// Mode of sharing GPUs. A pod that says so itself must have one; an exchange speaks of those that do.
fn gpu_mode(
    wishes: &Wishes,
    spec: &ExchangeSpec,
    view: &View,
    facts: &Facts,
    shares: bool,
) -> Result<GpuMode, Deny> {
    let has_gpu = gpu::devices(view, &facts.claims).any();
    let of_exchange = spec.gpu.as_ref().and_then(|gpu| gpu.mode);
    let mode = wishes.gpu.or(of_exchange).unwrap_or(GpuMode::Auto);
    let insists = matches!(mode, GpuMode::Broker | GpuMode::LegacyIpc);
    if insists && !has_gpu && wishes.gpu.is_some() {
        return Err(Deny::NoGpu(mode.to_string()));
    }
    let shares = shares || view.spec.share_process_namespace == Some(true);
    match mode {
        GpuMode::None => Ok(GpuMode::None),
        _ if !has_gpu => Ok(GpuMode::None),
        // What nobody insists on stays open: the sidecar does what it can.
        GpuMode::Auto => Ok(GpuMode::Auto),
        GpuMode::Broker => Ok(GpuMode::Broker),
        GpuMode::LegacyIpc if shares => Ok(GpuMode::LegacyIpc),
        GpuMode::LegacyIpc => Err(Deny::Contradiction(
            "gpu: legacy_ipc needs a shared process namespace: say tensorlane.dev/share-process-namespace: \"true\", or gpu: broker"
                .to_owned(),
        )),
    }
}

/// The transports: a pod can only narrow what its exchange allows.
fn transports(
    wishes: &Wishes,
    spec: &ExchangeSpec,
    exchange: &str,
) -> Result<Option<Vec<TransportKind>>, Deny> {
    let (Some(own), Some(allowed)) = (&wishes.transports, &spec.transports) else {
        return Ok(wishes.transports.clone().or_else(|| spec.transports.clone()));
    };
    match own.iter().find(|kind| !allowed.contains(kind)) {
        None => Ok(Some(own.clone())),
        Some(kind) => {
            let allowed: Vec<_> = allowed.iter().map(|kind| kind.as_str()).collect();
            Err(Deny::Contradiction(format!(
                "tensorlane.dev/transports asks for {kind}, which exchange {exchange:?} does not allow; it allows {}: take it away",
                allowed.join(", ")
            )))
        }
    }
}

/// Requirements of the exchange and of the pod, in the order of the words.
fn require(wishes: &Wishes, spec: &ExchangeSpec) -> Vec<Requirement> {
    let own = wishes.require.iter().flatten();
    let mut all: Vec<_> = own.chain(spec.require.iter().flatten()).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}
