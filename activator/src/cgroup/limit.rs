//! What a cgroup may use, and the three interface files that say it.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::directory::Directory;
use crate::error::{Error, Kind};

/// The period of `cpu.max`, in microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;

/// A tier. What is `None` is unlimited; zero cannot be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// `memory.max`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<NonZeroU64>,
    /// `pids.max`: processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<NonZeroU32>,
    /// `cpu.max`, in thousandths of one processor. The kernel takes no less than 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<NonZeroU32>,
}

impl Limit {
    /// No limit at all.
    pub const UNLIMITED: Limit = Limit { memory: None, pids: None, cpu: None };

    /// What an incumbent and its successor need together: the sum, and unlimited wins.
    #[must_use]
    pub fn overlap(a: &Limit, b: &Limit) -> Limit {
        let longer = |a: NonZeroU64, b: NonZeroU64| a.saturating_add(b.get());
        let more = |a: NonZeroU32, b: NonZeroU32| a.saturating_add(b.get());
        Limit {
            memory: a.memory.zip(b.memory).map(|(a, b)| longer(a, b)),
            pids: a.pids.zip(b.pids).map(|(a, b)| more(a, b)),
            cpu: a.cpu.zip(b.cpu).map(|(a, b)| more(a, b)),
        }
    }

    fn rows(&self) -> [Row; 3] {
        let row = |controller, file, text: Option<String>| Row {
            controller,
            file,
            limited: text.is_some(),
            text: text.unwrap_or_else(|| "max".to_owned()),
        };
        let quota =
            |cpu: NonZeroU32| format!("{} {PERIOD_US}", u64::from(cpu.get()) * PERIOD_US / 1000);
        [
            row("memory", "memory.max", self.memory.map(|bytes| bytes.to_string())),
            row("pids", "pids.max", self.pids.map(|count| count.to_string())),
            row("cpu", "cpu.max", self.cpu.map(quota)),
        ]
    }

    /// Writes this limit on `cgroup`. Those `above` it, from the delegation down to its parent,
    /// hand out the controllers.
    ///
    /// A limit below what is in use is not refused: memory is reclaimed and at last the
    /// out-of-memory killer chosen from, and no process more is made.
    pub(super) fn write(&self, above: &[&Directory], cgroup: &Directory) -> Result<(), Error> {
        for row in self.rows() {
            for parent in above.iter().filter(|_| row.limited) {
                enable(parent, row.controller)?;
            }
            match cgroup.write(row.file, &row.text) {
                Ok(()) => {}
                // Without its controller nothing is limited.
                Err(Errno::NOENT) if !row.limited => {}
                Err(error) => {
                    let what = format!("write {:?} to {} of", row.text, row.file);
                    return cgroup.doing(Err(error), &what);
                }
            }
        }
        Ok(())
    }

    /// The limit that is in force on `cgroup` itself.
    pub(super) fn read(cgroup: &Directory) -> Result<Limit, Error> {
        let read = |file: &str| match cgroup.read(file) {
            Ok(text) => Ok(Some(text)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => cgroup.doing(Err(error), &format!("read {file} of")),
        };
        Ok(Limit {
            memory: read("memory.max")?.and_then(|text| text.trim().parse().ok()),
            pids: read("pids.max")?.and_then(|text| text.trim().parse().ok()),
            cpu: read("cpu.max")?.and_then(|text| parse_cpu(&text)),
        })
    }
}

struct Row {
    controller: &'static str,
    file: &'static str,
    limited: bool,
    text: String,
}

fn parse_cpu(text: &str) -> Option<NonZeroU32> {
    let (quota, period) = text.trim().split_once(' ')?;
    let quota: u64 = quota.parse().ok()?;
    let period: u64 = period.parse().ok().filter(|period| *period > 0)?;
    NonZeroU32::new(u32::try_from(quota.checked_mul(1000)? / period).ok()?)
}

/// Gives the children of `parent` a controller.
///
/// # References
/// [cgroup v2](https://docs.kernel.org/admin-guide/cgroup-v2.html): `cgroup.controllers`,
/// `cgroup.subtree_control`; a cgroup with processes of its own cannot give any but the root's
/// (`EBUSY`).
fn enable(parent: &Directory, controller: &str) -> Result<(), Error> {
    let has = |file| {
        let text = parent.doing(parent.read(file), &format!("read {file} of"))?;
        Ok::<_, Error>(text.split_ascii_whitespace().any(|word| word == controller))
    };
    if has("cgroup.subtree_control")? {
        return Ok(());
    }
    let path = parent.path().display();
    if !has("cgroup.controllers")? {
        return Err(Error::new(
            Kind::NoController,
            format!(
                "{path} has no {controller} controller: delegate it there (systemd: \
                 Delegate=yes), or leave {controller} out of the tier"
            ),
        ));
    }
    match parent.write("cgroup.subtree_control", &format!("+{controller}")) {
        Err(Errno::BUSY) => Err(Error::new(
            Kind::NoController,
            format!(
                "{path} cannot hand out its {controller} controller while processes are in it: \
                 delegate a cgroup of its own"
            ),
        )),
        other => parent.doing(other, &format!("hand out the {controller} controller of")),
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = self.rows().into_iter().filter(|row| row.limited).peekable();
        if rows.peek().is_none() {
            return f.write_str("unlimited");
        }
        for (index, row) in rows.enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", row.file, row.text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(memory: u64, pids: u32, cpu: u32) -> Limit {
        Limit {
            memory: NonZeroU64::new(memory),
            pids: NonZeroU32::new(pids),
            cpu: NonZeroU32::new(cpu),
        }
    }

    #[test]
    fn an_overlap_is_the_sum_and_unlimited_wins() {
        let sum = Limit::overlap(&limit(100, 3, 500), &limit(20, 4, 0));
        assert_eq!(sum, limit(120, 7, 0));
        assert_eq!(Limit::overlap(&Limit::UNLIMITED, &limit(1, 1, 1)), Limit::UNLIMITED);
        let most = limit(u64::MAX, u32::MAX, u32::MAX);
        assert_eq!(Limit::overlap(&most, &most), most);
    }

    #[test]
    fn a_limit_reads_as_what_is_written() {
        assert_eq!(
            limit(268_435_456, 128, 500).to_string(),
            "memory.max 268435456, pids.max 128, cpu.max 50000 100000"
        );
        assert_eq!(Limit::UNLIMITED.to_string(), "unlimited");
        assert_eq!(parse_cpu("50000 100000\n"), NonZeroU32::new(500));
        assert_eq!(parse_cpu("max 100000\n"), None);
    }
}
