//! The tickmark probe as a library: everything but the entry point, so that it is tested like any
//! other code. What reads a mark is [`tickmark`], what decides is [`tickmark_protocol`]; here are the
//! command line, the output and the order of things. No allocation, no clock of its own.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod arguments;
pub mod closing;
pub mod kernel;
pub mod output;
mod run;
mod strings;
mod usage;

pub use run::{Started, run};
