//! The last good table, kept in the state directory as a peers file. A sidecar that restarts while the API server is away
//! starts with it; a list that succeeds replaces it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tokio::sync::watch;

use super::super::PeerTable;
use super::super::parse::{FILE_BYTES_MAX, parse_claims};
use crate::plain;

/// The table that was kept; none where there is none, or none that can be read.
pub(super) fn load(path: &Path) -> Option<PeerTable> {
    let read = fs::metadata(path).and_then(|data| match data.len() {
        0..=FILE_BYTES_MAX => plain::open(path).and_then(io::read_to_string),
        more => Err(io::Error::other(format!("{more} bytes"))),
    });
    let table = match read {
        Ok(text) => parse_claims(&text).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error.to_string()),
    };
    match table {
        Ok(table) => {
            tracing::info!(peers = table.len(), "starting with the peers of before the restart");
            Some(table)
        }
        Err(wrong) => {
            tracing::warn!(file = %path.display(), wrong, "the kept table of peers is of no use: starting without");
            None
        }
    }
}

/// Keeps each table, with `pause` between two times, until the directory is dropped.
pub(super) async fn keep(path: PathBuf, mut table: watch::Receiver<Arc<PeerTable>>, pause: Duration) {
    let mut kept = Arc::clone(&table.borrow_and_update());
    while table.changed().await.is_ok() {
        let now = Arc::clone(&table.borrow_and_update());
        // A refresh that found nothing new wakes us too.
        if *now == *kept {
            continue;
        }
        if let Err(error) = save(&path, &now) {
            tracing::warn!(file = %path.display(), %error, "the table of peers is not kept: a restart without the API server would know nobody");
        }
        kept = now;
        tokio::time::sleep(pause).await;
    }
}

/// Whole or not at all: by renaming.
fn save(path: &Path, table: &PeerTable) -> io::Result<()> {
    let draft = path.with_extension("new");
    fs::write(&draft, text(table))?;
    fs::rename(&draft, path)
}

/// Text that [`parse_claims`] reads as the same table. Names, addresses and fingerprints have no letter that needs an
/// escape.
fn text(table: &PeerTable) -> String {
    let mut text = String::from(if table.is_empty() { "peers: []\n" } else { "peers:\n" });
    for entry in table.iter() {
        let keys: Vec<_> = entry.fingerprints.iter().map(ToString::to_string).collect();
        let node = entry.node.as_deref().map(|node| format!(", node: {node:?}")).unwrap_or_default();
        // Without it nobody would wait for it, as for one that only connects to others.
        let awaits_ip = if entry.awaits_ip { ", awaits_ip: true" } else { "" };
        // Writing to a text never fails.
        let _ = writeln!(
            text,
            "- {{name: {:?}, addresses: {:?}, fingerprints: {keys:?}{node}{awaits_ip}}}",
            entry.name.as_str(),
            entry.addresses
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::identity::Fingerprint;

    use super::super::super::PeerEntry;
    use super::*;

    fn table(count: u8) -> PeerTable {
        let entry = |i: u8| PeerEntry {
            name: format!("{i}.5e3").parse().unwrap(),
            addresses: vec![format!("[fd00::{i}]:9421"), "a:1".to_owned()],
            fingerprints: vec![Fingerprint([i; 32])],
            node: i.is_multiple_of(2).then(|| format!("node-{i}")),
            awaits_ip: i.is_multiple_of(3),
        };
        PeerTable::new((0..count).map(entry).collect()).unwrap()
    }

    #[test]
    fn what_is_kept_is_read_as_the_same_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.yaml");
        assert!(load(&path).is_none());
        for count in [0, 1, 9] {
            save(&path, &table(count)).unwrap();
            assert_eq!(load(&path), Some(table(count)));
        }
        // Also with somebody in it who claims the key of another one: a restart must not forget everybody for that.
        let entry = |name: &str| PeerEntry {
            name: name.parse().unwrap(),
            addresses: Vec::new(),
            fingerprints: vec![Fingerprint([7; 32])],
            node: None,
            awaits_ip: false,
        };
        let contested = PeerTable::of_claims(vec![Arc::new(entry("a")), Arc::new(entry("b"))]).unwrap();
        save(&path, &contested).unwrap();
        assert_eq!(load(&path), Some(contested));
    }

    #[test]
    fn a_file_of_no_use_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.yaml");
        fs::write(&path, "peers: [").unwrap();
        assert!(load(&path).is_none());
    }
}
