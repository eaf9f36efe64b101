//! Programs in C that limits consist of: compiled where they are needed, by the compiler of the machine.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::scratch::Scratch;

/// Compiler of C, as POSIX names it.
const COMPILER: &str = "cc";

/// Compiles a program of one file; its path.
///
/// # Errors
/// There is no C compiler, or it refuses the program.
pub(super) fn compiled(scratch: &Scratch, name: &str, text: &str) -> Result<PathBuf> {
    let (source, program) =
        (scratch.path().join(format!("{name}.c")), scratch.path().join(format!("{name}.program")));
    std::fs::write(&source, text)?;
    let output = Command::new(COMPILER).args(["-O2", "-o"]).arg(&program).arg(&source).output();
    let output = output.with_context(|| format!("`{COMPILER}` cannot be started: install a C compiler"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{COMPILER}` does not compile {name}.c: {said}");
    Ok(program)
}
