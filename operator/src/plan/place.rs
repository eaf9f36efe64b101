//! Place of the sidecar among the init containers: first, unless somebody else was there later or the pod says otherwise.
//!
//! Several injectors want to be first, and each is called again after another one has changed the pod. Whoever has put its
//! own before the sidecar since may stay there, or both would change places for ever. What uses the sidecar never stays
//! before it, and what `after` puts there never uses it ([`ahead`]):
//!
//! ```text
//!   a pod without a sidecar                    ──> first, behind what `after` names
//!   a pod with one ── what uses it is before ──> right before the first of those
//!                  └─ else ──────────────────> where it is, behind what `after` names
//! ```
//!
//! Use is what `containers` names. Where that is not said, it is known by one thing only: all that was behind the sidecar
//! when it was put there is before it now, so the sidecar was moved and not they.

use super::foreign;

/// Everything that the place depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'a> {
    /// Names of the init containers without the sidecar, in their order.
    pub(super) others: &'a [String],
    /// Number of them that stand before the sidecar; none where the pod has no sidecar yet.
    pub(super) ahead: Option<usize>,
    /// Names of those that were behind the sidecar when it was put there.
    pub(super) behind: &'a [String],
    /// Names that the annotation `containers` says.
    pub(super) named: Option<&'a [String]>,
    /// Names that the annotation `after` says.
    pub(super) after: &'a [String],
}

/// Number of init containers that `after` puts before the sidecar: the last one that it names, and all before that.
pub(super) fn ahead(others: &[String], after: &[String]) -> usize {
    others.iter().rposition(|name| after.contains(name)).map_or(0, |index| index + 1)
}

/// Number of init containers before the sidecar.
pub(super) fn place(order: &Order<'_>) -> usize {
    let least = ahead(order.others, order.after);
    let ahead = order.ahead.unwrap_or(0).min(order.others.len());
    let first_user = order.others.iter().take(ahead).position(|name| uses(name, order, ahead));
    first_user.unwrap_or(ahead).max(least)
}

/// Returns whether an init container before the sidecar uses it.
fn uses(name: &String, order: &Order<'_>, ahead: usize) -> bool {
    if let Some(named) = order.named {
        return named.contains(name);
    }
    let own = |name: &&String| !foreign::is_known(name) && !order.after.contains(name);
    let was_behind = |name: &&String| order.behind.contains(name);
    let stayed = order.others.iter().skip(ahead).filter(own).any(|name| was_behind(&name));
    own(&name) && was_behind(&name) && !stayed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// The order that comes out: of a pod with these init containers, `T` among them for the sidecar.
    fn settled(pod: &str, behind: &str, named: Option<&str>, after: &str) -> String {
        let all = names(pod);
        let mut others: Vec<String> = all.iter().filter(|name| *name != "T").cloned().collect();
        let named = named.map(names);
        let order = Order {
            others: &others,
            ahead: all.iter().position(|name| name == "T"),
            behind: &names(behind),
            named: named.as_deref(),
            after: &names(after),
        };
        let place = place(&order);
        others.insert(place, "T".to_owned());
        others.join(" ")
    }

    #[test]
    fn a_new_sidecar_comes_first_or_behind_what_the_pod_names() {
        assert_eq!(settled("a b", "", None, ""), "T a b");
        assert_eq!(settled("", "", None, "a"), "T");
        assert_eq!(settled("a b c", "", None, "b"), "a b T c");
        assert_eq!(settled("a b c", "", Some("c"), "a strange"), "a T b c");
        assert_eq!(ahead(&names("a b c"), &names("b a strange")), 2);
        assert_eq!(ahead(&names("a b c"), &names("strange")), 0);
    }

    #[test]
    fn whoever_puts_itself_first_later_stays_there() {
        for named in [None, Some("warm-up")] {
            let pod = "vault-agent-init T otel warm-up";
            assert_eq!(settled(pod, "vault-agent-init otel warm-up", named, ""), pod);
            let pod = "secrets T otel warm-up";
            assert_eq!(settled(pod, "secrets otel warm-up", named, ""), pod);
            assert_eq!(settled("new T warm-up", "warm-up", named, ""), "new T warm-up");
        }
        assert_eq!(settled("vault-agent-init T", "vault-agent-init", None, ""), "vault-agent-init T");
    }

    #[test]
    fn what_uses_the_sidecar_never_stays_before_it() {
        let (moved, behind) = ("vault-agent-init otel warm-up T", "vault-agent-init otel warm-up");
        assert_eq!(settled(moved, behind, Some("warm-up"), ""), "vault-agent-init otel T warm-up");
        assert_eq!(settled(moved, behind, None, ""), "vault-agent-init T otel warm-up");
        assert_eq!(settled("warm-up T", "warm-up", None, ""), "T warm-up");
        assert_eq!(settled("warm-up T", "", Some("warm-up"), ""), "T warm-up");
    }

    #[test]
    fn a_sidecar_that_was_first_moves_behind_what_comes_later_and_is_named() {
        assert_eq!(settled("T mesh a", "a", None, "mesh"), "mesh T a");
        assert_eq!(settled("mesh T a", "a", None, "mesh"), "mesh T a");
    }
}
