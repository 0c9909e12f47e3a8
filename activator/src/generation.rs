//! One generation of a host: what it runs, what it may use, and where it is reached.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroup::Limit;
use crate::layout::Sockets;
use crate::name::{BuildName, GenerationNumber};

/// A generation as its attempt was admitted: nothing of it is read again later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gen {
    /// Its number.
    pub number: GenerationNumber,
    /// The build; `None` before a cold wake has read the live link.
    pub build: Option<BuildName>,
    /// The staged executable; `None` means the live link, read at the start.
    pub staged: Option<PathBuf>,
    /// SHA-256 of the executable in hexadecimal, where it was captured.
    pub digest: Option<String>,
    /// What it may use. Unlimited in all is filled at the start from the build's own manifest.
    pub tier: Limit,
    /// What it binds; filled by a start that succeeds.
    pub socket: Option<PathBuf>,
    /// `socket` and `.control`; filled with it.
    pub control: Option<PathBuf>,
}

impl Gen {
    /// A generation of the live link: a cold wake.
    #[must_use]
    pub fn cold(number: GenerationNumber) -> Gen {
        Gen {
            number,
            build: None,
            staged: None,
            digest: None,
            tier: Limit::default(),
            socket: None,
            control: None,
        }
    }

    /// Fills in where it is reached.
    #[must_use]
    pub fn bound_to(self, sockets: Option<Sockets>) -> Gen {
        let (socket, control) = sockets.map(|s| (s.socket, s.control)).unzip();
        Gen { socket, control, ..self }
    }
}
