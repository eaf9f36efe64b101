//! Packages that the sidecar is built of: nothing of GPUs.

use std::process::Command;

/// The packages that a package is built of, with all of its features.
fn packages(of: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "tree",
        "--package",
        of,
        "--edges",
        "normal,build",
        "--all-features",
        "--prefix",
        "none",
        "--offline",
    ]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("text");
    tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_sidecar_has_nothing_of_cuda_and_the_client_has() {
    let cuda = |of: &str| packages(of).into_iter().any(|name| name.contains("cuda"));
    assert!(packages("tensorlane-sidecar").contains(&"tensorlane-memory".to_owned()));
    assert!(!cuda("tensorlane-sidecar"));
    assert!(cuda("tensorlane-client"), "else this test would see nothing");
}
