//! `tensorlane inject`: manifests in, manifests with sidecars out. What happened to each pod goes to standard error. As JSON
//! the manifests are one `List`, which kubectl applies, too.

use std::io::Read;

use anyhow::{Result, anyhow, bail};
use serde_json::json;
use tensorlane_operator::offline::{self, BYTES_MAX};
use tensorlane_operator::plan::Defaults;

use crate::args::Inject;
use crate::output::Output;

pub(crate) fn run(output: &Output, inject: &Inject) -> Result<()> {
    let yaml = read(inject)?;
    let image = inject.sidecar_image.clone().unwrap_or_else(|| Defaults::default().image);
    let defaults = inject.sidecar.defaults(image);
    let injected = offline::inject(&yaml, &inject.namespace, &defaults)?;
    for note in &injected.notes {
        output.note(&format!("{}: {}", note.object, note.text));
    }
    let denied = injected.notes.iter().filter(|note| note.denied).count();
    if denied > 0 {
        // Manifests that are half of what was asked for would be applied by whoever is behind a pipe.
        bail!("{denied} cannot be injected, so nothing is printed");
    }
    let list = || json!({ "apiVersion": "v1", "kind": "List", "items": injected.objects });
    output.print_document(list, &injected.yaml)?;
    Ok(())
}

fn read(inject: &Inject) -> Result<String> {
    let most = BYTES_MAX as u64 + 1;
    let name = inject.file.display();
    let mut text = String::new();
    let read = if inject.file.as_os_str() == "-" {
        std::io::stdin().take(most).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(&inject.file).map_err(|error| {
            anyhow!("{name} cannot be opened ({error}): name a file of manifests, or - for standard input")
        })?;
        file.take(most).read_to_string(&mut text)
    };
    read.map_err(|error| anyhow!("{name} cannot be read ({error}): manifests are a file of YAML in UTF-8"))?;
    Ok(text)
}
