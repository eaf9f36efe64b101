//! The volumes that a pod gets for its sidecar, and which paths they need.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource,
    HostPathVolumeSource, KeyToPath, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSpec,
    ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeDevice, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tensorlane_proto::crd::SameNode;

use super::reason::Deny;
use super::settle::Settled;
use crate::names::{
    NODE_PATH, NODE_VOLUME, SETS_PATH, SOCKETS_PATH, SOCKETS_VOLUME, STATE_PATH, STATE_VOLUME, TOKEN_PATH,
    TOKEN_VOLUME, VOLUMES, node_claim, node_directory,
};

/// The life of a token, in seconds: an hour and a little, which is what Kubernetes gives every pod.
const TOKEN_SECONDS: i64 = 3607;

/// Returns whether a volume is one of ours.
pub(super) fn is_ours(name: &str) -> bool {
    VOLUMES.contains(&name)
}

/// Contents of each of our volumes, for whoever mounts it.
const KEPT: [(&str, &str); 4] = [
    (SOCKETS_VOLUME, "its sockets, which are read-only for others"),
    (STATE_VOLUME, "its key"),
    (TOKEN_VOLUME, "its token"),
    (NODE_VOLUME, "its sockets for sidecars of the node"),
];

/// Refuses containers of any kind that mount one of our volumes by its name. Volumes of a pod are for each of its
/// containers to mount, so only this keeps key and token from them. The sockets may be mounted read-only, elsewhere too.
pub(super) fn refuse_use_of_ours(spec: &PodSpec) -> Result<(), Deny> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = containers.map(|one| (&one.name, &one.volume_mounts, &one.volume_devices));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|one| (&one.name, &one.volume_mounts, &one.volume_devices));
    for (container, mounts, devices) in containers.chain(ephemeral) {
        let harmless = |mount: &&VolumeMount| mount.name == SOCKETS_VOLUME && mount.read_only == Some(true);
        let mounted = mounts.iter().flatten().filter(|mount| !harmless(mount)).map(|mount| &mount.name);
        let devices = devices.iter().flatten().map(|device: &VolumeDevice| &device.name);
        let ours = |name: &String| KEPT.into_iter().find(|(volume, _)| volume == name);
        if let Some((volume, kept)) = mounted.chain(devices).find_map(ours) {
            return Err(Deny::SidecarVolume {
                container: container.clone(),
                volume: volume.to_owned(),
                kept,
            });
        }
    }
    Ok(())
}

/// Returns whether a mount there hides the sockets, or would have to be made inside a read-only volume.
pub(super) fn is_in_the_way(path: &str) -> bool {
    let parts = |path: &str| -> Vec<String> {
        path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect()
    };
    let path = match path.strip_prefix("/var/run") {
        // The same directory in almost every image.
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("/run{rest}"),
        _ => path.to_owned(),
    };
    parts(&path).starts_with(&parts(SOCKETS_PATH))
}

/// The volumes, the one for the node only where pods of a node share memory.
pub(super) fn volumes(settled: &Settled, namespace: &str) -> Vec<Volume> {
    let mut all = vec![
        memory(SOCKETS_VOLUME, "1Mi"),
        // The key, and what is kept over a restart of the container: small files.
        memory(STATE_VOLUME, "16Mi"),
        token(),
    ];
    all.extend(node(settled, namespace));
    all
}

fn memory(name: &str, size: &str) -> Volume {
    let directory = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(Quantity(size.to_owned())),
    };
    Volume { name: name.to_owned(), empty_dir: Some(directory), ..Volume::default() }
}

/// Volume that every container of a pod gets by default, but for the sidecar alone.
fn token() -> Volume {
    let token = ServiceAccountTokenProjection {
        path: "token".to_owned(),
        expiration_seconds: Some(TOKEN_SECONDS),
        audience: None,
    };
    let authority = ConfigMapProjection {
        name: "kube-root-ca.crt".to_owned(),
        items: Some(vec![KeyToPath { key: "ca.crt".to_owned(), path: "ca.crt".to_owned(), mode: None }]),
        optional: None,
    };
    let namespace = DownwardAPIVolumeFile {
        path: "namespace".to_owned(),
        field_ref: Some(ObjectFieldSelector {
            api_version: Some("v1".to_owned()),
            field_path: "metadata.namespace".to_owned(),
        }),
        ..DownwardAPIVolumeFile::default()
    };
    let sources = vec![
        VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
        VolumeProjection { config_map: Some(authority), ..VolumeProjection::default() },
        VolumeProjection {
            downward_api: Some(DownwardAPIProjection { items: Some(vec![namespace]) }),
            ..VolumeProjection::default()
        },
    ];
    let projected = ProjectedVolumeSource { sources: Some(sources), default_mode: None };
    Volume { name: TOKEN_VOLUME.to_owned(), projected: Some(projected), ..Volume::default() }
}

fn node(settled: &Settled, namespace: &str) -> Option<Volume> {
    let volume = Volume { name: NODE_VOLUME.to_owned(), ..Volume::default() };
    match settled.same_node {
        SameNode::Off => None,
        SameNode::Claim => {
            let claim = PersistentVolumeClaimVolumeSource {
                claim_name: node_claim(&settled.exchange),
                read_only: None,
            };
            Some(Volume { persistent_volume_claim: Some(claim), ..volume })
        }
        SameNode::HostPath => {
            let directory = HostPathVolumeSource {
                path: node_directory(namespace, &settled.exchange),
                type_: Some("Directory".to_owned()),
            };
            Some(Volume { host_path: Some(directory), ..volume })
        }
    }
}

/// The mounts of the sidecar.
pub(super) fn sidecar_mounts(settled: &Settled) -> Vec<VolumeMount> {
    let mut all = vec![
        mount(SOCKETS_VOLUME, SOCKETS_PATH, None),
        mount(STATE_VOLUME, STATE_PATH, None),
        mount(TOKEN_VOLUME, TOKEN_PATH, Some(true)),
    ];
    if settled.same_node != SameNode::Off {
        all.push(mount(NODE_VOLUME, NODE_PATH, None));
    }
    all.extend(settled.sets.as_ref().map(|sets| VolumeMount {
        sub_path: sets.sub_path.clone(),
        ..mount(sets.volume.as_str(), SETS_PATH, None)
    }));
    all
}

/// The mount of a workload: a client only connects, so it can change nothing there.
pub(super) fn workload_mount() -> VolumeMount {
    mount(SOCKETS_VOLUME, SOCKETS_PATH, Some(true))
}

fn mount(volume: &str, path: &str, read_only: Option<bool>) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), read_only, ..VolumeMount::default() }
}
