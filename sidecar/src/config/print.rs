//! The effective configuration as YAML that can be read back: what each setting is for and where its value comes from.

use std::fmt::Write;

use serde_yaml::Value;
use tensorlane_proto::text::variable;

use super::settings::Setting;
use super::sources::{Loaded, Origin};

impl Loaded {
    /// The effective configuration as YAML.
    pub fn to_yaml(&self) -> String {
        let mut yaml = String::new();
        let mut section = "";
        for (setting, text, origin) in &self.effective {
            let (in_section, name) = setting.path.split_once('.').unwrap_or(("", setting.path));
            if in_section != section {
                section = in_section;
                let _ = writeln!(yaml, "{section}:");
            }
            let indent = if section.is_empty() { "" } else { "  " };
            print(&mut yaml, indent, setting, (name, text.as_deref(), origin));
        }
        yaml
    }
}

/// Writing to a string cannot fail.
fn print(
    yaml: &mut String,
    indent: &str,
    setting: &Setting,
    (name, text, origin): (&str, Option<&str>, &Origin),
) {
    let _ = writeln!(yaml, "{indent}# {}", setting.doc);
    let _ = writeln!(yaml, "{indent}# {}; {}. Value from: {origin}", variable(setting.path), setting.accepts);
    let value = text.map_or_else(|| "null".to_owned(), quoted);
    let _ = writeln!(yaml, "{indent}{name}: {value}");
}

/// The text as YAML: plain where YAML reads the same text back, else in quotes (those of JSON, which YAML shares).
fn quoted(text: &str) -> String {
    let plain = match serde_yaml::from_str(text) {
        Ok(Value::String(read)) => read == text && !text.contains(['\n', '#', ':']),
        Ok(Value::Number(number)) => !number.is_f64() && number.to_string() == text,
        _ => false,
    };
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
