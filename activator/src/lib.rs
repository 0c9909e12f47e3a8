//! Starts worker processes in slots, judges them by their marks, restarts them when the verdict is
//! red, and replaces a build by the next one without a refused connection.
//!
//! What it does not do: store responses (a hook purges them), hold leases across machines
//! (Kubernetes is there for that).

pub mod cgroup;
mod descriptor;
#[allow(dead_code, reason = "its users come with the modules below")]
mod error;
mod name;
pub mod process;
pub mod stub;
pub mod swap;

pub use error::{BoxError, Error};
pub use name::{BuildName, GenerationNumber, HostName, LeafName};
