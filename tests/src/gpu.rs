//! Processes that use GPU memory: over the stand-in for the driver (`tests/fake-gpu`), or over the machine's own.
//!
//! The stand-in's memory is memory of the host: what runs over it proves logic, and nothing of speed.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use crate::dialogue::Dialogue;
use crate::sidecar::{Sidecar, bin_dir};

/// A driver for processes that a test starts.
#[derive(Debug, Clone)]
pub struct GpuDriver {
    variables: Vec<(String, String)>,
}

/// A running process of `bin/gpu.rs`, which has a session.
#[derive(Debug)]
pub struct GpuWorkload {
    child: Child,
    dialogue: Dialogue,
}

// === impl GpuDriver ===

impl GpuDriver {
    /// The machine's own.
    pub fn real() -> Self {
        Self { variables: Vec::new() }
    }

    /// The stand-in.
    pub fn fake() -> Self {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        Self::in_folder(FOLDER.get_or_init(|| compiled("whole", &[])))
    }

    /// The stand-in as a driver that is too old to export memory.
    pub fn old() -> Self {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        Self::in_folder(FOLDER.get_or_init(|| compiled("old", &["-DWITHOUT_EXPORT"])))
    }

    /// None: what is found first is no library.
    ///
    /// # Panics
    /// Where no such file can be written.
    pub fn none() -> Self {
        let folder = folder("none");
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(folder.join(name), "no library").expect("a file");
        }
        Self::in_folder(&folder)
    }

    fn in_folder(folder: &Path) -> Self {
        Self { variables: Vec::new() }.with("LD_LIBRARY_PATH", folder.display())
    }

    /// With a variable of the environment, such as those that the stand-in reads.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }
}

/// A folder of its own beside the programs under test.
fn folder(name: &str) -> PathBuf {
    let folder = bin_dir().join("fake-gpu").join(name);
    std::fs::create_dir_all(&folder).expect("a folder beside the programs");
    folder
}

/// Compiles the stand-in; the folder that it lies in.
fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let folder = folder(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fake-gpu/libcuda.c");
    // Under a name of its own until it is whole: other suites may be starting programs over it.
    let fresh = folder.join(format!("fresh-{}", std::process::id()));
    let arguments = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o"];
    let mut command = Command::new("cc");
    command.args(arguments).arg(&fresh).args(flags).arg(source);
    let status = command.status().expect("a compiler of C (cc)");
    assert!(status.success(), "the stand-in for the driver does not compile");
    std::fs::rename(fresh, folder.join("libcuda.so.1")).expect("it takes its place");
    folder
}

// === impl GpuWorkload ===

impl GpuWorkload {
    /// Starts one that has a session with the sidecar.
    ///
    /// # Panics
    /// Where it does not come to its session.
    pub fn start(sidecar: &Sidecar, driver: &GpuDriver) -> Self {
        let mut command = Command::new(bin_dir().join("gpu"));
        command.arg(sidecar.sockets()).envs(driver.variables.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program gpu; build it first");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let dialogue = Dialogue::new(input.expect("its input"), output.expect("its output"));
        let mut workload = Self { child, dialogue };
        workload.expect("ready");
        workload
    }

    /// Process id of the workload.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it at once and waits until it is gone.
    ///
    /// # Panics
    /// Where it cannot be killed.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// Ends it in order.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn finish(mut self) -> ExitStatus {
        self.dialogue.close();
        self.child.wait().expect("it ends when its input does")
    }
}

impl Deref for GpuWorkload {
    type Target = Dialogue;

    fn deref(&self) -> &Dialogue {
        &self.dialogue
    }
}

impl DerefMut for GpuWorkload {
    fn deref_mut(&mut self) -> &mut Dialogue {
        &mut self.dialogue
    }
}

impl Drop for GpuWorkload {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Number of descriptors that a process has that are open on a file whose name holds `part`; all of them for an empty
/// one.
///
/// # Panics
/// Where there is no such process.
pub fn descriptors(pid: u32, part: &str) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is there");
    let names = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    names.filter(|name| name.to_string_lossy().contains(part)).count()
}

/// Number of maps that a process has of files whose name holds `part`.
///
/// # Panics
/// Where there is no such process.
pub fn maps(pid: u32, part: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process is there");
    maps.lines().filter(|line| line.contains(part)).count()
}
