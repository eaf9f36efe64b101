//! Images are the same whenever they are made, small, and say what they are. Needs root and the programs.

use std::process::Stdio;

use tensorlane_tests::cluster::{image, xtask};

/// The lines `NAME DIGEST SIZE …` of images that are made again.
fn made_again(names: &[&str]) -> Vec<String> {
    let output = xtask().args(["images", "--fresh"]).args(names).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().filter(|line| line.starts_with("tensorlane.dev/")).map(str::to_owned).collect()
}

/// Our images, and the most that the archive of each may have, in megabytes. The arena is no part of them, and nodes pull
/// them when pods wait: what makes one much larger has to be wanted.
const MOST: [(&str, f64); 3] = [("sidecar", 20.0), ("workload", 10.0), ("operator", 30.0)];

#[test]
fn the_same_checkout_gives_the_same_small_images() {
    let names: Vec<&str> = MOST.iter().map(|(name, _)| *name).chain(["pause"]).collect();
    let [first, second] = [(); 2].map(|()| made_again(&names));
    assert_eq!(first, second);
    assert_eq!(first.len(), names.len(), "a line for each: {first:?}");
    for (name, line) in names.iter().zip(&first) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], image(name));
        assert!(words[1].starts_with("sha256:") && words[1].len() == 71, "{line}");
        let (megabytes, unit) = (words[2].parse::<f64>().unwrap(), words[3]);
        assert_eq!(unit, "MB", "{line}");
        let most = MOST.iter().find(|(known, _)| known == name).map_or(2.0, |(_, most)| *most);
        assert!(megabytes > 0.1 && megabytes <= most, "at most {most} MB: {line}");
    }
}
