use super::*;
use crate::findings::Level;
use crate::inspect::cluster::tests::ml;

/// The namespace with these policies, and with pods of `default` that have these further labels.
fn with(policies: &[Value], pods: &[(&str, Value)]) -> Namespace {
    let pod = |(name, more): &(&str, Value)| {
        let mut labels = json!(own_labels("default"));
        for (key, value) in more.as_object().unwrap() {
            labels[key] = value.clone();
        }
        json!({"metadata": {"name": name, "labels": labels}})
    };
    let pods: Vec<Value> = pods.iter().map(pod).collect();
    Namespace {
        policies: Seen::There(json!({"items": policies})),
        pods: Seen::There(json!({"items": pods})),
        ..ml()
    }
}

fn a_policy(name: &str, selector: &Value, ingress: &Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    })
}

fn only(of: &Namespace) -> Finding {
    let all = findings(of);
    assert_eq!(all.len(), 1, "{all:#?}");
    all[0].clone()
}

#[test]
fn a_port_that_no_policy_closes_is_told_with_the_policy_that_does() {
    let open = only(&with(&[], &[]));
    assert_eq!(open.level, Level::Note);
    assert_eq!(
        open.found,
        "default: port 9421 of its pods is open to everyone: no NetworkPolicy selects them"
    );
    let remedy = open.remedy.unwrap();
    let (_, yaml) = remedy.split_once("<<'END'\n").unwrap();
    let told: Value = serde_yaml::from_str(yaml.strip_suffix("END").unwrap()).unwrap();
    assert_eq!(told, policy("ml", "default"));
    let typed: NetworkPolicy = serde_json::from_value(told.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), told, "no field is misspelt");

    // Applied, it closes the port, and that of no other exchange.
    let closed = with(&[told], &[("a", json!({}))]);
    assert_eq!(only(&closed).level, Level::Ok);
    let policies = [serde_json::from_value(policy("ml", "default")).unwrap()];
    assert_eq!(reach(&policies, &own_labels("other")), Reach::Unselected);
}

#[test]
fn what_selects_the_pods_and_whom_it_lets_in_decides() {
    let ours = policy("ml", "default")["spec"]["podSelector"].clone();
    let named = json!([{"from": [{"podSelector": {}}]}]);
    for (selector, ingress, is_closed) in [
        (json!({}), json!([]), true),
        (json!({}), json!(null), true),
        (ours.clone(), named.clone(), true),
        (json!({"matchExpressions": [{"key": EXCHANGE, "operator": "Exists"}]}), named.clone(), true),
        (json!({"matchLabels": {"app": "web"}}), named.clone(), false),
        (ours.clone(), json!([{}]), false),
        (ours.clone(), json!([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]), false),
        (ours.clone(), json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]), true),
        (ours.clone(), json!([{"from": [{"namespaceSelector": {}}]}]), false),
        (
            ours.clone(),
            json!([{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}]}]),
            true,
        ),
        (ours.clone(), json!([{"ports": [{"port": 9420}]}]), true),
        (ours.clone(), json!([{"ports": [{"port": 9000, "endPort": 9999}]}]), false),
        (ours.clone(), json!([{"ports": [{"port": "tl-peers"}]}]), false),
        (ours.clone(), json!([{"ports": [{"port": 9421, "protocol": "SCTP"}]}]), true),
        (ours.clone(), json!([{"ports": [{"port": 9421, "protocol": "UDP"}]}]), false),
    ] {
        let found = only(&with(&[a_policy("one", &selector, &ingress)], &[("a", json!({}))]));
        assert_eq!(found.level == Level::Ok, is_closed, "{selector} {ingress}: {found:?}");
    }
    let mut outgoing = a_policy("one", &json!({}), &json!([]));
    outgoing["spec"]["policyTypes"] = json!(["Egress"]);
    assert_eq!(only(&with(&[outgoing], &[])).level, Level::Note);
}

#[test]
fn policies_add_up_so_the_one_that_opens_the_port_is_named() {
    let wide = a_policy("wide", &json!({}), &json!([{}]));
    let found = only(&with(&[policy("ml", "default"), wide], &[("a", json!({}))]));
    assert!(found.found.ends_with("NetworkPolicy wide allows it"), "{found:?}");
    assert!(found.remedy.unwrap().contains("have wide name who"));
}

#[test]
fn pods_that_are_open_beside_others_are_named() {
    let of_a = a_policy("one", &json!({"matchLabels": {"app": "a"}}), &json!([]));
    let found = only(&with(&[of_a], &[("a", json!({"app": "a"})), ("b", json!({}))]));
    assert!(found.found.contains("of 1 of 2 pods (b) is open"), "{found:?}");
}

#[test]
fn policies_that_may_not_be_read_are_unknown_and_no_exchange_has_no_finding() {
    let hidden = Namespace { policies: Seen::Hidden("forbidden".to_owned()), ..ml() };
    assert_eq!(only(&hidden).level, Level::Unknown);
    let none = Namespace { exchanges: Seen::There(json!({"items": []})), ..hidden };
    assert!(findings(&none).is_empty());
}
