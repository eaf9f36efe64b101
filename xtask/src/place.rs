//! Places of things: the repository and what xtask keeps under `target/`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The directories of one checkout.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    root: PathBuf,
    target: PathBuf,
}

impl Place {
    /// Finds the checkout that this program was started from, wherever in it the user stands.
    pub(crate) fn of_this_repository() -> Result<Self, Failure> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let root = manifest.parent().map(Path::to_path_buf).unwrap_or_default();
        if !root.join("Cargo.toml").is_file() {
            return Err(Failure::new(format!("no workspace at {}", root.display()))
                .remedy("start it as `cargo xtask` inside the repository"));
        }
        let here =
            env::current_dir().map_err(|error| Failure::new(format!("no current directory: {error}")))?;
        let target = target_of(&root, &here, env::var_os("CARGO_TARGET_DIR").map(PathBuf::from));
        Ok(Self { root, target })
    }

    /// The top of the repository.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Path at which the programs of a profile are built.
    pub(crate) fn programs(&self, profile: &str) -> PathBuf {
        self.target.join(profile)
    }

    /// The log of one named job.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.target.join("xtask").join(format!("{name}.log"))
    }

    /// Directory of the tools that cargo installs: in the user's cache, so that a fresh checkout does not build them again. Without a
    /// cache, in this checkout.
    pub(crate) fn tools(&self) -> PathBuf {
        tools_of(&self.target, env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
    }

    /// Path at which the soak keeps histories.
    pub(crate) fn soak(&self) -> PathBuf {
        self.target.join("soak")
    }

    /// Path at which downloaded weights are kept.
    pub(crate) fn weights(&self) -> PathBuf {
        self.target.join("weights")
    }

    /// Directory of the Pythons that build and test the package.
    pub(crate) fn python(&self) -> PathBuf {
        self.target.join("python")
    }

    /// Directory of the built Python package.
    pub(crate) fn wheels(&self) -> PathBuf {
        self.target.join("wheels")
    }

    /// Path at which the test cluster's components, state and logs are kept.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.target.join("cluster")
    }

    /// Path at which container images are kept.
    pub(crate) fn images(&self) -> PathBuf {
        self.target.join("images")
    }

    /// Directory of the Python packages that go into images.
    pub(crate) fn image_packages(&self) -> PathBuf {
        self.images().join("python-packages")
    }

    /// A path as short as it can be said: relative to the repository where it lies inside.
    pub(crate) fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf(), target: root.join("target") }
    }
}

/// An empty or relative path in the environment names no cache.
fn tools_of(target: &Path, cache: Option<OsString>, home: Option<OsString>) -> PathBuf {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(cache)
        .or_else(|| absolute(home).map(|home| home.join(".cache")))
        .map_or_else(|| target.join("tools"), |cache| cache.join("tensorlane").join("tools"))
}

/// A relative target directory is relative to where cargo was started.
fn target_of(root: &Path, here: &Path, wanted: Option<PathBuf>) -> PathBuf {
    wanted.map_or_else(|| root.join("target"), |wanted| here.join(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_directory_is_the_users_choice() {
        let (root, here) = (Path::new("/r"), Path::new("/r/sub"));
        assert_eq!(target_of(root, here, None), Path::new("/r/target"));
        assert_eq!(target_of(root, here, Some("t".into())), Path::new("/r/sub/t"));
        assert_eq!(target_of(root, here, Some("/t".into())), Path::new("/t"));
    }

    #[test]
    fn tools_lie_in_the_cache_of_the_user_and_else_in_the_checkout() {
        let tools =
            |cache: &str, home: &str| tools_of(Path::new("/t"), Some(cache.into()), Some(home.into()));
        assert_eq!(tools("/c", "/h"), Path::new("/c/tensorlane/tools"));
        assert_eq!(tools("", "/h"), Path::new("/h/.cache/tensorlane/tools"));
        assert_eq!(tools("relative", ""), Path::new("/t/tools"));
        assert_eq!(tools_of(Path::new("/t"), None, None), Path::new("/t/tools"));
    }

    #[test]
    fn paths_inside_the_repository_are_said_short() {
        let place = Place::at(Path::new("/r"));
        assert_eq!(place.short(&place.log("unit")), "target/xtask/unit.log");
        assert_eq!(place.short(Path::new("/elsewhere/x")), "/elsewhere/x");
    }
}
