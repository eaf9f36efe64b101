//! `cargo xtask images`: OCI archives of our programs, made without a registry. They are not root, need no writable root
//! file system, say where they come from and what is in them, and are the same whenever they are made.

mod build;
mod context;
mod leftovers;
mod list;
mod sbom;
mod stamp;

use std::path::{Path, PathBuf};

use crate::cluster;
use crate::failure::Failure;
use crate::parts::{PROGRAMS, RELEASE};
use crate::place::Place;
use crate::python;
use crate::run::Job;
use crate::setup;
use crate::style::Style;
use list::{IMAGES, Image};
use stamp::{Stamp, version};

/// Prefix of the names of all images. No registry is there; nodes get the images from archives.
const PREFIX: &str = "tensorlane.dev";

/// Options of `cargo xtask images`: the images that are made, and how.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Made again although the inputs are the same.
    fresh: bool,
    /// Not made at all: what another builder makes them from is.
    context_only: bool,
    /// By name; all where empty.
    names: Vec<String>,
}

/// Reads the words after `cargo xtask images`.
pub(crate) fn parse(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    for word in words {
        match word.as_str() {
            "--fresh" => options.fresh = true,
            "--context-only" => options.context_only = true,
            name if name.starts_with('-') => {
                return Err(Failure::usage(format!("`images` has no option `{name}`")));
            }
            name => options.names.push(named(name)?.name.to_owned()),
        }
    }
    Ok(options)
}

fn named(name: &str) -> Result<&'static Image, Failure> {
    IMAGES.iter().find(|image| image.name == name).ok_or_else(|| {
        let known = IMAGES.iter().map(|image| image.name).collect::<Vec<_>>().join(", ");
        Failure::usage(format!("there is no image `{name}`; the images are {known}"))
    })
}

/// The full name of an image.
pub(crate) fn name_of(image: &str) -> String {
    format!("{PREFIX}/{image}:{}", version())
}

/// Path at which the archive of an image lies, below the directory of images.
pub(crate) fn archive(images: &Path, image: &str) -> PathBuf {
    images.join(format!("{image}.tar"))
}

/// Makes the images and prints a line for each: name, digest, size, archive. Of contexts alone: name and directory.
pub(crate) fn images(options: &Options, place: &Place, style: Style) -> Result<u8, Failure> {
    let all = IMAGES.iter().filter(|image| match options.names.is_empty() {
        true => image.is_possible(place.root()),
        false => options.names.iter().any(|name| name == image.name),
    });
    let all: Vec<_> = all.collect();
    match options.context_only {
        true => lay_out(&all, place, style)?,
        false => make(&all, options.fresh, place, style)?,
    }
    Ok(0)
}

/// Makes images where their inputs have changed.
pub(crate) fn provide(names: &[&str], place: &Place, style: Style) -> Result<(), Failure> {
    let images = names.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?;
    make(&images, false, place, style)
}

/// Makes what other builders make the images from.
fn lay_out(images: &[&Image], place: &Place, style: Style) -> Result<(), Failure> {
    provide_inputs(images, setup::CONTEXT_TOOLS, place, style)?;
    for image in images {
        let context = build::lay_out(image, place, &stamp_of(image, place)?)?;
        println!("{} {}", name_of(image.name), place.short(&context));
    }
    Ok(())
}

fn make(images: &[&Image], fresh: bool, place: &Place, style: Style) -> Result<(), Failure> {
    provide_inputs(images, setup::IMAGE_TOOLS, place, style)?;
    for image in images {
        let built = build::build(image, fresh, place, &stamp_of(image, place)?)?;
        let size = format!("{:.1} MB", built.bytes as f64 / 1e6);
        let archive = place.short(&archive(&place.images(), image.name));
        let kept = if built.kept { " (kept)" } else { "" };
        println!("{} {} {size} {archive}{kept}", name_of(image.name), built.digest);
    }
    Ok(())
}

fn stamp_of(image: &Image, place: &Place) -> Result<Stamp, Failure> {
    if image.programs.is_empty() { Ok(Stamp::of_components()) } else { Stamp::of(place) }
}

/// The tools, and the programs that go into the images.
fn provide_inputs(
    images: &[&Image],
    tools: &[setup::Tool],
    place: &Place,
    style: Style,
) -> Result<(), Failure> {
    setup::provide(tools, place, style)?;
    if let Some(image) = images.iter().find(|image| !image.is_possible(place.root())) {
        return Err(Failure::new(format!(
            "the program of the image `{}` is not in this checkout",
            image.name
        )));
    }
    if images.iter().any(|image| !image.components.is_empty()) {
        cluster::provide_components(place, style)?;
    }
    build_programs(images, place, style)?;
    if images.iter().any(|image| image.python) {
        python::lay_out(&place.image_packages(), place, style)?;
    }
    leftovers::clear(&place.images())
}

fn build_programs(images: &[&Image], place: &Place, style: Style) -> Result<(), Failure> {
    let programs = images.iter().flat_map(|image| image.programs).flat_map(|program| ["--bin", program.name]);
    let programs: Vec<_> = programs.collect();
    if programs.is_empty() {
        return Ok(());
    }
    let job = Job::cargo(["build", "--release", "--workspace"])
        .with(programs)
        .env(PROGRAMS, place.programs(RELEASE));
    let built = job.streamed(place, style)?;
    match built.succeeded() {
        true => Ok(()),
        false => Err(Failure::new(format!("the programs could not be built: {}", built.shown()))
            .remedy("the first error above says why")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_a_full_name_with_the_version_of_the_workspace() {
        assert_eq!(name_of("sidecar"), format!("tensorlane.dev/sidecar:{}", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn an_image_or_option_that_does_not_exist_is_refused_by_name() {
        let parsed = |word: &str| parse(&[word.to_owned()]);
        assert!(parsed("sidecars").unwrap_err().what().contains("sidecar, workload"));
        assert!(parsed("--frash").unwrap_err().what().contains("`--frash`"));
        assert_eq!(parsed("--fresh").unwrap(), Options { fresh: true, ..Options::default() });
        assert_eq!(parsed("--context-only").unwrap(), Options { context_only: true, ..Options::default() });
    }
}
