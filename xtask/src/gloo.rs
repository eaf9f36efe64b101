//! A Python with torch, beside which `bench paths` measures: that of the tests, fetched once and kept.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::place::Place;
use crate::python;
use crate::run::Job;
use crate::style::Style;

/// Ends well where the Python that runs it has what is measured.
const PROBE: [&str; 2] = ["-c", "import torch.distributed"];

/// The Python, made where it is not here yet.
pub(crate) fn python(place: &Place, style: Style) -> Result<PathBuf, Failure> {
    let python = python::environment(place, style)?;
    match Job::new(&python, PROBE).works(place) {
        true => Ok(python),
        false => Err(Failure::new(format!("{} cannot import torch.distributed", place.short(&python)))
            .remedy("run it by hand with `-c 'import torch.distributed'`: it says why")),
    }
}
