//! A first program: a tensor is put, named by a reference, mapped and read.
//!
//! Run it beside a sidecar: `TENSORLANE_SOCKETS=DIRECTORY cargo run --release -p tensorlane-client --example first`

use std::error::Error;
use std::process::ExitCode;

use tensorlane_client::{AcquireOptions, Client, PutOptions};
use tensorlane_proto::{DType, Descriptor, Layout, Reference, Shape};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Every error is a sentence that says what to do.
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // The sidecar of this pod, in $TENSORLANE_SOCKETS or /run/tensorlane.
    let client = Client::from_env()?;

    // Two rows of three f32.
    let layout = Layout::contiguous(DType::F32, Shape::new(&[2, 3])?)?;
    let bytes: Vec<u8> =
        [1f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let stored = client.put(&Descriptor::host(layout), &bytes, &PutOptions::new())?;

    // A small string: send it to anyone in the exchange. `stored` is the lease that keeps the tensor meanwhile.
    let reference = stored.reference().to_string();
    println!("{reference}");

    // Here, and in the same way in any other process of the exchange.
    let reference: Reference = reference.parse()?;
    let tensor = client.acquire(reference, &AcquireOptions::new())?;
    println!("{} came by {}", tensor.descriptor().layout, tensor.moved());

    // The bytes where they are mapped; nothing was copied to get here.
    if let Some(view) = tensor.view() {
        println!("{} bytes at {:p}", view.len(), view.as_ptr());
    }
    assert_eq!(tensor.to_vec(), bytes);
    Ok(())
}
