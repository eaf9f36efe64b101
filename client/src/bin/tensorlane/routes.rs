//! `tensorlane routes`: a matrix of peers and transports, with the reason at every one that is not taken.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tensorlane_client::{Client, PeerStatus};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Transport, wire};

use crate::args::Routes;
use crate::output::{self, Output};
use crate::watch::{State, watch};

/// Word at the transport that would be taken, and said of it.
const TAKEN: &str = "taken";
/// Word for one that would do, which stands before the reason why another one is taken.
const FITS: &str = "fits";
/// Word for one that cannot be had; its reason stands alone.
const REFUSED: &str = "refused";
/// Word at one of which the sidecar says nothing: it is older than this command.
const NOTHING: &str = "-";

/// The states of a peer that has no connection, although one was tried.
const NOT_REACHED: [&str; 2] = ["unreachable", "connecting"];

/// Choice to show what was measured. It changes with every large tensor, so it alone is no news to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speeds {
    Shown,
    LeftOut,
}

pub(crate) fn run(client: &Client, output: &Output, args: &Routes) -> Result<()> {
    if !args.watch {
        let peers = others(client)?;
        if peers.is_empty() {
            output.warn("no other peer is known");
        }
        output.print(|| json(&peers, Speeds::Shown), |out| table(output, out, &peers, Speeds::Shown))?;
        return Ok(());
    }
    watch(output.flow(), args.interval, || {
        let peers = others(client)?;
        let state = |speeds| output.state(|| json(&peers, speeds), |out| table(output, out, &peers, speeds));
        Ok(State { news: state(Speeds::LeftOut)?, shown: state(Speeds::Shown)? })
    })
}

/// Peers that have routes. What is in the pod itself needs no route, and there is none to who has left.
fn others(client: &Client) -> tensorlane_client::Result<Vec<PeerStatus>> {
    let has_routes = |peer: &PeerStatus| !["self", "left"].contains(&peer.state.as_str());
    Ok(client.peers()?.into_iter().filter(has_routes).collect())
}

/// Standing of every transport towards a peer; from a sidecar that is too old to say, as much as its route tells.
fn candidates(peer: &PeerStatus) -> Vec<v1::Candidate> {
    let Some(route) = peer.route.as_ref().filter(|_| peer.candidates.is_empty()) else {
        return peer.candidates.clone();
    };
    let refused = |refusal: &v1::Refusal| v1::Candidate {
        transport: refusal.transport,
        standing: REFUSED.to_owned(),
        why: refusal.why.clone(),
        ..v1::Candidate::default()
    };
    let taken =
        v1::Candidate { transport: route.transport, standing: TAKEN.to_owned(), ..v1::Candidate::default() };
    let taken = wire::transport(route.transport).map(|_| taken);
    route.refusals.iter().map(refused).chain(taken).collect()
}

fn json(peers: &[PeerStatus], speeds: Speeds) -> Value {
    let word = |transport| wire::transport(transport).map_or("unknown", Transport::as_str);
    let one = |peer: &PeerStatus| {
        let all = candidates(peer);
        let with = |standing: &'static str| all.iter().filter(move |one| one.standing == standing);
        let refusals = with(REFUSED).map(|one| json!({ "transport": word(one.transport), "why": one.why }));
        let every = all.iter().map(|one| {
            let why = Some(&one.why).filter(|why| !why.is_empty());
            let (transport, standing) = (word(one.transport), &one.standing);
            let mut value =
                json!({ "transport": transport, "standing": standing, "why": why, "plain": one.plain });
            if speeds == Speeds::Shown {
                output::merge(&mut value, json!({ "bytes_per_second": goodput(one) }));
            }
            value
        });
        json!({
            "peer": peer.name,
            "state": peer.state,
            "transport": with(TAKEN).map(|one| word(one.transport)).next(),
            "refusals": refusals.collect::<Vec<_>>(),
            "candidates": every.collect::<Vec<_>>(),
            "gpus": peer.gpus.iter().map(gpu).collect::<Vec<_>>(),
        })
    };
    peers.iter().map(one).collect()
}

/// A GPU that either side reaches, and whether tensors there are mapped.
fn gpu(route: &v1::GpuRoute) -> Value {
    let hex: String = route.cuda_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let why = Some(&route.why).filter(|why| !why.is_empty());
    let driver = Some(route.cuda_driver).filter(|driver| *driver > 0);
    json!({ "uuid": hex, "standing": route.standing, "why": why, "driver": driver })
}

fn table(output: &Output, out: &mut dyn Write, peers: &[PeerStatus], speeds: Speeds) -> io::Result<()> {
    let columns = transports().map(|transport| transport.as_str().to_uppercase());
    let headings: Vec<&str> =
        ["PEER", "STATE"].into_iter().chain(columns.iter().map(String::as_str)).collect();
    let rows: Vec<_> = peers.iter().map(|peer| row(peer, speeds)).collect();
    output.table(out, &headings, &rows)
}

/// Transports between two peers, best first.
fn transports() -> [Transport; 4] {
    [Transport::Shm, Transport::CudaIpc, Transport::Tcp, Transport::Quic]
}

fn row(peer: &PeerStatus, speeds: Speeds) -> Vec<String> {
    let all = candidates(peer);
    let cell = |transport: Transport| {
        let one = all.iter().find(|one| wire::transport(one.transport) == Some(transport));
        one.map_or_else(|| NOTHING.to_owned(), |one| cell(one, taken(peer), speeds))
    };
    [peer.name.clone(), peer.state.clone()].into_iter().chain(transports().map(cell)).collect()
}

/// Nothing is taken towards a peer that could not be reached, or not yet. One that is idle is reached with the first call.
fn taken(peer: &PeerStatus) -> &'static str {
    if NOT_REACHED.contains(&peer.state.as_str()) { "if_reached" } else { TAKEN }
}

/// `taken`, `other_node`, `fits:slower (1.20 GB/s)`, `taken:plain`
fn cell(one: &v1::Candidate, taken: &str, speeds: Speeds) -> String {
    let stands = match one.standing.as_str() {
        TAKEN => taken.to_owned(),
        FITS => format!("{FITS}:{}", one.why),
        _ => one.why.clone(),
    };
    let stands = if one.plain() && one.standing != REFUSED { stands + ":plain" } else { stands };
    match goodput(one).filter(|_| speeds == Speeds::Shown) {
        Some(rate) => format!("{stands} ({})", output::rate(rate as u64, Duration::from_secs(1))),
        None => stands,
    }
}

/// Bytes a second, where measured.
fn goodput(one: &v1::Candidate) -> Option<f64> {
    (one.goodput > 0.0).then_some(one.goodput)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(route: Option<v1::Moved>, candidates: Vec<v1::Candidate>) -> PeerStatus {
        let (name, state) = ("b".into(), "connected".into());
        PeerStatus { name, state, route, candidates, ..PeerStatus::default() }
    }

    fn number(transport: Transport) -> i32 {
        v1::Transport::from(transport).into()
    }

    fn candidate(transport: Transport, standing: &str, why: &str, goodput: f64) -> v1::Candidate {
        let (standing, why) = (standing.into(), why.into());
        v1::Candidate { transport: number(transport), standing, why, goodput, plain: None }
    }

    fn measured() -> PeerStatus {
        let all = vec![
            candidate(Transport::Shm, "refused", "other_node", 0.0),
            candidate(Transport::CudaIpc, "refused", "other_node", 0.0),
            candidate(Transport::Tcp, "taken", "", 3.4e9),
            candidate(Transport::Quic, "fits", "slower", 1.2e9),
        ];
        peer(None, all)
    }

    #[test]
    fn every_transport_is_taken_or_has_its_reason_with_what_was_measured() {
        assert_eq!(
            row(&measured(), Speeds::Shown)[2..],
            ["other_node", "other_node", "taken (3.40 GB/s)", "fits:slower (1.20 GB/s)"]
        );
        let told = json(&[measured()], Speeds::Shown);
        assert_eq!(told[0]["transport"], json!("tcp"));
        assert_eq!(told[0]["refusals"].as_array().map(Vec::len), Some(2), "what fits is not refused");
        let quic = json!({
            "transport": "quic", "standing": "fits", "why": "slower", "plain": null, "bytes_per_second": 1.2e9
        });
        assert_eq!(told[0]["candidates"][3], quic);
        assert_eq!(told[0]["candidates"][2]["why"], Value::Null);
    }

    #[test]
    fn a_gpu_is_told_by_its_uuid_with_the_reason_why_nothing_is_mapped_there() {
        let gpus = vec![v1::GpuRoute {
            cuda_uuid: vec![0xab; 16].into(),
            standing: "refused".into(),
            why: "other_gpu".into(),
            cuda_driver: 0,
        }];
        let told = json(&[PeerStatus { gpus, ..measured() }], Speeds::Shown);
        let expected =
            json!({ "uuid": "ab".repeat(16), "standing": "refused", "why": "other_gpu", "driver": null });
        assert_eq!(told[0]["gpus"], json!([expected]));
    }

    #[test]
    fn what_was_measured_is_no_news() {
        let mut later = measured();
        later.candidates[2].goodput = 3.5e9;
        let (table, told) = (|peer| row(peer, Speeds::LeftOut), |peer| json(&[peer], Speeds::LeftOut));
        assert_eq!(table(&measured()), table(&later));
        assert_eq!(told(measured()), told(later));
    }

    #[test]
    fn what_would_come_in_the_clear_is_told_before_it_does() {
        let mut plain = measured();
        plain.candidates[2].plain = Some(true);
        assert_eq!(row(&plain, Speeds::Shown)[4], "taken:plain (3.40 GB/s)");
        assert_eq!(json(&[plain], Speeds::Shown)[0]["candidates"][2]["plain"], json!(true));
    }

    #[test]
    fn an_older_sidecar_tells_the_route_alone() {
        let refusal = v1::Refusal { transport: number(Transport::Shm), why: "other_node".into() };
        let route =
            v1::Moved { transport: number(Transport::Tcp), refusals: vec![refusal], ..v1::Moved::default() };
        let old = peer(Some(route), Vec::new());
        assert_eq!(row(&old, Speeds::Shown), ["b", "connected", "other_node", "-", "taken", "-"]);
        let gone = PeerStatus { state: "unreachable".into(), ..old.clone() };
        assert_eq!(row(&gone, Speeds::Shown)[4], "if_reached");
        let silent = peer(None, Vec::new());
        assert_eq!(row(&silent, Speeds::Shown), ["b", "connected", "-", "-", "-", "-"]);
        let told = json(&[old, silent], Speeds::Shown);
        let first = (&told[0]["transport"], &told[0]["refusals"][0]["why"]);
        assert_eq!(first, (&json!("tcp"), &json!("other_node")));
        assert_eq!(told[1]["transport"], Value::Null);
    }
}
