//! Starts worker processes in slots, judges them by their marks, restarts them when the verdict is
//! red, and replaces a build by the next one without a refused connection.
//!
//! What it does not do: store responses (a hook purges them), hold leases across machines
//! (Kubernetes is there for that).

mod activator;
pub mod backend;
pub mod cgroup;
mod choices;
pub mod claims;
pub mod config;
mod descriptor;
mod error;
pub mod exec;
mod fence;
pub mod gate;
mod generation;
pub mod health;
mod host;
pub mod layout;
pub mod link;
mod name;
pub mod process;
mod route;
mod sidecar;
pub mod staged;
pub mod state;
pub mod stub;
pub mod swap;
#[cfg(feature = "systemd")]
pub mod unit;

pub use activator::{Activator, Build, Hooks, Options, Wrap};
pub use error::{BoxError, Error};
pub use fence::{Fence, WriteFence};
pub use generation::Gen;
pub use host::{Answer, GenerationStatus, HostStatus, Restart, Settings, Step};
pub use name::{BuildName, GenerationNumber, HostName, LeafName};
pub use route::{Backing, Route};
