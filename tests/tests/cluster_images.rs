//! Images are the same whenever they are made, and say what they are. Needs root and the programs.

use std::process::Stdio;

use tensorlane_tests::cluster::{image, xtask};

/// The lines `NAME DIGEST SIZE …` of images that are made again.
fn made_again(names: &[&str]) -> Vec<String> {
    let output = xtask().args(["images", "--fresh"]).args(names).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().filter(|line| line.starts_with("tensorlane.dev/")).map(str::to_owned).collect()
}

#[test]
fn the_same_checkout_gives_the_same_images() {
    let names = ["sidecar", "workload", "pause"];
    let [first, second] = [(); 2].map(|()| made_again(&names));
    assert_eq!(first, second);
    for (name, line) in names.iter().zip(&first) {
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(image(name).as_str()));
        assert!(
            words.next().is_some_and(|digest| digest.starts_with("sha256:") && digest.len() == 71),
            "{line}"
        );
    }
}
