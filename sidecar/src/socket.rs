//! The sockets that workloads connect to: how one comes into its directory. Knows nothing of what is spoken on it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Binds beside the path and moves the socket over it, so that there is never a moment without one. It does not block.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    let beside = path.with_extension("new");
    match std::fs::remove_file(&beside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(&beside)?;
    // Everyone who sees the directory may connect: the directory is the pod's own, whatever users its containers have.
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o666))?;
    std::fs::rename(&beside, path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
