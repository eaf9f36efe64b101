//! The first program on the front page is the one that is compiled.

const README: &str = include_str!("../../README.md");
const EXAMPLE: &str = include_str!("../examples/first.rs");

#[test]
fn the_first_program_of_the_readme_is_the_example() {
    let (_, program) = EXAMPLE.split_once("\n\nuse ").expect("the example imports something");
    assert!(README.contains(&format!("```rust\nuse {}\n```", program.trim_end())));
}
