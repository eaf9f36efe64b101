//! Manifests as people write them: a tree of what is written, and what kubectl reads in it. Neither is ours: what a tree means is told by
//! this file alone, from what `sigs.k8s.io/yaml` printed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tensorlane_fuzz::Dice;

/// Something that is written.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// A scalar in one spelling, and what it is.
    Spelled(&'static str, Value),
    /// A text, in whichever style.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of its entries.
    Map(Vec<(Key, Node)>),
    /// A node with an anchor.
    Named(String, Box<Node>),
    /// An alias of an anchor before it.
    Alias(String),
}

/// Name of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    /// A scalar in one spelling, and the name that it is.
    Spelled(&'static str, &'static str),
    /// A text, in whichever style.
    Text(String),
    /// `<<`.
    Merge,
}

/// A document: what is written, and where its pods are.
pub(crate) struct Document {
    pub(crate) root: Node,
    pub(crate) pods: Vec<String>,
}

/// Unquoted scalars and those with tags, and what kubectl reads.
const SPELLED: &[(&str, &str)] = &[
    ("0400", "256"),
    ("0644", "420"),
    ("0o17", "15"),
    ("0x1F", "31"),
    ("0b11", "3"),
    ("-0b11", "-3"),
    ("08", "8"),
    ("1_000", "1000"),
    ("+5", "5"),
    ("1e3", "1000"),
    (".5", "0.5"),
    ("1.50", "1.5"),
    ("99999999999999999999", "1e20"),
    ("yes", "true"),
    ("y", "true"),
    ("on", "true"),
    ("TRUE", "true"),
    ("Off", "false"),
    ("n", "false"),
    ("No", "false"),
    ("~", "null"),
    ("null", "null"),
    ("", "null"),
    ("12:30", "\"12:30\""),
    ("2001-01-01", "\"2001-01-01\""),
    ("tRUE", "\"tRUE\""),
    ("1.2.3", "\"1.2.3\""),
    ("500m", "\"500m\""),
    ("a,b", "\"a,b\""),
    ("=", "\"=\""),
    ("!!str 0400", "\"0400\""),
    ("!!str yes", "\"yes\""),
    ("!!int \"5\"", "5"),
    ("!!bool \"yes\"", "true"),
    ("!!binary aGk=", "\"hi\""),
    ("!foo 5", "\"5\""),
];

/// Names of entries that are no plain words, and what kubectl reads.
const KEYS: &[(&str, &str)] = &[
    ("yes", "true"),
    ("0x10", "16"),
    ("1.5", "1.5"),
    ("off", "false"),
    ("010", "8"),
    ("'no'", "no"),
    ("\"~\"", "~"),
];

/// Texts that make trouble.
const TEXTS: &[&str] = &[
    "yes",
    "0400",
    "null",
    "~",
    "",
    " lead",
    "trail ",
    "a: b",
    "a #b",
    "- a",
    "#no comment",
    "plain",
    "two words",
    "a/b_c.d-e",
    "#!/bin/sh\nset -e\n",
    "one\ntwo",
    "one\n\ntwo\n",
    "\nafter",
    "kept\n\n\n",
    "a\n  deeper\nb",
    "  first\nsecond",
    "tab\there",
    "x'y",
    "x\"y",
    "a\\b",
    "é \u{1F600}",
    "{{ .Values }}",
    "---",
    "one\n---\ntwo",
    "%d",
    "@at",
    "`x`",
    "*a",
    "&a",
    "!a",
    "[x",
    "{x",
    "x:",
    "<<",
    "=",
    "long words that a careful person breaks over several lines",
    "\u{7}bell",
    "1_000",
    "12e03",
    "é\n\u{1F600}\n",
    "...",
];

/// Meaning of a node, with the anchors before it.
pub(crate) fn meaning(node: &Node, anchors: &mut BTreeMap<String, Value>) -> Value {
    match node {
        Node::Spelled(_, value) => value.clone(),
        Node::Text(text) => json!(text),
        Node::List(items) => items.iter().map(|item| meaning(item, anchors)).collect(),
        Node::Map(entries) => {
            let mut map = Map::new();
            for (key, node) in entries {
                let value = meaning(node, anchors);
                match key {
                    Key::Spelled(_, name) => _ = map.insert((*name).to_owned(), value),
                    Key::Text(name) => _ = map.insert(name.clone(), value),
                    Key::Merge => merge(&mut map, value),
                }
            }
            Value::Object(map)
        }
        Node::Named(name, node) => {
            let value = meaning(node, anchors);
            anchors.insert(name.clone(), value.clone());
            value
        }
        Node::Alias(name) => anchors[name].clone(),
    }
}

/// Merges maps: the later one wins over entries before it; of a list, the first map wins.
fn merge(map: &mut Map<String, Value>, value: Value) {
    let maps = if let Value::Array(maps) = value { maps } else { vec![value] };
    for one in maps.into_iter().rev() {
        map.extend(one.as_object().unwrap().clone());
    }
}

/// Author of documents: what comes follows from a seed.
pub(crate) struct Author {
    pub(crate) dice: Dice,
    /// Anchors of this document, and whether each is a map.
    anchors: Vec<(String, bool)>,
}

impl Author {
    pub(crate) fn new(seed: u64) -> Author {
        Author { dice: Dice(seed), anchors: Vec::new() }
    }

    /// Documents, up to three, of which most make pods.
    pub(crate) fn documents(&mut self) -> Vec<Document> {
        (0..=self.dice.below(3)).map(|_| self.document()).collect()
    }

    fn document(&mut self) -> Document {
        self.anchors.clear();
        let (version, kind, places): (&str, &str, &[&str]) = self.dice.pick(KINDS).unwrap();
        let mut entries = vec![("apiVersion", text(version)), ("kind", text(kind))];
        if kind == "Pod" {
            entries.extend(self.template());
        } else {
            entries.push(("metadata", map([("name", text("x")), ("x-free", self.free(2))])));
            entries.push(("x-free", self.free(3)));
            entries.push(("spec", self.spec(kind)));
        }
        Document { root: map(entries), pods: places.iter().map(|&place| place.to_owned()).collect() }
    }

    /// The specification of what makes pods.
    fn spec(&mut self, kind: &str) -> Node {
        let mut template = || map([("template", map(self.template()))]);
        match kind {
            "Deployment" => template(),
            "CronJob" => map([("jobTemplate", map([("spec", template())]))]),
            "RayCluster" => {
                map([("headGroupSpec", template()), ("workerGroupSpecs", Node::List(vec![template()]))])
            }
            "PyTorchJob" => {
                map([("pytorchReplicaSpecs", map([("Master", template()), ("Worker", template())]))])
            }
            _ => self.free(4),
        }
    }

    /// The entries of a pod that asks, or not.
    fn template(&mut self) -> Vec<(&'static str, Node)> {
        let asks = if self.dice.percent(85) { "enabled" } else { "disabled" };
        let mut annotations = vec![("tensorlane.dev/inject", text(asks)), ("example.org/text", self.text())];
        if self.dice.one_in(2) {
            annotations.reverse();
        }
        let metadata = map([("name", text("x")), ("annotations", map(annotations))]);
        let order = match self.dice.one_in(2) {
            true => ["containers", "volumes", "x-free"],
            false => ["volumes", "x-free", "containers"],
        };
        let spec = map(order.map(|name| (name, self.part_of_pod(name))));
        match self.dice.one_in(3) {
            true => vec![("spec", spec), ("metadata", metadata)],
            false => vec![("metadata", metadata), ("spec", spec)],
        }
    }

    fn part_of_pod(&mut self, name: &str) -> Node {
        match name {
            "containers" => self.containers(),
            "volumes" => {
                let mode = Node::Spelled("0400", json!(256));
                let secret = map([("secretName", text("s")), ("defaultMode", mode)]);
                Node::List(vec![map([("name", text("v")), ("secret", secret)])])
            }
            _ => self.free(3),
        }
    }

    fn containers(&mut self) -> Node {
        let variables = (0..self.dice.below(3)).map(|number| {
            let name = ["FIRST", "SECOND"][number];
            map([("name", text(name)), ("value", self.text())])
        });
        let env = Node::List(variables.collect());
        let args = Node::List((0..self.dice.below(4)).map(|_| self.text()).collect());
        let shares = self.dice.one_in(3);
        let named =
            |name: &str, node| if shares { Node::Named(name.to_owned(), Box::new(node)) } else { node };
        let first = [
            ("name", text("main")),
            ("image", text("registry.example.org/train:3")),
            ("args", args),
            ("env", named("env", env)),
            ("x-free", self.free(2)),
        ];
        let mut all = vec![named("main", map(first))];
        if shares {
            let mut second = vec![(Key::Merge, Node::Alias("main".to_owned()))];
            second.push((Key::Text("name".to_owned()), text("second")));
            second.push((Key::Text("env".to_owned()), Node::Alias("env".to_owned())));
            all.push(Node::Map(second));
        }
        Node::List(all)
    }

    fn text(&mut self) -> Node {
        Node::Text(self.dice.pick(TEXTS).unwrap().to_owned())
    }

    /// Anything at all, of so many levels.
    fn free(&mut self, levels: usize) -> Node {
        if let Some((name, _)) = self.dice.pick(&self.anchors).filter(|_| self.dice.one_in(8)) {
            return Node::Alias(name);
        }
        let node = match self.dice.below(if levels == 0 { 2 } else { 6 }) {
            0 => self.text(),
            1 => {
                let (spelling, value) = self.dice.pick(SPELLED).unwrap();
                Node::Spelled(spelling, serde_json::from_str(value).unwrap())
            }
            2 | 3 => Node::List((0..self.dice.below(4)).map(|_| self.free(levels - 1)).collect()),
            _ => self.free_map(levels),
        };
        if !self.dice.one_in(6) {
            return node;
        }
        let is_map = matches!(node, Node::Map(_));
        let name = format!("a{}", self.anchors.len());
        self.anchors.push((name.clone(), is_map));
        Node::Named(name, Box::new(node))
    }

    fn free_map(&mut self, levels: usize) -> Node {
        let mut entries = Vec::new();
        for _ in 0..self.dice.below(5) {
            let maps: Vec<_> = self.anchors.iter().filter(|(_, is_map)| *is_map).cloned().collect();
            let merged = self.dice.pick(&maps).filter(|_| self.dice.one_in(4));
            entries.push(match (merged, self.dice.below(4)) {
                (Some((name, _)), 0) => {
                    let other = self.dice.pick(&maps).unwrap().0;
                    (Key::Merge, Node::List(vec![Node::Alias(name), Node::Alias(other)]))
                }
                (Some((name, _)), _) => (Key::Merge, Node::Alias(name)),
                (None, 0) => {
                    let (spelling, name) = self.dice.pick(KEYS).unwrap();
                    (Key::Spelled(spelling, name), self.free(levels - 1))
                }
                // A name that comes twice is the last one's.
                (None, 1) => (Key::Text("twice".to_owned()), self.free(levels - 1)),
                (None, _) => {
                    let one_line = |text: &str| !text.contains('\n') && !text.contains('\u{7}');
                    let names: Vec<_> = TEXTS.iter().filter(|text| one_line(text)).collect();
                    (Key::Text((*self.dice.pick(&names).unwrap()).to_string()), self.free(levels - 1))
                }
            });
        }
        Node::Map(entries)
    }
}

/// Kinds that are known here, and the places of their pods.
const KINDS: &[(&str, &str, &[&str])] = &[
    ("v1", "Pod", &[""]),
    ("apps/v1", "Deployment", &["/spec/template"]),
    ("batch/v1", "CronJob", &["/spec/jobTemplate/spec/template"]),
    ("ray.io/v1", "RayCluster", &["/spec/headGroupSpec/template", "/spec/workerGroupSpecs/0/template"]),
    (
        "kubeflow.org/v1",
        "PyTorchJob",
        &["/spec/pytorchReplicaSpecs/Master/template", "/spec/pytorchReplicaSpecs/Worker/template"],
    ),
    ("v1", "ConfigMap", &[]),
    ("example.org/v1", "Thing", &[]),
];

fn text(text: &str) -> Node {
    Node::Text(text.to_owned())
}

fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Node)>) -> Node {
    Node::Map(entries.into_iter().map(|(name, node)| (Key::Text(name.to_owned()), node)).collect())
}
