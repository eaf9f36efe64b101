//! The tools of the system that demo, test, cluster and images need: what is missing, and how it comes here.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::failure::Failure;
use crate::place::Place;
use crate::run::Job;
use crate::style::Style;

/// A program of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    name: &'static str,
    /// A command that ends well where the tool is there.
    probe: &'static [&'static str],
    /// Package that brings the program on Debian and Ubuntu.
    package: &'static str,
    /// Functions that do not work without it; none if nothing works.
    without: Option<&'static str>,
}

const PYTHON: Tool =
    Tool { name: "python3", probe: &["python3", "--version"], package: "python3", without: None };
const PIP: Tool = Tool {
    name: "pip",
    probe: &["python3", "-m", "pip", "--version"],
    package: "python3-pip",
    without: None,
};
const IP: Tool = Tool {
    name: "ip",
    probe: &["ip", "-V"],
    package: "iproute2",
    without: Some("network namespaces are not used; sidecars meet on the loopback device"),
};

/// Everything that the demo needs.
pub(crate) const TOOLS: &[Tool] = &[PYTHON, PIP, IP];

const NFT: Tool = Tool {
    name: "nft",
    probe: &["nft", "--version"],
    package: "nftables",
    without: Some(
        "no link can be made to lose packets: suites that make bad weather, the soak and the row `choice` fail",
    ),
};

/// Tools that suites in network namespaces need besides.
pub(crate) const NETNS_TOOLS: &[Tool] = &[
    NFT,
    Tool {
        name: "faketime",
        probe: &["faketime", "-v"],
        package: "faketime",
        without: Some("a test of a peer with another calendar fails"),
    },
];

/// Everything that `bench paths` needs.
pub(crate) const PATHS_TOOLS: &[Tool] = &[
    IP,
    NFT,
    Tool {
        name: "iperf3",
        probe: &["iperf3", "--version"],
        package: "iperf3",
        without: Some("`tcp.get_shaped` is not measured"),
    },
];

/// Libraries that peers of `bench python` are linked with.
pub(crate) const PEERS_TOOLS: &[Tool] = &[
    Tool {
        name: "libibverbs",
        probe: &["python3", "-c", "import ctypes; ctypes.CDLL('libibverbs.so.1')"],
        package: "libibverbs1",
        without: Some("Mooncake's engine does not start, and is not measured"),
    },
    Tool {
        name: "libmlx5",
        probe: &["python3", "-c", "import ctypes; ctypes.CDLL('libmlx5.so.1')"],
        package: "ibverbs-providers",
        without: Some("torchstore does not start, and is not measured"),
    },
    Tool {
        name: "cc",
        probe: &["cc", "--version"],
        package: "gcc",
        without: Some("torchstore does not start without a GPU's driver, and is not measured"),
    },
];

/// Everything that a Python of this checkout needs.
pub(crate) const VENV_TOOLS: &[Tool] = &[PYTHON, VENV];

const VENV: Tool = needed("venv", &["python3", "-c", "import ensurepip, venv"], "python3-venv");

const fn needed(name: &'static str, probe: &'static [&'static str], package: &'static str) -> Tool {
    Tool { name, probe, package, without: None }
}

/// Everything that the test cluster needs besides its own components and Go.
const CLUSTER_TOOLS: &[Tool] = &[
    needed("ip", &["ip", "-V"], "iproute2"),
    needed("runc", &["runc", "--version"], "runc"),
    needed("nft", &["nft", "--version"], "nftables"),
    needed("iptables", &["iptables", "--version"], "iptables"),
    needed("conntrack", &["conntrack", "--version"], "conntrack"),
    needed("openssl", &["openssl", "version"], "openssl"),
    needed("nsenter", &["nsenter", "--version"], "util-linux"),
    needed("mount", &["mount", "--version"], "mount"),
];

const MMDEBSTRAP: Tool = needed("mmdebstrap", &["mmdebstrap", "--version"], "mmdebstrap");
const STRIP: Tool = needed("strip", &["strip", "--version"], "binutils");

/// Everything that building the Python package needs.
pub(crate) const WHEEL_TOOLS: &[Tool] = &[PYTHON, VENV, STRIP];

/// Everything that the contexts of images need.
pub(crate) const CONTEXT_TOOLS: &[Tool] = &[MMDEBSTRAP, STRIP];

/// Everything that making images needs.
pub(crate) const IMAGE_TOOLS: &[Tool] =
    &[needed("buildah", &["buildah", "--version"], "buildah"), MMDEBSTRAP, STRIP];

/// Directories that every node of the cluster has a version of its own of: what lies there is not seen by it.
const HIDDEN_FROM_NODES: [&str; 3] = ["/run", "/var/lib", "/var/log"];

/// Action for the tools that are missing.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Install these packages.
    Install(Vec<&'static str>),
    /// Nothing can be installed; go on without these.
    GoWithout(Vec<Tool>),
    /// Nothing can be installed, and nothing works without them.
    Stop(Failure),
}

/// Held while packages are looked for and installed: both lanes of the tests may want some, and apt serves one.
static APT: Mutex<()> = Mutex::new(());

/// Installs what is missing, where that is allowed.
pub(crate) fn provide(tools: &[Tool], place: &Place, style: Style) -> Result<(), Failure> {
    let _alone = APT.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = missing(tools, place);
    if missing.is_empty() {
        return Ok(());
    }
    let able = is_root() && Job::new("apt-get", ["--version"]).works(place);
    match action(&missing, able) {
        Action::Install(packages) => {
            install(&packages, place, style)?;
            match action(&self::missing(tools, place), false) {
                Action::Stop(failure) => Err(failure),
                _ => Ok(()),
            }
        }
        Action::GoWithout(tools) => {
            for tool in tools {
                let without = tool.without.unwrap_or_default();
                println!("{} `{}` is missing: {without}", style.warned("NOTE:"), tool.name);
            }
            Ok(())
        }
        Action::Stop(failure) => Err(failure),
    }
}

fn missing(tools: &[Tool], place: &Place) -> Vec<Tool> {
    tools.iter().copied().filter(|tool| !Job::new(tool.probe[0], &tool.probe[1..]).works(place)).collect()
}

fn action(missing: &[Tool], able: bool) -> Action {
    let packages: Vec<_> = missing.iter().map(|tool| tool.package).collect();
    if able {
        return Action::Install(packages);
    }
    let needed: Vec<_> = missing.iter().filter(|tool| tool.without.is_none()).map(|tool| tool.name).collect();
    if needed.is_empty() {
        return Action::GoWithout(missing.to_vec());
    }
    let remedy = format!("`apt-get install {}` as root, or what your system has for it", packages.join(" "));
    Action::Stop(Failure::new(format!("missing on this machine: {}", needed.join(", "))).remedy(remedy))
}

fn install(packages: &[&str], place: &Place, style: Style) -> Result<(), Failure> {
    println!("installing what is missing: {}", packages.join(" "));
    let log = place.log("setup");
    let apt = |arguments: &[&str]| {
        Job::new("apt-get", arguments).env("DEBIAN_FRONTEND", "noninteractive").logged(&log, place, style)
    };
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    if apt(&install)?.succeeded() {
        return Ok(());
    }
    // A fresh machine has no lists of packages, or lists of yesterday.
    apt(&["update"])?;
    let finished = apt(&install)?;
    if finished.succeeded() {
        return Ok(());
    }
    let failure =
        Failure::new(format!("apt-get could not install {}: {}", packages.join(" "), finished.shown()));
    Err(failure.remedy(format!("read {}, or install them by hand", place.short(&log))))
}

/// Checks that this process may make network namespaces; if not, says why.
pub(crate) fn network_namespaces(place: &Place, style: Style) -> Result<(), String> {
    if !is_root() {
        return Err("network namespaces need root: run it as root or under sudo".to_owned());
    }
    provide(&[IP], place, style).map_err(|failure| failure.what().to_owned())?;
    if !missing(&[IP], place).is_empty() {
        return Err("`ip` is missing: install iproute2".to_owned());
    }
    let name = format!("tensorlane-xtask-{}", std::process::id());
    if !Job::new("ip", ["netns", "add", &name]).works(place) {
        return Err(
            "`ip netns add` is refused here, though this is root (a container without rights?)".to_owned()
        );
    }
    Job::new("ip", ["netns", "delete", &name]).works(place);
    Ok(())
}

/// Checks that this machine can run the test cluster, whose files lie in `state`; if not, says why.
pub(crate) fn cluster_can_run(place: &Place, style: Style, state: &Path) -> Result<(), String> {
    network_namespaces(place, style)?;
    if let Some(hidden) = HIDDEN_FROM_NODES.iter().find(|hidden| state.starts_with(hidden)) {
        return Err(format!(
            "{} lies below {hidden}, which nodes do not see: set CARGO_TARGET_DIR",
            state.display()
        ));
    }
    if !Job::new("go", ["version"]).works(place) {
        return Err("the cluster is built from Go modules, and `go` is missing: https://go.dev/dl".to_owned());
    }
    for tools in [CLUSTER_TOOLS, IMAGE_TOOLS] {
        provide(tools, place, style).map_err(|failure| failure.what().to_owned())?;
    }
    Ok(())
}

fn is_root() -> bool {
    effective_user(&fs::read_to_string("/proc/self/status").unwrap_or_default()) == Some(0)
}

/// The effective user in /proc/self/status.
fn effective_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_gets_what_is_missing_installed() {
        assert_eq!(action(&[PIP, IP], true), Action::Install(vec!["python3-pip", "iproute2"]));
    }

    #[test]
    fn others_are_told_what_to_install() {
        let Action::Stop(failure) = action(&[PIP, IP], false) else { panic!("it must stop") };
        assert_eq!(failure.what(), "missing on this machine: pip");
        assert!(failure.shown(Style::plain()).contains("apt-get install python3-pip iproute2"));
    }

    #[test]
    fn what_is_not_needed_is_done_without() {
        assert_eq!(action(&[IP], false), Action::GoWithout(vec![IP]));
    }

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(effective_user("Name:\tx\nUid:\t1000\t0\t1000\t1000\n"), Some(0));
        assert_eq!(effective_user("Name:\tx\n"), None);
    }

    #[test]
    fn a_tool_that_does_not_run_is_missing() {
        let nothing = Tool { name: "nothing", probe: &["false"], package: "none", without: None };
        let place = Place::at(&std::env::temp_dir());
        assert_eq!(missing(&[nothing], &place), [nothing]);
    }
}
