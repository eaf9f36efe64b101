//! The dashboard for Grafana: a row of this table is a panel.

use serde_json::{Value, json};

/// A panel.
struct Panel {
    title: &'static str,
    /// A unit of Grafana.
    unit: &'static str,
    /// Queries to Prometheus, each with the name of its line.
    queries: &'static [(&'static str, &'static str)],
}

/// Panels across the dashboard.
const ACROSS: usize = 3;

/// Only what the chosen namespaces and exchanges of the sidecars say.
const PANELS: &[Panel] = &[
    Panel {
        title: "Bytes got, by transport",
        unit: "Bps",
        queries: &[(
            "sum by (transport) (rate(tensorlane_get_bytes_total{namespace=~\"$namespace\"}[$__rate_interval]))",
            "{{transport}}",
        )],
    },
    Panel {
        title: "Bytes put",
        unit: "Bps",
        queries: &[(
            "sum by (transport) (rate(tensorlane_put_bytes_total{namespace=~\"$namespace\"}[$__rate_interval]))",
            "{{transport}}",
        )],
    },
    Panel {
        title: "Transfers that took a worse transport",
        unit: "ops",
        queries: &[(
            "sum by (from, to, reason) (rate(tensorlane_route_fallbacks_total{namespace=~\"$namespace\"}[$__rate_interval]))",
            "{{from}} to {{to}}: {{reason}}",
        )],
    },
    Panel {
        title: "Seconds of a get, 50 and 99 of 100",
        unit: "s",
        queries: &[
            (
                "histogram_quantile(0.5, sum by (le, transport) (rate(tensorlane_get_duration_seconds_bucket{namespace=~\"$namespace\"}[$__rate_interval])))",
                "{{transport}} p50",
            ),
            (
                "histogram_quantile(0.99, sum by (le, transport) (rate(tensorlane_get_duration_seconds_bucket{namespace=~\"$namespace\"}[$__rate_interval])))",
                "{{transport}} p99",
            ),
        ],
    },
    Panel {
        title: "Calls that failed",
        unit: "ops",
        queries: &[(
            "sum by (verb, result) (rate(tensorlane_call_items_total{namespace=~\"$namespace\", result!=\"OK\"}[$__rate_interval]))",
            "{{verb}} {{result}}",
        )],
    },
    Panel {
        title: "Requests that wait",
        unit: "short",
        queries: &[(
            "sum by (for) (tensorlane_sidecar_waiting_requests{namespace=~\"$namespace\"})",
            "for {{for}}",
        )],
    },
    Panel {
        title: "Bytes of arenas, by state",
        unit: "bytes",
        queries: &[("sum by (state) (tensorlane_arena_bytes{namespace=~\"$namespace\"})", "{{state}}")],
    },
    Panel {
        title: "Tensors, leases, names, tickets",
        unit: "short",
        queries: &[
            (
                "sum by (kind) (tensorlane_ledger_live_tensors{namespace=~\"$namespace\"})",
                "tensors: {{kind}}",
            ),
            ("sum(tensorlane_ledger_live_leases{namespace=~\"$namespace\"})", "leases"),
            ("sum(tensorlane_ledger_live_names{namespace=~\"$namespace\"})", "names"),
            ("sum(tensorlane_ledger_live_tickets{namespace=~\"$namespace\"})", "tickets"),
        ],
    },
    Panel {
        title: "Bytes freed, by cause",
        unit: "Bps",
        queries: &[(
            "sum by (cause) (rate(tensorlane_ledger_freed_bytes_total{namespace=~\"$namespace\"}[$__rate_interval]))",
            "{{cause}}",
        )],
    },
    Panel {
        title: "Peers, by how they stand with each other",
        unit: "short",
        queries: &[("sum by (state) (tensorlane_peer_known_peers{namespace=~\"$namespace\"})", "{{state}}")],
    },
    Panel {
        title: "Seconds since the directory spoke, the longest",
        unit: "s",
        queries: &[("max(tensorlane_directory_age_seconds{namespace=~\"$namespace\"})", "age")],
    },
    Panel {
        title: "Pods that asked for a sidecar",
        unit: "ops",
        queries: &[(
            "sum by (result) (rate(tensorlane_operator_injections_total[$__rate_interval]))",
            "{{result}}",
        )],
    },
    Panel {
        title: "Rows of mutable sets",
        unit: "ops",
        queries: &[
            (
                "sum(rate(tensorlane_set_rows_read_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "read",
            ),
            (
                "sum(rate(tensorlane_set_rows_written_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "written",
            ),
        ],
    },
    Panel {
        title: "Commits and snapshots of mutable sets",
        unit: "ops",
        queries: &[
            (
                "sum(rate(tensorlane_set_commits_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "commits",
            ),
            (
                "sum(rate(tensorlane_set_snapshots_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "snapshots",
            ),
        ],
    },
    Panel {
        title: "Bytes of mutable sets",
        unit: "bytes",
        queries: &[
            ("sum(tensorlane_set_held_bytes{namespace=~\"$namespace\"})", "in the arena"),
            ("sum(tensorlane_set_files_bytes{namespace=~\"$namespace\"})", "on files"),
        ],
    },
    Panel {
        title: "Messages of channels, and what slow readers cost",
        unit: "ops",
        queries: &[
            (
                "sum(rate(tensorlane_channel_messages_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "written",
            ),
            (
                "sum by (policy) (rate(tensorlane_channel_dropped_messages_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "dropped: {{policy}}",
            ),
            (
                "sum(rate(tensorlane_channel_evicted_readers_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "readers evicted",
            ),
        ],
    },
    Panel {
        title: "Channels, readers, pipes, listeners",
        unit: "short",
        queries: &[
            ("sum(tensorlane_channel_live_channels{namespace=~\"$namespace\"})", "channels"),
            ("sum(tensorlane_channel_live_readers{namespace=~\"$namespace\"})", "readers"),
            ("sum(tensorlane_pipe_live_pipes{namespace=~\"$namespace\"})", "pipes"),
            ("sum(tensorlane_pipe_live_listeners{namespace=~\"$namespace\"})", "listeners"),
        ],
    },
    Panel {
        title: "Messages of pipes that nobody has read",
        unit: "short",
        queries: &[
            ("sum(tensorlane_pipe_unread_messages{namespace=~\"$namespace\"})", "unread"),
            (
                "sum(rate(tensorlane_pipe_messages_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "read a second",
            ),
        ],
    },
];

/// The dashboard.
pub(super) fn dashboard() -> Value {
    let panels: Vec<Value> = PANELS.iter().enumerate().map(|(index, panel)| panel.json(index)).collect();
    json!({
        "uid": "tensorlane",
        "title": "Tensorlane",
        "tags": ["tensorlane"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [
            {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {
                "name": "namespace", "type": "query", "datasource": source(), "refresh": 2,
                "query": "label_values(tensorlane_sidecar_build_info, namespace)",
                "includeAll": true, "multi": true, "current": {"text": "All", "value": "$__all"},
            },
        ]},
        "panels": panels,
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${source}"})
}

impl Panel {
    fn json(&self, index: usize) -> Value {
        let targets: Vec<Value> = self
            .queries
            .iter()
            .zip('A'..)
            .map(|((query, name), id)| {
                json!({"refId": id.to_string(), "datasource": source(), "expr": query, "legendFormat": name})
            })
            .collect();
        json!({
            "id": index + 1,
            "type": "timeseries",
            "title": self.title,
            "datasource": source(),
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "gridPos": {"x": index % ACROSS * 8, "y": index / ACROSS * 8, "w": 8, "h": 8},
            "targets": targets,
        })
    }
}
