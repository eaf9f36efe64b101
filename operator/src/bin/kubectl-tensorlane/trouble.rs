//! Trouble: what went wrong, and what to do about it.

use std::error::Error;
use std::fmt;

/// Reason why the command could not do its work.
#[derive(Debug)]
pub(crate) struct Trouble {
    what: String,
    remedy: String,
}

impl Trouble {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Trouble {
        Trouble { what: what.into(), remedy: remedy.into() }
    }

    /// The cluster is not known: there is no kubeconfig, or it does not say what was asked of it.
    pub(crate) fn of_config(error: &dyn Error) -> Trouble {
        let remedy = "name one by --kubeconfig FILE, --context NAME or KUBECONFIG; `kubectl config get-contexts` lists what there is";
        Trouble::new(format!("no cluster to ask: {error}"), remedy)
    }

    /// Something could not be read.
    pub(crate) fn of_reading(what: &str, error: &kube::Error) -> Trouble {
        Trouble::new(format!("{what} cannot be read: {error}"), remedy(error))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  -> {}", self.what, self.remedy)
    }
}

impl Error for Trouble {}

/// Remedy if the API server did not answer as it should.
fn remedy(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => "log in again: `kubectl auth whoami` says as whom you are known",
            403 => {
                "ask for the right to list it: `kubectl auth can-i --list` says what you may; --as asks as another user"
            }
            404 => "Tensorlane is not installed there: `kubectl tensorlane check` says what is missing",
            _ => "the API server itself refuses: `kubectl get --raw /readyz?verbose` says how it is",
        },
        _ => {
            "`kubectl version` says whether the API server can be reached; --context and --kubeconfig name another one"
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn what_helps_follows_from_what_the_api_server_says() {
        let refused = |code| kube::Error::Api(Box::new(Status { code, ..Status::failure("no", "Reason") }));
        for (code, word) in [(401, "whoami"), (403, "can-i"), (404, "check"), (500, "readyz")] {
            let told = Trouble::of_reading("the peers", &refused(code)).to_string();
            assert!(told.starts_with("the peers cannot be read: ") && told.contains(word), "{told}");
        }
    }
}
