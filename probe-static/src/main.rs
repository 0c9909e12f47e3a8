//! The static binary: the kernel jumps to its first instruction, which hands the C strings that the
//! process was given to the library. Every `unsafe` of this program is in `start`, `kernel` or
//! `closing`.
#![cfg_attr(target_env = "musl", no_std, no_main)]

#[cfg(target_env = "musl")]
mod memory;
#[cfg(target_env = "musl")]
mod start;

/// Keeps `--all-features` building where there is no musl; the real program is `start`.
#[cfg(not(target_env = "musl"))]
fn main() {
    panic!("built for a target without musl: use `cargo xtask probe`");
}
