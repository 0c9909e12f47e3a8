//! The scenarios, by number. Each does something to a real pod and says what came of it.

mod broker;
mod cost;
mod deploy;
mod drain;
mod image;
mod inheritance;
mod life;
mod ruby;
mod slots;
mod topology;
mod wedged;

use crate::answer::{Report, Stop};
use crate::stage::Case;

pub(crate) struct Scenario {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    /// Its workers consume from the broker that no scenario kills.
    pub(crate) consumes: bool,
    pub(crate) run: fn(&Case<'_>) -> Result<Report, Stop>,
}

/// Runs only if it is asked for, alone: it measures the node.
pub(crate) const BY_NAME: u8 = 18;

/// Those that take longest first: with few at once that is the shortest whole.
pub(crate) const ALL: [Scenario; 18] = [
    of(11, "a restarted container does not inherit", false, inheritance::restarts),
    of(12, "shared and host PIDs", false, topology::table),
    of(5, "the broker stays dead", false, broker::stays_dead),
    of(7, "bad broker credentials", true, broker::refused),
    of(13, "a stuck drain ends with its grace", true, drain::stuck),
    of(4, "the broker dies", false, broker::dies),
    of(15, "a wedged runtime, and stuck jobs", true, wedged::both),
    of(2, "a stale mark", true, life::frozen),
    of(3, "the broker takes the consumer away", true, broker::queue_deleted),
    of(8, "more than one process", true, slots::one_ill),
    of(16, "a Ruby worker's text marks", false, ruby::marks),
    of(1, "it comes up", true, life::comes_up),
    of(9, "a rolling deploy keeps the queue covered", true, deploy::rolling),
    of(6, "an ordinary deploy logs no ERROR", true, deploy::ordinary),
    of(14, "a killed slot comes back into its own file", true, slots::killed),
    of(10, "the alert's metric", true, broker::metric),
    of(17, "a scratch image, read-only, not root", true, image::bare),
    of(BY_NAME, "what a call costs the node", false, cost::node),
];

const fn of(
    number: u8,
    name: &'static str,
    consumes: bool,
    run: fn(&Case<'_>) -> Result<Report, Stop>,
) -> Scenario {
    Scenario { number, name, consumes, run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_there_once() {
        let mut numbers: Vec<u8> = ALL.iter().map(|scenario| scenario.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=18).collect::<Vec<u8>>());
    }
}
