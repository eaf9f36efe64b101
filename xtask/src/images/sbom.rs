//! Contents of an image, as SPDX 2.3: our crates with their licences, packages of Debian and of Python, modules of Go. Pure text from
//! text: what `cargo tree`, `dpkg-deb` and `go version -m` say.

use std::collections::BTreeSet;

/// A single thing that is in an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Package {
    name: String,
    version: String,
    /// The licence that it declares, if it is known.
    licence: Option<String>,
    /// Package URL, such as `pkg:cargo/serde@1.0.2`.
    url: String,
}

/// The format that `cargo tree` is asked for.
pub(crate) const CARGO_FORMAT: &str = "{p}|{l}";

/// Lines such as `serde v1.0.2 (proc-macro)|MIT OR Apache-2.0`.
pub(crate) fn crates(tree: &str) -> BTreeSet<Package> {
    tree.lines()
        .filter_map(|line| {
            let (package, licence) = line.split_once('|')?;
            let mut words = package.split(' ');
            let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
            // `MIT/Apache-2.0` is how it was written before SPDX.
            let licence = licence.trim_end_matches(" (*)").replace('/', " OR ");
            Some(Package {
                name: name.to_owned(),
                version: version.to_owned(),
                licence: (!licence.is_empty()).then_some(licence),
                url: format!("pkg:cargo/{name}@{version}"),
            })
        })
        .collect()
}

/// Lines such as `libc6 2.36-9 amd64`.
pub(crate) fn debian(list: &str) -> BTreeSet<Package> {
    list.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (name, version, architecture) = (words.next()?, words.next()?, words.next()?);
            let escaped = version.replace('+', "%2B").replace(':', "%3A");
            Some(Package {
                name: name.to_owned(),
                version: version.to_owned(),
                licence: None,
                url: format!("pkg:deb/debian/{name}@{escaped}?arch={architecture}"),
            })
        })
        .collect()
}

/// Lines such as `<tab>dep<tab>golang.org/x/sys<tab>v0.35.0<tab>h1:…`.
pub(crate) fn modules(listing: &str) -> BTreeSet<Package> {
    listing
        .lines()
        .filter_map(|line| {
            let mut words = line.trim().split('\t');
            let kind = words.next()?;
            let (name, version) = (words.next()?, words.next()?);
            ["dep", "=>"].contains(&kind).then(|| Package {
                name: name.to_owned(),
                version: version.to_owned(),
                licence: None,
                url: format!("pkg:golang/{name}@{version}"),
            })
        })
        .collect()
}

/// Names of a directory of Python packages, of which those such as `numpy-2.4.6.dist-info` count.
pub(crate) fn wheels<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<Package> {
    names
        .filter_map(|name| name.strip_suffix(".dist-info")?.rsplit_once('-'))
        .map(|(name, version)| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: None,
            url: format!("pkg:pypi/{name}@{version}"),
        })
        .collect()
}

/// The document: `name` is the image's, `created` such as `2026-01-31T12:00:00Z`.
pub(crate) fn spdx(name: &str, version: &str, created: &str, packages: &BTreeSet<Package>) -> String {
    let mut entries = vec![entry("SPDXRef-Image", name, version, Some("Apache-2.0"), None)];
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Image")];
    for (number, package) in packages.iter().enumerate() {
        let id = format!("SPDXRef-Package-{}", number + 1);
        let licence = package.licence.as_deref();
        entries.push(entry(&id, &package.name, &package.version, licence, Some(&package.url)));
        relations.push(relation("SPDXRef-Image", "CONTAINS", &id));
    }
    format!(
        r#"{{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": {name},
  "documentNamespace": {namespace},
  "creationInfo": {{"created": {created}, "creators": ["Tool: cargo xtask images"]}},
  "packages": [
{entries}
  ],
  "relationships": [
{relations}
  ]
}}
"#,
        name = quoted(name),
        namespace = quoted(&format!("https://tensorlane.dev/sbom/{name}/{version}")),
        created = quoted(created),
        entries = entries.join(",\n"),
        relations = relations.join(",\n"),
    )
}

fn entry(id: &str, name: &str, version: &str, licence: Option<&str>, url: Option<&str>) -> String {
    let reference = url.map_or_else(String::new, |url| {
        let url = quoted(url);
        format!(
            r#", "externalRefs": [{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": {url}}}]"#
        )
    });
    format!(
        r#"    {{"SPDXID": {}, "name": {}, "versionInfo": {}, "downloadLocation": "NOASSERTION", "filesAnalyzed": false, "licenseDeclared": {}{reference}}}"#,
        quoted(id),
        quoted(name),
        quoted(version),
        quoted(licence.unwrap_or("NOASSERTION")),
    )
}

fn relation(from: &str, kind: &str, to: &str) -> String {
    format!(
        r#"    {{"spdxElementId": "{from}", "relationshipType": "{kind}", "relatedSpdxElement": "{to}"}}"#
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_listed_once_with_their_licence() {
        let tree = "tensorlane v0.1.0 (/somewhere)|Apache-2.0\nserde v1.0.2|MIT/Apache-2.0\nserde v1.0.2|MIT/Apache-2.0 (*)\n";
        let found = crates(tree);
        assert_eq!(found.len(), 2);
        let serde = found.iter().find(|package| package.name == "serde").unwrap();
        assert_eq!(serde.licence.as_deref(), Some("MIT OR Apache-2.0"));
        assert_eq!(serde.url, "pkg:cargo/serde@1.0.2");
    }

    #[test]
    fn versions_of_debian_are_escaped_and_replaced_modules_are_listed() {
        let found = debian("busybox 1:1.35.0-4+b1 amd64\n");
        assert_eq!(found.first().unwrap().url, "pkg:deb/debian/busybox@1%3A1.35.0-4%2Bb1?arch=amd64");
        let found = modules("bin: go1.26\n\tpath\tcoredns\n\tdep\tgolang.org/x/sys\tv0.35.0\th1:x\n");
        assert_eq!(found.first().unwrap().url, "pkg:golang/golang.org/x/sys@v0.35.0");
    }

    #[test]
    fn a_document_names_the_image_and_each_package() {
        let text = spdx("sidecar", "0.1.0", "2026-01-31T12:00:00Z", &debian("a\"b 1 all\n"));
        assert!(text.contains(r#""name": "a\"b""#), "{text}");
        assert!(
            text.contains(r#""relationshipType": "CONTAINS", "relatedSpdxElement": "SPDXRef-Package-1""#)
        );
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
