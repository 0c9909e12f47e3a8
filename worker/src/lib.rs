//! Liveness for queue workers.
//!
//! A worker judges itself, in its own memory, every tick, and leaves a mark on a tmpfs. The
//! static probe `tickmark-probe` reads the marks and tells the supervisor. This crate is the
//! worker's side, and the code that both sides share.
//!
//! What it does not do: open connections, end or restart anything, read the application's
//! configuration.
//!
//! Without the default feature `std` what is left is `no_std` and allocates nothing: reading
//! procfs ([`procfs`]), reading marks and judging them ([`observe`]), saying so ([`report`]),
//! publishing them ([`marks`]).
#![no_std]

#[cfg(feature = "std")]
extern crate std;

pub mod clock;
pub mod marks;
pub mod observe;
pub mod procfs;
pub mod report;
pub mod settings;

#[cfg(feature = "std")]
mod attempts;
#[cfg(feature = "std")]
mod environment;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod jobs;
#[cfg(feature = "lapin")]
pub mod lapin;
#[cfg(feature = "std")]
mod liveness;
#[cfg(feature = "std")]
mod log;
#[cfg(feature = "std")]
mod monitor;
#[cfg(feature = "std")]
mod predicate;
#[cfg(feature = "std")]
mod registry;
#[cfg(feature = "serve")]
mod serve;
#[cfg(all(feature = "std", not(feature = "serve")))]
#[path = "serve/absent.rs"]
mod serve;
#[cfg(feature = "std")]
mod signal;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "std")]
mod topology;

pub use tickmark_protocol as protocol;

#[cfg(feature = "tokio")]
pub use self::tokio::RuntimeWatch;
#[cfg(feature = "std")]
pub use error::Error;
#[cfg(feature = "std")]
pub use jobs::{Job, Jobs};
#[cfg(feature = "std")]
pub use liveness::{Builder, Liveness};
#[cfg(feature = "std")]
#[doc(hidden)]
pub use monitor::Monitor;
#[cfg(feature = "std")]
pub use registry::{Consumer, ConsumerState, Registration};
#[cfg(feature = "serve")]
#[doc(hidden)]
pub use serve::fuzz as fuzz_request;
#[cfg(feature = "std")]
pub use tickmark_protocol::Encoding;

/// The examples of the guides, so that they compile.
#[cfg(all(doctest, feature = "std"))]
mod guides {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/SETUP.md")]
    mod setup {}
    #[doc = include_str!("../../docs/KUBERNETES.md")]
    mod kubernetes {}
    #[doc = include_str!("../../docs/DESIGN.md")]
    mod design {}
    #[doc = include_str!("../../docs/LIMITATIONS.md")]
    mod limitations {}
    #[doc = include_str!("../../docs/PLATFORM.md")]
    mod platform {}
}
