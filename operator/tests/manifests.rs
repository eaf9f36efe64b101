//! The committed manifests are what the code says.

#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn every_manifest_is_what_the_code_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for file in tensorlane_operator::manifests::files().unwrap() {
        let committed = std::fs::read_to_string(root.join(&file.path)).unwrap_or_default();
        assert!(committed == file.text, "{}: run `cargo xtask generate`", file.path.display());
    }
}
