//! What this process can say about its container, read whole for the answers that explain. The verdict
//! reads its own, lazily, so that explaining a verdict cannot change it.

use core::fmt;

use rustix::fd::OwnedFd;
use tickmark::procfs::Evidence;
use tickmark::settings::{Settings, Source};
use tickmark_protocol::{Detail, Encoding, Generation, Relation, Topology, classify};

/// All the evidence, and the topology that follows from it.
#[derive(Debug)]
pub(crate) struct Witness {
    generation: Generation,
    pub(crate) topology: Topology,
}

impl Witness {
    pub(crate) fn read(settings: &Settings<'_>, dispose: &mut dyn FnMut(OwnedFd)) -> Self {
        let mut evidence = Evidence::new(settings.launch.clone(), dispose);
        evidence.read_all();
        let pid1 = evidence.pid1();
        Self {
            generation: evidence.held().clone(),
            topology: classify(
                pid1,
                evidence.held(),
                settings.format.value,
                settings.strict.value,
                evidence.missing(),
            ),
        }
    }

    /// How a record's generation compares with this process's.
    pub(crate) fn relation(&self, written: Option<&Generation>) -> Compared {
        Compared(written.map(|written| self.generation.relation(written)))
    }

    pub(crate) fn has_detail(&self) -> bool {
        !matches!(self.topology.detail, Detail::None)
    }
}

/// A comparison in words, with the evidence that decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared(Option<Relation>);

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(Relation::Incomparable) => f.write_str("incomparable"),
            Some(Relation::Same(evidence)) => write!(f, "same by {evidence}"),
            Some(Relation::Different(evidence)) => write!(f, "different by {evidence}"),
        }
    }
}

/// Where a setting came from.
pub(crate) fn source(source: Source) -> &'static str {
    match source {
        Source::Default => "default",
        Source::Environment(name) => name,
        Source::Flag => "flag",
    }
}

/// As `TICKMARK_FORMAT` names it.
pub(crate) fn encoding(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Binary => "binary",
        Encoding::Text => "text",
    }
}

/// As `TICKMARK_TOPOLOGY` names it.
pub(crate) fn strictness(strict: bool) -> &'static str {
    if strict { "strict" } else { "auto" }
}
