//! The operator itself: two replicas, and the Service in front of their webhook.

use serde_json::{Value, json};

use super::install::{Installation, OPERATOR, SERVICE, labels};

/// Port at which a replica serves the webhook.
pub(super) const WEBHOOK_PORT: u16 = 9443;
/// Port at which a replica serves metrics and probes.
pub(super) const ADMIN_PORT: u16 = 9420;

/// User and group of the operator, those of its image. No node has such a user.
pub(super) const USER: i64 = 64646;

/// The Service in front of the webhook.
pub(super) fn service(installation: &Installation) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": installation.namespace, "labels": labels()},
        "spec": {
            "selector": labels(),
            "ports": [{"name": "webhook", "port": 443, "protocol": "TCP", "targetPort": "webhook"}],
        },
    })
}

/// Service, disruption budget, policy of the network and Deployment.
pub(super) fn all(installation: &Installation) -> [Value; 4] {
    let namespace = &installation.namespace;
    let network = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": OPERATOR, "namespace": namespace, "labels": labels()},
        // The API server has no address that a policy could name. Egress is left to other policies, because policies add up:
        // one that opened all would open what others have closed.
        "spec": {
            "podSelector": {"matchLabels": labels()},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [
                {"port": WEBHOOK_PORT, "protocol": "TCP"},
                {"port": ADMIN_PORT, "protocol": "TCP"},
            ]}],
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": OPERATOR, "namespace": namespace, "labels": labels()},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels()}},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": OPERATOR, "namespace": namespace, "labels": labels()},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels()},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": labels()}, "spec": pod(installation)},
        },
    });
    [service(installation), budget, network, deployment]
}

fn pod(installation: &Installation) -> Value {
    let apart = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels()}});
    json!({
        "serviceAccountName": OPERATOR,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": apart},
        ]}},
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        // The sleep before the end, the grace of open calls, and a little.
        "terminationGracePeriodSeconds": 30,
        "containers": [container(installation)],
    })
}

fn container(installation: &Installation) -> Value {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let probe = |path: &str, seconds: i32| json!({"httpGet": {"path": path, "port": "admin"}, "periodSeconds": seconds});
    json!({
        "name": "operator",
        "image": installation.image,
        "args": [
            format!("--sidecar-image={}", installation.sidecar_image),
            format!("--webhook-listen=0.0.0.0:{WEBHOOK_PORT}"),
            format!("--admin-listen=0.0.0.0:{ADMIN_PORT}"),
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": field("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
        ],
        "ports": [
            {"name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "livenessProbe": probe("/livez", 10),
        "readinessProbe": probe("/readyz", 2),
        // Every node needs a moment to forget this replica, a busy one several seconds; until then it answers.
        "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
            "limits": {"memory": "256Mi", "ephemeral-storage": "1Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsUser": USER,
            "runAsGroup": USER,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}
