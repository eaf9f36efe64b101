//! Circles of imports: modules that reach one another by what they name. Tests and re-exports of parents are left out.
//!
//! Circles are strongly connected components, found by two searches (Kosaraju's algorithm).

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Crate, Source};

/// Modules by their paths, and the modules that each names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Finds the largest circle among the modules of a crate. Empty where there is none.
pub(crate) fn largest_circle(read: &Crate) -> Vec<String> {
    let graph = graph(read);
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for module in graph.keys() {
        visit(&graph, module, &mut seen, &mut order);
    }
    let backwards = reversed(&graph);
    let mut seen = BTreeSet::new();
    let mut largest = Vec::new();
    for module in order.iter().rev() {
        let mut circle = Vec::new();
        visit(&backwards, module, &mut seen, &mut circle);
        if circle.len() > largest.len() {
            largest = circle;
        }
    }
    if largest.len() < 2 {
        return Vec::new();
    }
    largest.sort();
    largest
}

/// Adds a module behind all that can be reached from it.
fn visit(graph: &Graph, from: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
    // Whether the modules below it are done, beside the module: no recursion, however long a chain is.
    let mut stack = vec![(from.to_owned(), false)];
    while let Some((module, done)) = stack.pop() {
        if done {
            order.push(module);
        } else if seen.insert(module.clone()) {
            stack.push((module.clone(), true));
            let next = graph.get(&module).into_iter().flatten();
            stack.extend(next.filter(|next| !seen.contains(*next)).map(|next| (next.clone(), false)));
        }
    }
}

fn reversed(graph: &Graph) -> Graph {
    let mut backwards: Graph = graph.keys().map(|module| (module.clone(), BTreeSet::new())).collect();
    for (module, named) in graph {
        for name in named {
            backwards.entry(name.clone()).or_default().insert(module.clone());
        }
    }
    backwards
}

fn graph(read: &Crate) -> Graph {
    let sources: Vec<&Source> = read.sources.iter().filter(|source| !source.is_test()).collect();
    let key = |unit: &str, module: &[String]| format!("{unit}/{}", module.join("::"));
    let known: BTreeSet<String> = sources.iter().map(|source| key(&source.unit, &source.module)).collect();
    let mut graph = Graph::new();
    for source in sources {
        let own = key(&source.unit, &source.module);
        let code = without_tests_and_comments(&source.text);
        let named = paths(&code).into_iter().filter_map(|path| {
            let path = resolved(source, &path, &known, &key)?;
            // The longest beginning of a path that is a module.
            (0..=path.len())
                .rev()
                .map(|end| key(&source.unit, &path[..end]))
                .find(|name| known.contains(name))
        });
        let named = named.filter(|name| *name != own).collect();
        graph.insert(own, named);
    }
    graph
}

/// Path from the root of the unit that a path in a source means, if it means one of this unit.
fn resolved(
    source: &Source,
    path: &[String],
    known: &BTreeSet<String>,
    key: &impl Fn(&str, &[String]) -> String,
) -> Option<Vec<String>> {
    let first = path.first()?;
    let mut place = source.module.clone();
    let mut rest = path;
    match first.as_str() {
        "crate" => {
            place.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|word| word == "super") {
                place.pop()?;
                rest = &rest[1..];
            }
        }
        child => {
            place.push(child.to_owned());
            return known
                .contains(&key(&source.unit, &place))
                .then(|| [place.as_slice(), &path[1..]].concat());
        }
    }
    // What is named without a module, such as `super::Thing`, is the module itself.
    Some([place.as_slice(), rest].concat())
}

/// Code without comments, without tests at its end, and without re-exports, which are for others.
fn without_tests_and_comments(text: &str) -> String {
    let text = text.find("#[cfg(test)]\nmod ").map_or(text, |end| &text[..end]);
    let mut code = String::new();
    let mut exports = false;
    for line in text.lines() {
        let line = line.find("//").map_or(line, |end| &line[..end]);
        let begins = line.trim_start();
        exports |= begins.starts_with("pub") && begins.split_whitespace().nth(1) == Some("use");
        exports |= begins.starts_with("pub(in") && begins.contains(" use ");
        if !exports {
            code.push_str(line);
            code.push('\n');
        }
        exports &= !line.contains(';');
    }
    code
}

/// Paths of at least two segments that are named in code, and all of a `use`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(|letter: char| letter.is_alphabetic() || letter == '_') {
        rest = &rest[at..];
        let (path, behind) = path_at(rest, &[]);
        found.extend(path.into_iter().filter(|path| path.len() > 1));
        rest = behind;
    }
    found
}

/// Paths that begin here, with what is before them: one, or several in braces. And the code behind them.
fn path_at<'a>(code: &'a str, before: &[String]) -> (Vec<Vec<String>>, &'a str) {
    let mut path = before.to_vec();
    let mut rest = code;
    loop {
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        if end > 0 {
            path.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
        let Some(behind) = rest.strip_prefix("::") else { return (vec![path], rest) };
        let Some(mut inside) = behind.strip_prefix('{') else {
            if !behind.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_') {
                return (vec![path], behind);
            }
            rest = behind;
            continue;
        };
        let mut paths = Vec::new();
        loop {
            inside = inside.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
            if let Some(behind) = inside.strip_prefix('}') {
                return (paths, behind);
            }
            if !inside.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_') {
                // A glob, or the end of a file that is cut.
                let Some(letter) = inside.chars().next() else { return (paths, inside) };
                inside = &inside[letter.len_utf8()..];
                continue;
            }
            let (more, behind) = path_at(inside, &path);
            paths.extend(more);
            inside = behind.trim_start();
            if let Some(alias) = inside.strip_prefix("as ") {
                inside = alias.trim_start_matches(|letter: char| letter.is_alphanumeric() || letter == '_');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> String {
        let sources = files.iter().map(|(path, text)| Source::at(path, text)).collect();
        largest_circle(&Crate { folder: "crate".into(), sources }).join(" ")
    }

    #[test]
    fn paths_are_those_of_uses_and_those_in_code() {
        let shown = |code: &str| paths(code).iter().map(|path| path.join("::")).collect::<Vec<_>>().join(" ");
        assert_eq!(
            shown("use a::{b, c::{d as e, self}, f::*};\nlet x = super::g::<T>(h, i::J);"),
            "a::b a::c::d a::c::self a::f super::g i::J"
        );
    }

    #[test]
    fn a_circle_goes_through_all_that_reach_one_another() {
        let files = [
            ("crate/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            ("crate/src/a.rs", "use crate::b::B;\n"),
            ("crate/src/b/mod.rs", "mod inner;\n// crate::c::C\npub use self::inner::{\n    I,\n};\n"),
            ("crate/src/b/inner.rs", "use super::B;\nfn f() { crate::c::call() }\n"),
            ("crate/src/c.rs", "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"),
        ];
        assert_eq!(circle(&files), "");
        let mut closed = files;
        closed[4].1 = "fn call() { crate::b::inner::more() }\n";
        assert_eq!(circle(&closed), "/b::inner /c");
        closed[2].1 = "mod inner;\nfn f() { inner::I }\n";
        assert_eq!(circle(&closed), "/b /b::inner /c");
    }
}
