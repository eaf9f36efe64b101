//! End of the row `py.get_local_4k`: gets of a tensor by our client, for a bench that is written in Python.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use tensorlane_benches::pairs::median_us;
use tensorlane_benches::worker;
use tensorlane_client::{AcquireOptions, Client, Target};
use tensorlane_proto::Reference;

/// A process that gets tensors, as many for each line as it says.
#[derive(Debug, clap::Args)]
pub(crate) struct Getter {
    /// The sockets of the sidecar.
    sockets: PathBuf,
}

/// Question of the bench in Python, as its own ends are asked.
#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(rename = "do")]
    what: String,
    token: String,
    /// Gets of which the median is told.
    count: usize,
}

/// Answer, as its own ends answer.
#[derive(Debug, Serialize)]
struct Got<T> {
    got: T,
}

impl Getter {
    /// Answers with microseconds, until its input ends.
    pub(crate) fn run(self) -> Result<()> {
        let client = Client::connect(&self.sockets)?;
        let options = AcquireOptions::new();
        worker::say(&Got { got: "ready" })?;
        worker::serve(|asked: Asked| {
            if asked.what != "get_us" {
                bail!("nothing but get_us is asked here, not {}", asked.what);
            }
            let target = Target::from(asked.token.parse::<Reference>()?);
            let got = median_us(asked.count, || {
                drop(client.acquire(&target, &options)?);
                Ok(())
            })?;
            Ok(Got { got })
        })
    }
}
