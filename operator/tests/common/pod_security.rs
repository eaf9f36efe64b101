//! Pod Security `restricted`, as far as a sidecar can break it, read from the standard's own table.

use serde_json::Value;

const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Violations of `restricted` by a pod.
pub(crate) fn violations(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.push(field.to_owned());
        }
    }
    for volume in list(&spec["volumes"]) {
        let kinds = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        found.extend(
            kinds.filter(|kind| !VOLUMES.contains(&kind.as_str())).map(|kind| format!("volume {kind}")),
        );
    }
    for container in list(&spec["initContainers"]).chain(list(&spec["containers"])) {
        let name = &container["name"];
        let own = &container["securityContext"];
        let either = |path: &str| own.pointer(path).or_else(|| spec["securityContext"].pointer(path));
        let drops_all = list(&own["capabilities"]["drop"]).any(|capability| capability == "ALL");
        let adds = list(&own["capabilities"]["add"]).any(|capability| capability != "NET_BIND_SERVICE");
        let profile = either("/seccompProfile/type").and_then(Value::as_str);
        let rules = [
            ("privileged", own["privileged"] != true),
            ("allowPrivilegeEscalation", own["allowPrivilegeEscalation"] == false),
            ("runAsNonRoot", either("/runAsNonRoot") == Some(&Value::Bool(true))),
            ("runAsUser", either("/runAsUser").is_none_or(|user| user != 0)),
            ("capabilities", drops_all && !adds),
            ("seccompProfile", matches!(profile, Some("RuntimeDefault" | "Localhost"))),
            ("hostPort", list(&container["ports"]).all(|port| port.get("hostPort").is_none())),
        ];
        found.extend(rules.iter().filter(|(_, met)| !met).map(|(rule, _)| format!("{name} {rule}")));
    }
    found
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
