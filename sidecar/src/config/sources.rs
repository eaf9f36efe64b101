//! From texts to a [`Config`]: flattens the YAML, lays the environment over it, and asks the table.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_yaml::Value;
use tensorlane_proto::text::{VARIABLES_BEGIN, variable};

use super::Config;
use super::conflicts::conflicts;
use super::mistakes::{Mistake, Mistakes};
use super::nearest::{distance, nearest};
use super::settings::{Fallback, SETTINGS, Setting, blank};

/// The most bytes of the file. A configuration has a few thousand; YAML can grow when it is read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// The texts that make a configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file and what it says.
    pub file: Option<(PathBuf, String)>,
    /// Environment variables, ours and others.
    pub variables: BTreeMap<String, String>,
    /// The name of this host, for settings that follow from it.
    pub host_name: String,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
}

/// A valid configuration and where each value comes from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Configuration that the rest of the sidecar takes.
    pub config: Config,
    /// For each setting, in the order of the table: its text (none: absent) and where it comes from.
    pub(super) effective: Vec<(&'static Setting, Option<String>, Origin)>,
}

impl Sources {
    /// Reads the file, the environment of this process and the name of this host.
    ///
    /// # Errors
    /// A file that cannot be read, is above [`FILE_BYTES_MAX`] or is no UTF-8; variables that are none.
    pub fn read(file: Option<&Path>) -> Result<Sources, Mistakes> {
        let file = file.map(|path| read_file(path).map(|text| (path.to_owned(), text))).transpose();
        let file = file.map_err(|mistake| Mistakes(vec![mistake]))?;
        let variables = ours(std::env::vars_os())?;
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Sources { file, variables, host_name: host_name.trim().to_owned() })
    }

    /// Decides every setting: the default, over it the file, over it the environment.
    ///
    /// # Errors
    /// Every mistake there is, those in values that are overridden included.
    pub fn load(&self) -> Result<Loaded, Mistakes> {
        let mut mistakes = Vec::new();
        let in_file = self.flatten_file(&mut mistakes);
        self.unknown_variables(&mut mistakes);
        let mut config = blank();
        let mut effective = Vec::new();
        for setting in SETTINGS {
            let (text, origin) = self.choose(setting, &in_file, &mut config, &mut mistakes);
            effective.push((setting, text, origin));
        }
        if mistakes.is_empty() {
            mistakes.extend(
                conflicts(&config).into_iter().map(|(path, wrong)| conflict(&effective, path, wrong)),
            );
        }
        if mistakes.is_empty() { Ok(Loaded { config, effective }) } else { Err(Mistakes(mistakes)) }
    }

    fn choose(
        &self,
        setting: &Setting,
        in_file: &BTreeMap<String, String>,
        config: &mut Config,
        mistakes: &mut Vec<Mistake>,
    ) -> (Option<String>, Origin) {
        let default = match setting.default {
            Fallback::Text(text) => Some(text.to_owned()),
            Fallback::Absent => None,
            Fallback::Computed(compute) => Some(compute(config, &self.host_name)),
        };
        let file = self.file.as_ref().map(|(path, _)| Origin::File(path.clone()));
        let name = variable(setting.path);
        let given = [
            file.and_then(|origin| Some((in_file.get(setting.path)?.clone(), origin))),
            self.variables.get(&name).map(|text| (text.clone(), Origin::Variable(name))),
        ];
        let mut last = None;
        for (text, origin) in given.into_iter().flatten() {
            if let Err(wrong) = (setting.set)(config, &text) {
                mistakes.push(mistake(setting, &text, &origin, wrong));
            }
            last = Some((text, origin));
        }
        if let Some((text, origin)) = last {
            return (Some(text), origin);
        }
        if let Some(text) = &default
            && let Err(wrong) = (setting.set)(config, text)
        {
            mistakes.push(mistake(setting, text, &Origin::Default, wrong));
        }
        (default, Origin::Default)
    }

    fn flatten_file(&self, mistakes: &mut Vec<Mistake>) -> BTreeMap<String, String> {
        let mut flat = BTreeMap::new();
        let Some((path, text)) = &self.file else { return flat };
        let file = path.display().to_string();
        // Editors of Windows begin a file with a mark of its encoding.
        match serde_yaml::from_str(text.trim_start_matches('\u{feff}')) {
            Ok(Value::Null) => {}
            Ok(Value::Mapping(mapping)) => {
                flatten(&Value::Mapping(mapping), "", &file, &mut flat, mistakes);
            }
            Ok(_) => mistakes.push(Mistake::new(file, "", "not a mapping of settings")),
            Err(error) => mistakes.push(Mistake::new(file, "", format!("not YAML: {error}"))),
        }
        flat
    }

    /// A variable that looks like ours and is none of ours. The environment belongs to others too: Kubernetes writes
    /// variables for every Service, the client and tools have their own. So only a slip of a known one is a mistake,
    /// and an unknown setting of a known section.
    fn unknown_variables(&self, mistakes: &mut Vec<Mistake>) {
        let known: Vec<String> = SETTINGS.iter().map(|setting| variable(setting.path)).collect();
        let sections: Vec<String> = sections().map(|section| format!("{}_", variable(section))).collect();
        for (name, text) in &self.variables {
            let ours = name.starts_with(VARIABLES_BEGIN) && !known.contains(name) && !is_service_link(name);
            let slip = known.iter().any(|other| distance(name, other) <= 2);
            let in_section = sections.iter().any(|section| name.starts_with(section));
            if ours && (slip || in_section) {
                let wrong =
                    format!("no such variable{}", did_you_mean(name, known.iter().map(String::as_str)));
                mistakes.push(Mistake::new(format!("variable {name}"), text, wrong));
            }
        }
    }
}

/// The variables that begin as ours do. Bytes that are no text would name another directory or peer than was meant.
fn ours(all: impl Iterator<Item = (OsString, OsString)>) -> Result<BTreeMap<String, String>, Mistakes> {
    let mut variables = BTreeMap::new();
    let mut mistakes = Vec::new();
    for (name, text) in all {
        let Some(name) = name.into_string().ok().filter(|name| name.starts_with(VARIABLES_BEGIN)) else {
            continue;
        };
        match text.into_string() {
            Ok(text) => _ = variables.insert(name, text),
            Err(text) => {
                let shown = text.to_string_lossy();
                mistakes.push(Mistake::new(
                    format!("variable {name}"),
                    &shown,
                    "has bytes that are no UTF-8",
                ));
            }
        }
    }
    if mistakes.is_empty() { Ok(variables) } else { Err(Mistakes(mistakes)) }
}

/// Returns whether Kubernetes writes such a variable into pods for a Service whose name begins with `tensorlane`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol) && name.contains("_PORT_"))
}

fn read_file(path: &Path) -> Result<String, Mistake> {
    let wrong = |wrong: String| Mistake::new(path.display().to_string(), "", wrong);
    let file = std::fs::File::open(path).map_err(|error| wrong(format!("cannot be opened: {error}")))?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match read.map_err(|error| wrong(format!("cannot be read: {error}")))? as u64 {
        0..=FILE_BYTES_MAX => Ok(text),
        _ => Err(wrong(format!("more than {FILE_BYTES_MAX} bytes"))),
    }
}

/// `{arena: {size: 1Gi}}` becomes `arena.size = 1Gi`. An empty value is one that was not given.
fn flatten(
    value: &Value,
    path: &str,
    file: &str,
    flat: &mut BTreeMap<String, String>,
    mistakes: &mut Vec<Mistake>,
) {
    let place = format!("{path} ({file})");
    if let Value::Mapping(mapping) = value
        && !SETTINGS.iter().any(|setting| setting.path == path)
    {
        for (key, value) in mapping {
            let Value::String(key) = key else {
                mistakes.push(Mistake::new(&place, "", "has a key that is no text"));
                continue;
            };
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if is_known(&path) {
                flatten(value, &path, file, flat, mistakes);
            } else {
                let wrong = format!("no such setting{}", did_you_mean_setting(&path, value));
                mistakes.push(Mistake::new(format!("{path} ({file})"), "", wrong));
            }
        }
        return;
    }
    let setting = SETTINGS.iter().find(|setting| setting.path == path);
    let names: Vec<_> =
        SETTINGS.iter().filter_map(|s| s.path.strip_prefix(path)?.strip_prefix('.')).collect();
    match scalar(value) {
        Ok(None) => {}
        Ok(Some(text)) | Err((text, _)) if !names.is_empty() => {
            let wrong = format!("a section, not a value; its settings are {}", names.join(", "));
            mistakes.push(Mistake::new(place, &text, wrong));
        }
        // What YAML reads as a number comes back as another text: 0x10 as 16.
        Ok(Some(text)) if !value.is_string() && setting.is_some_and(takes_words) => {
            let wrong = "read as a number or a truth; put it in quotes if it is a text";
            let accepted = setting.map(|setting| setting.accepts).unwrap_or_default();
            mistakes.push(Mistake::new(place, &text, wrong).accepted(accepted));
        }
        Ok(Some(text)) => _ = flat.insert(path.to_owned(), text),
        Err((text, wrong)) => {
            let accepted = setting.map(|setting| setting.accepts).unwrap_or_default();
            mistakes.push(Mistake::new(place, &text, wrong).accepted(accepted));
        }
    }
}

/// Returns whether a setting is a text: one that takes any word.
fn takes_words(setting: &Setting) -> bool {
    (setting.set)(&mut blank(), "word").is_ok()
}

/// The text of a value that is one. Of a list, how it would be written as one.
fn scalar(value: &Value) -> Result<Option<String>, (String, &'static str)> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(truth) => Ok(Some(truth.to_string())),
        Value::Number(number) if number.is_f64() => {
            Err((number.to_string(), "read as a fraction; put it in quotes if it is a text"))
        }
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Sequence(values) => {
            let words: Vec<String> = values.iter().filter_map(|value| scalar(value).ok().flatten()).collect();
            Err((
                words.join(","),
                "a list, where one text belongs; where several are accepted, write them so, with commas",
            ))
        }
        Value::Mapping(_) => Err((String::new(), "a mapping, where one value belongs")),
        Value::Tagged(_) => Err((String::new(), "not a plain value")),
    }
}

/// Returns whether a path is a setting or a section.
fn is_known(path: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.path == path) || sections().any(|section| section == path)
}

fn sections() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().filter_map(|setting| setting.path.split_once('.').map(|(section, _)| section))
}

/// For a section, the nearest section; for anything else, the nearest setting.
fn did_you_mean_setting(path: &str, value: &Value) -> String {
    if value.is_mapping() && !path.contains('.') {
        return did_you_mean(path, sections());
    }
    did_you_mean(path, SETTINGS.iter().map(|setting| setting.path))
}

fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(word, known).map(|word| format!("; did you mean {word}?")).unwrap_or_default()
}

fn mistake(setting: &Setting, text: &str, origin: &Origin, wrong: String) -> Mistake {
    let place = match origin {
        Origin::Default => format!("{} (by default; set it)", setting.path),
        Origin::File(file) => format!("{} ({})", setting.path, file.display()),
        Origin::Variable(name) => format!("{} (variable {name})", setting.path),
    };
    Mistake::new(place, text, wrong).accepted(setting.accepts)
}

fn conflict(effective: &[(&'static Setting, Option<String>, Origin)], path: &str, wrong: String) -> Mistake {
    match effective.iter().find(|(setting, ..)| setting.path == path) {
        Some((setting, text, origin)) => mistake(setting, text.as_deref().unwrap_or(""), origin, wrong),
        None => Mistake::new(path, "", wrong),
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_variable_that_is_no_text_is_refused_by_name() {
        let bytes = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let all =
            |text: &[u8]| [(bytes(b"TENSORLANE_PEER"), bytes(text)), (bytes(b"OTHER"), bytes(b"g\xff"))];
        assert_eq!(ours(all(b"here").into_iter()).unwrap()["TENSORLANE_PEER"], "here");
        let told = ours(all(b"g\xff").into_iter()).unwrap_err().to_string();
        assert!(told.contains("TENSORLANE_PEER") && told.contains("no UTF-8"), "{told}");
    }
}
