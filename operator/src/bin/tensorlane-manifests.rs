//! Writes the files under `manifests/`; with `--check` it writes nothing and fails where a file is not what the code says.

use std::io::Write;
use std::path::Path;
use std::{env, fs, io, process};

use tensorlane_operator::manifests::{File, files};

const USAGE: &str = "usage: tensorlane-manifests [--check]
Writes the files under manifests/ and charts/; with --check it writes none, and fails where one is not what the code says.
";

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(false),
        ["--check"] => run(true),
        ["--help" | "-h"] => io::stdout().write_all(USAGE.as_bytes()).map_err(Box::from),
        _ => {
            eprint!("error: unknown arguments {words:?}\n{USAGE}");
            process::exit(2);
        }
    };
    if let Err(error) = done {
        eprintln!("error: {error}");
        process::exit(1);
    }
}

fn run(check: bool) -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the crate has a parent folder")?;
    let files = files()?;
    for file in &files {
        if check { compare(root, file)? } else { write(root, file)? }
    }
    let done = if check { "are what the code says" } else { "written" };
    writeln!(io::stdout(), "{} manifests {done}", files.len())?;
    Ok(())
}

fn write(root: &Path, file: &File) -> io::Result<()> {
    let path = root.join(&file.path);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, &file.text)
}

fn compare(root: &Path, file: &File) -> Result<(), String> {
    let committed = fs::read_to_string(root.join(&file.path)).unwrap_or_default();
    if committed == file.text {
        return Ok(());
    }
    Err(format!("{} is not what the code says: run `cargo xtask generate`", file.path.display()))
}
