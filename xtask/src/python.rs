//! `cargo xtask wheel`, the part `python` and `bench python`: the Python package is built, installed beside numpy, torch and
//! Ray, and tested or measured.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::hash::Hash;
use crate::parts::{Counted, Plan, RELEASE, Step, Surroundings, build_programs, step};
use crate::place::Place;
use crate::room;
use crate::run::Job;
use crate::setup;
use crate::style::Style;

/// The profile that ships: it builds every library anew and optimizes all at once, which takes many times as long.
const SHIPPED: &str = "dist";

/// The programs that a wheel brings, beside the extension.
const PROGRAMS: [&str; 2] = ["tensorlane", "tensorlane-sidecar"];

/// Torch comes with libraries for GPUs: so much unpacked, and as much again while pip unpacks them.
const ROOM: u64 = 14_000_000_000;

/// A Python of this checkout, with exactly the packages of a file.
struct Environment {
    /// Directory of the environment.
    directory: PathBuf,
    requirements: PathBuf,
    /// Said before packages are fetched.
    cost: &'static str,
}

/// Reads the words after `wheel`: the profile of what it brings.
pub(crate) fn parse(words: &[String]) -> Result<&'static str, Failure> {
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => Ok(RELEASE),
        ["--dist"] => Ok(SHIPPED),
        other => Err(Failure::usage(format!("`wheel` takes `--dist` or nothing, not `{}`", other.join(" ")))),
    }
}

/// Packages of Cargo whose programs and libraries are in the wheel.
pub(crate) const PACKAGES: [&str; 3] = ["tensorlane-python", "tensorlane-client", "tensorlane-sidecar"];

/// Date of everything in a wheel, in seconds since 1970: the first that its archive can say.
const FIRST_DATE: &str = "315532800";

/// Release of Python in images: that of the Debian which they are made of.
const IMAGE_PYTHON: &str = "3.11";

/// Builds the wheel under target/wheels; gives an exit code.
pub(crate) fn wheel(profile: &str, place: &Place, style: Style) -> Result<u8, Failure> {
    let wheels = place.wheels();
    let code = build(profile, &wheels, place, style)?;
    if code == 0 {
        println!("the wheel is in {}", style.strong(&place.short(&wheels)));
    }
    Ok(code)
}

/// Builds the wheel into a directory that has nothing else; gives an exit code. Parts of a run that want it at once take turns.
fn build(profile: &str, wheels: &Path, place: &Place, style: Style) -> Result<u8, Failure> {
    let _turn = turn(place)?;
    let python = builder(place, style)?;
    let built = build_programs(profile, &[]).streamed(place, style)?;
    if !built.succeeded() {
        return Ok(built.exit_code());
    }
    gather(profile, place, style)?;
    Failure::unless_gone(fs::remove_dir_all(wheels), wheels)?;
    let maturin = Job::new(python.with_file_name("maturin"), ["build", "--profile", profile, "--out"])
        .with([wheels])
        // The list of what is in it has a date and a number of its own otherwise.
        .env("SOURCE_DATE_EPOCH", FIRST_DATE)
        .inside(place.root().join("python"));
    Ok(maturin.streamed(place, style)?.exit_code())
}

/// Waits until no other run builds the wheel, and keeps others from it until the file is closed.
fn turn(place: &Place) -> Result<fs::File, Failure> {
    let (directory, path) = (place.python(), place.python().join("lock"));
    fs::create_dir_all(&directory).map_err(|error| Failure::file("make", &directory, &error))?;
    let file = fs::File::create(&path).map_err(|error| Failure::file("make", &path, &error))?;
    file.lock().map_err(|error| Failure::file("lock", &path, &error))?;
    Ok(file)
}

/// Lays the package out as images have it, with what it needs: a directory for the path of Python.
pub(crate) fn lay_out(to: &Path, place: &Place, style: Style) -> Result<(), Failure> {
    let failed = || {
        Failure::new("the Python packages of the image could not be laid out").remedy(
            "the first error above says why; pip must reach its index from here (PIP_INDEX_URL, proxies)",
        )
    };
    let wheels = place.images().join("wheels");
    if build(RELEASE, &wheels, place, style)? != 0 {
        return Err(failed());
    }
    let builder = building(place).python();
    let into = || {
        let exact = ["--only-binary=:all:", "--python-version", IMAGE_PYTHON, "--no-compile", "--no-deps"];
        pip(&builder)
            .with(["--quiet", "--progress-bar=off"])
            .with(exact)
            .with(["--target".as_ref(), to.as_os_str()])
    };
    Failure::unless_gone(fs::remove_dir_all(to), to)?;
    let needed = into().with(["-r"]).with([place.root().join("images/python/requirements.txt")]);
    let ours = into().with(["--no-index", "--find-links"]).with([&wheels]).with(["tensorlane"]);
    // Scripts name the Python of this machine.
    let scripts = to.join("bin");
    for job in [needed, ours] {
        if !job.streamed(place, style)?.succeeded() {
            return Err(failed());
        }
        Failure::unless_gone(fs::remove_dir_all(&scripts), &scripts)?;
    }
    Ok(())
}

/// Copies the programs into the package, without the lines of their code.
fn gather(profile: &str, place: &Place, style: Style) -> Result<(), Failure> {
    let package = place.root().join("python/tensorlane/bin");
    fs::create_dir_all(&package).map_err(|error| Failure::file("make", &package, &error))?;
    for name in PROGRAMS {
        let strip = Job::new("strip", ["--strip-debug", "-o"])
            .with([package.join(name), place.programs(profile).join(name)]);
        if !strip.streamed(place, style)?.succeeded() {
            return Err(Failure::new(format!("{name} could not be copied into the package"))
                .remedy("look whether the disk is full, and start again"));
        }
    }
    Ok(())
}

/// The Python of the tests, with numpy, torch and Ray: fetched once, and kept.
pub(crate) fn environment(place: &Place, style: Style) -> Result<PathBuf, Failure> {
    setup::provide(setup::VENV_TOOLS, place, style)?;
    let environment = Environment {
        directory: place.python().join("venv"),
        requirements: place.root().join("python/requirements-test.txt"),
        cost: "torch, Ray and what they need: some 4 GB, minutes on a fast line, once",
    };
    if !environment.is_ready(place)? {
        room::at_least(ROOM, "torch and what it needs", place)?;
    }
    environment.ready(place, style)
}

/// The Python that has those beside whom `bench python` measures; none where it is not here and is not to be fetched.
pub(crate) fn peers(fetched: bool, place: &Place, style: Style) -> Result<Option<PathBuf>, Failure> {
    let environment = Environment {
        directory: place.python().join("peers"),
        requirements: place.root().join("benches/python/requirements-peers.txt"),
        cost: "vineyard, torchstore, Mooncake, NIXL and a torch of their own: some 8 GB, once",
    };
    let is_ready = environment.is_ready(place)?;
    if !fetched {
        return Ok(is_ready.then(|| environment.python()));
    }
    setup::provide(setup::PEERS_TOOLS, place, style)?;
    if !is_ready {
        room::at_least(ROOM, "peers of the bench and what they need", place)?;
    }
    environment.ready(place, style).map(Some)
}

/// The Python that builds the wheel and generates messages, ready to be used.
pub(crate) fn builder(place: &Place, style: Style) -> Result<PathBuf, Failure> {
    setup::provide(setup::WHEEL_TOOLS, place, style)?;
    building(place).ready(place, style)
}

fn building(place: &Place) -> Environment {
    Environment {
        directory: place.python().join("build"),
        requirements: place.root().join("python/requirements-build.txt"),
        cost: "maturin and grpcio-tools: some 20 MB, once",
    }
}

impl Environment {
    fn python(&self) -> PathBuf {
        self.directory.join("bin/python")
    }

    /// Says for which file of requirements it was made.
    fn mark(&self) -> PathBuf {
        self.directory.join("requirements")
    }

    fn wanted(&self) -> Result<String, Failure> {
        Ok(Hash::new().with_file(&self.requirements)?.shown())
    }

    fn is_ready(&self, place: &Place) -> Result<bool, Failure> {
        let made = fs::read_to_string(self.mark()).unwrap_or_default();
        Ok(made == self.wanted()? && Job::new(self.python(), ["--version"]).works(place))
    }

    /// The Python, made or completed where it is not as the file says.
    fn ready(&self, place: &Place, style: Style) -> Result<PathBuf, Failure> {
        let python = self.python();
        if self.is_ready(place)? {
            return Ok(python);
        }
        println!("    fetching into {}: {}", style.strong(&place.short(&self.directory)), self.cost);
        let log = place.log("python-fetch");
        let make = Job::new("python3", ["-m", "venv"]).with([&self.directory]);
        let install = pip(&python).with(["--progress-bar", "off", "-r"]).with([&self.requirements]);
        for job in [make, install] {
            fetched(&job, &log, place, style)?;
        }
        let mark = self.mark();
        fs::write(&mark, self.wanted()?).map_err(|error| Failure::file("write", &mark, &error))?;
        Ok(python)
    }
}

/// TorchRL, with the tensordict that it wants: packages for the Python of the tests, in a directory that goes in front of its path.
fn torchrl(python: &Path, place: &Place, style: Style) -> Result<PathBuf, Failure> {
    let directory = place.python().join("rl");
    let requirements = place.root().join("python/requirements-rl.txt");
    let (mark, wanted) = (directory.join("requirements"), Hash::new().with_file(&requirements)?.shown());
    if fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(directory);
    }
    println!("    fetching into {}: TorchRL, some 5 MB, once", style.strong(&place.short(&directory)));
    Failure::unless_gone(fs::remove_dir_all(&directory), &directory)?;
    let install = pip(python).with(["--progress-bar", "off", "--no-deps", "-r"]).with([&requirements]);
    fetched(&install.with(["--target"]).with([&directory]), &place.log("python-fetch"), place, style)?;
    fs::write(&mark, wanted).map_err(|error| Failure::file("write", &mark, &error))?;
    Ok(directory)
}

/// Runs a job that makes a Python or fetches packages, or says why there is none.
fn fetched(job: &Job, log: &Path, place: &Place, style: Style) -> Result<(), Failure> {
    let shown = job.shown();
    let finished = job.logged(log, place, style)?;
    if finished.succeeded() {
        return Ok(());
    }
    let what = format!("no Python for this: `{shown}`: {}", finished.shown());
    let log = place.short(log);
    Err(Failure::new(what)
        .remedy(format!("read {log}; pip must reach its index from here (PIP_INDEX_URL, proxies)")))
}

fn pip(python: &Path) -> Job {
    Job::new(python, ["-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
}

/// The part `python`.
pub(crate) fn plan(around: &Surroundings<'_>) -> Plan {
    let (place, style) = (around.place, around.style);
    let ready = environment(place, style).and_then(|python| Ok((torchrl(&python, place, style)?, python)));
    match ready {
        Ok((torchrl, python)) => Plan::Run(steps(&python, &torchrl, place)),
        Err(failure) => Plan::Skip(failure.what().to_owned()),
    }
}

/// The Python of the tests with the package of this checkout, built now.
pub(crate) fn installed(profile: &str, place: &Place, style: Style) -> Result<PathBuf, Failure> {
    let python = environment(place, style)?;
    let failed = |what: &str| {
        Failure::new(format!("the Python package could not be {what}"))
            .remedy("the first error above says why")
    };
    if wheel(profile, place, style)? != 0 {
        return Err(failed("built"));
    }
    if !install(&python, place).streamed(place, style)?.succeeded() {
        return Err(failed("installed"));
    }
    Ok(python)
}

fn install(python: &Path, place: &Place) -> Job {
    pip(python)
        .with(["--quiet", "--no-index", "--no-deps", "--force-reinstall", "--find-links"])
        .with([place.wheels()])
        .with(["tensorlane"])
}

fn steps(python: &Path, torchrl: &Path, place: &Place) -> Vec<Step> {
    let wheel = Job::new(place.programs(RELEASE).join("xtask"), ["wheel"]);
    let install = install(python, place);
    let tests = |directory: &str| {
        Job::new(python.with_file_name("pytest"), ["-q", "-rfEs", "--color=no", "-c"])
            .with([place.root().join("python/pyproject.toml"), place.root().join(directory)])
    };
    let beside_torchrl = tests("python/tests/rl").env("PYTHONPATH", torchrl);
    vec![
        step(Counted::Preparation, wheel),
        step(Counted::Preparation, install),
        step(Counted::Tests, tests("python/tests")),
        step(Counted::Tests, beside_torchrl),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_is_as_the_tests_have_it_unless_it_is_to_ship() {
        let parsed = |words: &[&str]| parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(parsed(&[]), Ok("release"));
        assert_eq!(parsed(&["--dist"]), Ok("dist"));
        assert!(parsed(&["--fast"]).unwrap_err().what().contains("`--fast`"));
    }

    #[test]
    fn the_wheel_is_built_and_installed_before_the_tests_and_from_nowhere_else() {
        let place = Place::at(Path::new("/r"));
        let steps = steps(Path::new("/r/target/python/venv/bin/python"), Path::new("/r/rl"), &place);
        let shown: Vec<String> = steps.iter().map(|step| step.job.shown()).collect();
        assert_eq!(shown[0], "xtask wheel");
        assert!(shown[1].contains("--no-index") && shown[1].ends_with("/r/target/wheels tensorlane"));
        assert!(shown[2].starts_with("pytest -q -rfEs"), "{}", shown[2]);
        assert!(shown[3].contains("/r/python/tests/rl"), "{}", shown[3]);
        assert!(steps[2..].iter().all(|step| step.counted == Counted::Tests));
    }

    #[test]
    fn images_have_the_packages_that_the_tests_run_with() {
        let place = Place::of_this_repository().unwrap();
        let lines = |path: &str| -> Vec<String> {
            let text = fs::read_to_string(place.root().join(path)).unwrap();
            text.lines().filter(|line| line.contains("==")).map(str::to_owned).collect()
        };
        let tested = lines("python/requirements-test.txt");
        let shipped = lines("images/python/requirements.txt");
        assert_eq!(shipped.len(), 2, "{shipped:?}");
        for line in shipped {
            assert!(tested.contains(&line), "{line} is not in python/requirements-test.txt");
        }
    }

    #[test]
    fn an_environment_is_ready_only_for_the_file_that_it_was_made_for() {
        let root = std::env::temp_dir().join(format!("xtask-python-{}", std::process::id()));
        let place = Place::at(&root);
        let environment =
            Environment { directory: root.join("venv"), requirements: root.join("r.txt"), cost: "" };
        fs::create_dir_all(root.join("venv/bin")).unwrap();
        std::os::unix::fs::symlink("/bin/true", environment.python()).unwrap();
        fs::write(root.join("r.txt"), "numpy==1").unwrap();
        assert_eq!(environment.is_ready(&place), Ok(false), "nothing says what is in it");
        fs::write(environment.mark(), environment.wanted().unwrap()).unwrap();
        assert_eq!(environment.is_ready(&place), Ok(true));
        fs::write(root.join("r.txt"), "numpy==2").unwrap();
        assert_eq!(environment.is_ready(&place), Ok(false));
        fs::remove_dir_all(&root).unwrap();
    }
}
