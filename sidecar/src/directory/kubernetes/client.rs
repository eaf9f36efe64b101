//! Client by which the API server is reached: as a pod, with the token of its service account, or by a kubeconfig.
//!
//! Token and certificate authority are read again as they are rotated (by the client, about once a minute). Retries are
//! ours: the client's own would wait without anybody seeing it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Time that a connection to the API server may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Reason for which there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not in a pod, or in one without a token.
    #[error("this is no pod with a token of a service account, and peers.kubeconfig is not set: {0}")]
    InCluster(#[from] InClusterError),
    /// The kubeconfig cannot be used.
    #[error("peers.kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Error that says what is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// TLS cannot be set up, or the address is none.
    #[error("client of the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// A client, and the namespace that belongs to it. Nothing is sent yet. Needs a runtime of tokio around it.
///
/// # Errors
/// There is no token, no address, or a kubeconfig that cannot be used.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<(Client, String), ClientError> {
    let mut config = match kubeconfig {
        None => Config::incluster()?,
        Some(path) => from_file(path).await.map_err(|source| {
            let (path, source) = (path.to_owned(), Box::new(source));
            ClientError::Kubeconfig { path, source }
        })?,
    };
    config.connect_timeout = Some(CONNECT);
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).map_err(|error| ClientError::Client(Box::new(error)))?;
    Ok((client, namespace))
}

async fn from_file(path: &Path) -> Result<Config, KubeconfigError> {
    let file = Kubeconfig::read_from(path)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await
}
