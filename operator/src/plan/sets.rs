//! The volume of the pod in which sets on files lie.
//!
//! Nothing is made: the volume is the author's own, and containers that mount it keep their mounts. The sidecar gets one more,
//! writable. What it could never write there is refused here, and not found by a sidecar that does not start.

use k8s_openapi::api::core::v1::{PodSpec, Volume};

use super::facts::Facts;
use super::reason::Deny;
use crate::annotations::{SetsVolume, Wishes};
use crate::names::VOLUMES;

/// The most volumes that a refusal names.
const SHOWN: usize = 20;

/// The volume that the pod wants its sets in; none where it wants none on files.
pub(super) fn volume(wishes: &Wishes, spec: &PodSpec, facts: &Facts) -> Result<Option<SetsVolume>, Deny> {
    let Some(sets) = &wishes.sets else { return Ok(None) };
    let name = sets.volume.as_str();
    let refused = |wrong: String| Deny::SetsVolume { volume: name.to_owned(), wrong };
    if VOLUMES.contains(&name) {
        return Err(refused("which is the sidecar's own: name one of the pod's".to_owned()));
    }
    let volumes = || spec.volumes.iter().flatten();
    let Some(volume) = volumes().find(|volume| volume.name == name) else {
        if facts.claim_templates.iter().any(|claim| claim == name) {
            return Ok(Some(sets.clone()));
        }
        let there = volumes().map(|volume| &volume.name).chain(&facts.claim_templates);
        let there: Vec<&str> = there.take(SHOWN).map(String::as_str).collect();
        let there = if there.is_empty() { "no volume".to_owned() } else { there.join(", ") };
        return Err(refused(format!("and the pod has {there}: add it to spec.volumes, or correct the name")));
    };
    match unfit(volume) {
        Some(wrong) => Err(refused(wrong)),
        None => Ok(Some(sets.clone())),
    }
}

/// Reason why the sidecar cannot write there, and what to do; none where nothing that is seen speaks against it.
fn unfit(volume: &Volume) -> Option<String> {
    let never = [
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("projected", volume.projected.is_some()),
        ("image", volume.image.is_some()),
    ];
    if let Some((kind, _)) = never.into_iter().find(|(_, is_it)| *is_it) {
        return Some(format!(
            "whose kind ({kind}) nobody can write: use an emptyDir, a persistentVolumeClaim or another one that can be written"
        ));
    }
    let claim = volume.persistent_volume_claim.as_ref();
    let read_only = [
        ("persistentVolumeClaim", claim.and_then(|claim| claim.read_only)),
        ("csi", volume.csi.as_ref().and_then(|csi| csi.read_only)),
        ("nfs", volume.nfs.as_ref().and_then(|nfs| nfs.read_only)),
        ("cephfs", volume.cephfs.as_ref().and_then(|ceph| ceph.read_only)),
        ("iscsi", volume.iscsi.as_ref().and_then(|iscsi| iscsi.read_only)),
        ("rbd", volume.rbd.as_ref().and_then(|rbd| rbd.read_only)),
        ("glusterfs", volume.glusterfs.as_ref().and_then(|gluster| gluster.read_only)),
    ];
    if let Some((kind, _)) = read_only.into_iter().find(|(_, is_it)| *is_it == Some(true)) {
        return Some(format!(
            "which {kind}.readOnly: true makes read-only: take that away, or name another one"
        ));
    }
    // Its pages would be the sidecar's memory, beside the arena.
    let medium = volume.empty_dir.as_ref().and_then(|directory| directory.medium.as_deref());
    (medium == Some("Memory")).then(|| {
        "an emptyDir in memory, which would be the memory of the sidecar: take medium: Memory away, or make the set without files".to_owned()
    })
}
