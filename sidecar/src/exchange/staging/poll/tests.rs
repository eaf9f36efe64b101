use super::*;

#[test]
fn what_a_stager_says_goes_on_without_control_characters_and_up_to_a_kibibyte() {
    assert_eq!(bounded("out of\x1b[31m memory\n\u{85}, GPU 0"), "out of[31m memory, GPU 0");
    let long = format!("a{}", "ü".repeat(SAID_BYTES_MAX));
    let cut = bounded(&long);
    assert_eq!(cut.len(), SAID_BYTES_MAX - 1, "cut before the character that does not fit");
    assert!(long.starts_with(&cut));
    let failure = failed(&Failure::new(Reason::Internal, "x".repeat(1 << 20)));
    assert_eq!(failure.reason, Reason::StagingFailed);
    assert!(failure.message.len() < 2 * SAID_BYTES_MAX);
}
