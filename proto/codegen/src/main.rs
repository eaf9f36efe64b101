//! Generates `proto/src/generated` from the `.proto` files, in pure Rust (protox, no protoc).
//!
//! `tensorlane-proto-codegen` writes the files; with `--check` it writes nothing and fails where a committed file
//! differs from what would be generated. The generated files are committed so that nobody who builds Tensorlane
//! needs a protobuf compiler.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

use prost::Message as _;

const FILES: [&str; 7] = [
    "tensor.proto",
    "set.proto",
    "workload.proto",
    "channel.proto",
    "pipe.proto",
    "session.proto",
    "peer.proto",
];
const MESSAGES: &str = "tensorlane.v1.rs";
const DESCRIPTORS: &str = "descriptors.bin";

fn main() {
    let check = env::args().any(|a| a == "--check");
    if let Err(error) = run(check) {
        eprintln!("error: {error}");
        process::exit(1);
    }
}

fn run(check: bool) -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the crate has a parent folder")?;
    let committed = proto.join("src/generated");
    if !check {
        fs::create_dir_all(&committed)?;
        generate(proto, &committed)?;
        println!("wrote {MESSAGES} and {DESCRIPTORS}");
        return Ok(());
    }
    let fresh = env::temp_dir().join(format!("tensorlane-codegen-{}", process::id()));
    fs::create_dir_all(&fresh)?;
    let outcome = generate(proto, &fresh).and_then(|()| compare(&committed, &fresh));
    fs::remove_dir_all(&fresh)?;
    outcome
}

/// Writes the messages (with services behind the feature `grpc`) and the descriptor set into `out`.
fn generate(proto: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let root = proto.join("proto");
    let files: Vec<PathBuf> = FILES.iter().map(|f| root.join("tensorlane/v1").join(f)).collect();
    let set = protox::compile(&files, [&root])?;
    fs::write(out.join(DESCRIPTORS), set.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".tensorlane.v1")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .codec_path("crate::codec::WeighedCodec")
        .out_dir(out)
        .compile_fds(set)?;
    Ok(())
}

fn compare(committed: &Path, fresh: &Path) -> Result<(), Box<dyn Error>> {
    for name in [MESSAGES, DESCRIPTORS] {
        let want = fs::read(fresh.join(name))?;
        let have = fs::read(committed.join(name)).unwrap_or_default();
        if want != have {
            return Err(format!("{name} is not what the .proto files say: run `cargo xtask generate`").into());
        }
    }
    println!("the generated code is what the .proto files say");
    Ok(())
}
