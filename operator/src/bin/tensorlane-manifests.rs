//! Writes the files under `manifests/`; with `--check` it writes nothing and fails where a file is not what the code says.

use std::path::Path;
use std::{env, fs, io, process};

use tensorlane_operator::manifests::{File, files};

fn main() {
    let check = env::args().any(|argument| argument == "--check");
    if let Err(error) = run(check) {
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
    println!("{} manifests {}", files.len(), if check { "are what the code says" } else { "written" });
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
