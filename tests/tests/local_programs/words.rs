//! Random calls of the command. Whatever it is called with, a terminal may show what it prints, and programs may read it.

use serde_json::Value;
use tensorlane_fuzz::Dice;

use super::command::{Called, Desk};

/// Calls of one run. What a call meets is what those before it have left.
const CALLS: usize = 150;

/// Verbs, each with what it needs to come to an end.
const VERBS: &[&str] = &[
    "put model.safetensors --name m --replace",
    "put odd.safetensors --name odd --replace",
    "put",
    "get m/w",
    "get -r m --to out.safetensors",
    "get",
    "ls",
    "describe",
    "describe m/w",
    "rm",
    "rm -r",
    "status",
    "peers",
    "routes",
    "check",
    "watch --count 1 --timeout 50ms",
    "set create s --rows 2 --leaf obs:u8:4",
    "set ls",
    "set get",
    "set put model.safetensors",
    "set snapshot",
    "set stat",
    "set verify",
    "set drop",
    "channel ls",
    "channel stat",
];

/// Words behind a verb: options, names of what is there and of what is not, and what files and others are called.
const WORDS: &[&str] = &[
    "m",
    "m/w",
    "s",
    "no/such",
    "elsewhere/m",
    "",
    "{}",
    "-",
    "--",
    "model.safetensors",
    "odd.safetensors",
    "broken.safetensors",
    "--name",
    "--replace",
    "--strict",
    "--to",
    "-r",
    "--all",
    "--peer",
    "elsewhere",
    "--rows",
    "0-1,1",
    "9-3",
    "--checksum",
    "--keep",
    "1ms",
    "--no-such",
    "tl1:x",
    "bad\u{1b}[31m",
    "-x\u{1b}]0;title\u{7}",
    "bell\u{7}",
    "back\u{8}\u{8}space",
    "\u{9b}31m",
    "\u{7f}",
    "tab\there",
    "two\nlines",
    "é\u{1f600}",
];

/// A desk with two files more: one whose header has names and metadata with control characters, and one that is none.
fn desk() -> Desk {
    let desk = Desk::new();
    let header = "{\"__metadata__\":{\"key\\u001b[31m\":\"bell\\u0007\\u009b\"},\"t\\u001b]0;x\":{\"dtype\":\"U8\",\
                  \"shape\":[1],\"data_offsets\":[0,1]}}";
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"x"].concat();
    std::fs::write(desk.path("odd.safetensors"), file).unwrap();
    std::fs::write(desk.path("broken.safetensors"), b"\x1b[31m\x07\x00\x00").unwrap();
    desk
}

/// The next call.
fn words(dice: &mut Dice, json: bool) -> Vec<&'static str> {
    let mut words = if json { vec!["-o", "json"] } else { Vec::new() };
    words.extend(["--deadline", "5s"]);
    words.extend(dice.pick(VERBS).unwrap_or_default().split(' '));
    for _ in 0..dice.below(4) {
        words.extend(dice.pick(WORDS));
    }
    words
}

#[test]
fn random_calls_print_no_control_character_and_name_no_session_zero() {
    let seed = tensorlane_fuzz::seeds().start;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let desk = desk();
    let mut done = 0;
    for _ in 0..CALLS {
        let json = dice.one_in(3);
        let words = words(&mut dice, json);
        let Called { code, out, errors } = desk.call_words(&words);
        assert!((0..=3).contains(&code), "seed {seed}: {words:?}: {code}, {errors:?}");
        done += usize::from(code == 0);
        for text in [&out, &errors] {
            // JSON escapes what is below a space, and nobody shows it as it is.
            let is_shown = |c: char| c == '\n' || if json { c >= ' ' } else { !c.is_control() };
            assert!(text.chars().all(is_shown), "seed {seed}: {words:?}: {text:?}");
            for wrong in ["session 0", "panicked", "failed to fill whole buffer"] {
                assert!(!text.contains(wrong), "seed {seed}: {words:?}: {text:?}");
            }
            let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
            let is_json = !json || values.all(|value| value.is_ok());
            assert!(is_json, "seed {seed}: {words:?}: {text:?}");
        }
    }
    assert!(done > CALLS / 20, "{done} calls of {CALLS} did something");
}
