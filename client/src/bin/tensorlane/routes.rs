//! `tensorlane routes`: a matrix of peers and transports, with the reason at every refusal.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::{Value, json};
use tensorlane_client::{Client, Moved, PeerStatus};
use tensorlane_proto::Transport;

use crate::args::Routes;
use crate::output::{self, Output};
use crate::watch::watch;

/// What stands at the transport that would be taken.
const TAKEN: &str = "taken";
/// What stands at one that nobody looked at: a better one is taken, or there is no route at all.
const NOTHING: &str = "-";

pub(crate) fn run(client: &Client, output: &Output, args: &Routes) -> Result<()> {
    if !args.watch {
        let peers = others(client)?;
        output.print(|| json(&peers), |out| table(output, out, &peers))?;
        return Ok(());
    }
    watch(output.flow(), args.interval, || {
        let peers = others(client)?;
        Ok(output.state(|| json(&peers), |out| table(output, out, &peers))?)
    })
}

/// What is in the pod itself needs no route.
fn others(client: &Client) -> tensorlane_client::Result<Vec<PeerStatus>> {
    Ok(client.peers()?.into_iter().filter(|peer| peer.state != "self").collect())
}

fn json(peers: &[PeerStatus]) -> Value {
    let one = |peer: &PeerStatus| {
        let route = peer.route.clone().map(Moved::from);
        let transport = route.as_ref().and_then(|route| route.transport);
        let refusals = route.map_or_else(|| json!([]), |route| output::moved(&route)["refusals"].take());
        json!({
            "peer": peer.name,
            "state": peer.state,
            "transport": transport.map(Transport::as_str),
            "refusals": refusals,
        })
    };
    peers.iter().map(one).collect()
}

fn table(output: &Output, out: &mut dyn Write, peers: &[PeerStatus]) -> io::Result<()> {
    let columns = transports().map(|transport| transport.as_str().to_uppercase());
    let headings: Vec<&str> =
        ["PEER", "STATE"].into_iter().chain(columns.iter().map(String::as_str)).collect();
    output.table(out, &headings, &peers.iter().map(row).collect::<Vec<_>>())
}

/// Those between two peers, best first.
fn transports() -> [Transport; 4] {
    [Transport::Shm, Transport::CudaIpc, Transport::Tcp, Transport::Quic]
}

fn row(peer: &PeerStatus) -> Vec<String> {
    let route = peer.route.clone().map(Moved::from);
    let cell = |transport: Transport| {
        let Some(route) = &route else { return NOTHING.to_owned() };
        if route.transport == Some(transport) {
            return TAKEN.to_owned();
        }
        let refused = route.refusals.iter().find(|refused| refused.transport == Some(transport));
        refused.map_or(NOTHING, |refused| refused.why.as_str()).to_owned()
    };
    [peer.name.clone(), peer.state.clone()].into_iter().chain(transports().map(cell)).collect()
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::generated as v1;

    use super::*;

    fn peer(route: Option<v1::Moved>) -> PeerStatus {
        PeerStatus { name: "b".into(), state: "connected".into(), route, ..PeerStatus::default() }
    }

    #[test]
    fn every_transport_is_taken_or_has_its_reason_or_was_not_looked_at() {
        let number = |transport| v1::Transport::from(transport).into();
        let refusal = |transport, why: &str| v1::Refusal { transport: number(transport), why: why.into() };
        let route = v1::Moved {
            transport: number(Transport::Tcp),
            refusals: vec![refusal(Transport::Shm, "other_node")],
            ..v1::Moved::default()
        };
        assert_eq!(row(&peer(Some(route.clone()))), ["b", "connected", "other_node", "-", "taken", "-"]);
        assert_eq!(row(&peer(None)), ["b", "connected", "-", "-", "-", "-"]);
        let told = json(&[peer(Some(route)), peer(None)]);
        assert_eq!(
            (&told[0]["transport"], &told[0]["refusals"][0]["why"]),
            (&json!("tcp"), &json!("other_node"))
        );
        assert_eq!(told[1]["transport"], Value::Null);
    }
}
