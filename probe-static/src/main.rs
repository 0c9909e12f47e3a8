//! The static binary: musl's start code calls `main`, which arms the timer and hands the C strings
//! it was given to the library. Every `unsafe` of this program is here or in `closing`.
#![cfg_attr(target_env = "musl", no_std, no_main)]

#[cfg(target_env = "musl")]
mod start;

/// Keeps `--all-features` building where there is no musl; the real program is `start`.
#[cfg(not(target_env = "musl"))]
fn main() {
    panic!("built for a target without musl: use `cargo xtask probe`");
}
