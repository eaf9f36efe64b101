//! A Python with torch, beside which `bench paths` measures: fetched once where somebody asks for it, and kept.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::place::Place;
use crate::room;
use crate::run::Job;
use crate::setup;
use crate::style::Style;

/// What is fetched; it brings everything else that it needs.
const PACKAGE: &str = "torch";

/// It comes with libraries for GPUs: so much unpacked, and as much again while pip unpacks them.
const ROOM: u64 = 14_000_000_000;

/// Ends well where the Python that runs it has what is measured.
const PROBE: [&str; 2] = ["-c", "import torch.distributed"];

/// The Python, made where it is not here yet.
pub(crate) fn python(place: &Place, style: Style) -> Result<PathBuf, Failure> {
    let directory = place.gloo();
    let python = directory.join("bin/python");
    if python.exists() && Job::new(&python, PROBE).works(place) {
        return Ok(python);
    }
    setup::provide(setup::GLOO_TOOLS, place, style)?;
    room::at_least(ROOM, "torch and what it needs", place)?;
    println!(
        "fetching {PACKAGE} into {}: some 4 GB, minutes on a fast line, once",
        style.strong(&place.short(&directory))
    );
    let log = place.log("gloo");
    // One that was left half made is made again.
    let make = Job::new("python3", ["-m", "venv", "--clear"]).with([&directory]);
    let install =
        ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"];
    let install = Job::new(&python, install).with([PACKAGE]);
    for job in [make, install] {
        let finished = job.logged(&log, place, style)?;
        if !finished.succeeded() {
            let what = format!("no Python with {PACKAGE}: `{}`: {}", job.shown(), finished.shown());
            let remedy = format!(
                "read {}; pip must reach its index from here (PIP_INDEX_URL, proxies)",
                place.short(&log)
            );
            return Err(Failure::new(what).remedy(remedy));
        }
    }
    match Job::new(&python, PROBE).works(place) {
        true => Ok(python),
        false => Err(Failure::new(format!("{} cannot import torch.distributed", place.short(&python)))
            .remedy("run it by hand with `-c 'import torch.distributed'`: it says why")),
    }
}
