//! Classes of tensordict beside its `TensorDict`: lazy stacks and tensorclasses, by what their `meta.json` says.

use serde_json::Value;

/// Directory, in that of a tensorclass, of its tensors.
pub const CLASS_TENSORS: &str = "_tensordict";
/// File, in the directory of a tensorclass, of fields that are pickled. Nobody here reads it.
pub const CLASS_PICKLE: &str = "other.pickle";
/// Field of a lazy stack with the dimension that its parts are stacked along.
pub(super) const STACK_DIM: &str = "stack_dim";
/// Fields of a `meta.json` that are no values of a class.
const OF_FORMAT: [&str; 3] = ["_type", "_format_version", "_class"];

/// Content of the `meta.json` of a lazy stack or a tensorclass.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassMeta {
    /// Text of the file, as it stands there.
    pub text: String,
    /// Name of the class, without its module.
    pub name: String,
    /// Values by their keys: the `stack_dim` of a lazy stack, and the fields of a tensorclass that are no tensors.
    pub values: Vec<(String, Value)>,
    /// True of a lazy stack, whose parts are directories by their numbers. Tensors of a tensorclass are in [`CLASS_TENSORS`].
    pub is_stack: bool,
}

impl ClassMeta {
    /// Class that a `_type` and the fields beside it mean. None where it is one of tensordict's own that has another form.
    pub(super) fn of(text: &str, class: &str, fields: &[(String, Value)]) -> Option<Self> {
        let path = class.strip_prefix("<class '")?.strip_suffix("'>")?;
        let (module, name) = path.rsplit_once('.')?;
        let is_ours = module == "tensordict" || module.starts_with("tensordict.");
        let is_stack = is_ours && name == "LazyStackedTensorDict";
        if is_ours && !is_stack {
            return None;
        }
        let is_value = |key: &str| if is_stack { key == STACK_DIM } else { !OF_FORMAT.contains(&key) };
        let values = fields.iter().filter(|(key, _)| is_value(key)).cloned().collect();
        Some(Self { text: text.to_owned(), name: name.to_owned(), values, is_stack })
    }
}
