//! `cargo xtask house`: what the lint part checks of words and rooms, from the text of the sources alone.
//!
//! - Words: doc comments begin with what they document, and the name of a type occurs once in a crate.
//! - Rooms: the largest circle of imports of each crate, which may not grow.

mod rooms;
mod source;
mod words;

use crate::failure::Failure;
use crate::place::Place;
use crate::style::Style;
use source::Crate;

/// Folders of the workspace that hold crates, and the bound of the largest circle of imports in each, in modules.
///
/// A bound is what there is today: lower it when a circle shrinks.
const CRATES: [(&str, usize); 12] = [
    ("benches", 6),
    ("client", 12),
    ("memory", 6),
    ("memory/cuda", 2),
    ("operator", 14),
    ("proto", 3),
    ("proto/codegen", 0),
    ("python", 4),
    ("sidecar", 42),
    ("tests", 9),
    ("tests/fuzz", 0),
    ("xtask", 12),
];

/// Folders with modules of Python.
const PYTHON: [&str; 3] = ["python/tensorlane", "python/tests", "examples"];

/// Checks every crate and prints what is found.
///
/// # Errors
/// A source that cannot be read.
pub(crate) fn house(place: &Place, style: Style) -> Result<u8, Failure> {
    let mut faults = Vec::new();
    for (folder, bound) in CRATES {
        let read = Crate::read(place.root(), folder)?;
        for source in &read.sources {
            faults.extend(words::pronouns(source));
        }
        faults.extend(words::repeated(&read));
        let circle = rooms::largest_circle(&read);
        println!(
            "{folder}: {} files, the largest circle of imports has {} modules",
            read.sources.len(),
            circle.len()
        );
        if circle.len() > bound {
            let modules = circle.join(", ");
            faults.push(format!(
                "{folder}: a circle of imports has {} modules, {bound} at most: {modules}",
                circle.len()
            ));
        }
    }
    for folder in PYTHON {
        for source in &Crate::of_python(place.root(), folder)?.sources {
            faults.extend(words::pronouns(source));
        }
    }
    for fault in &faults {
        eprintln!("{} {fault}", style.bad("error:"));
    }
    Ok(u8::from(!faults.is_empty()))
}
