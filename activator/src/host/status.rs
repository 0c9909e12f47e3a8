//! What a host is, for people and programs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Actor, Slot};
use crate::cgroup::Limit;
use crate::layout::Layout;
use crate::name::{BuildName, GenerationNumber, HostName};
use crate::staged::Staged;
use crate::swap::Member;

/// What a host is, for people and programs.
#[derive(Debug, Clone, serde::Serialize)]
pub struct HostStatus {
    /// Its name.
    pub host: HostName,
    /// Where its state machine is.
    pub state: String,
    /// The canonical socket.
    pub socket: Option<PathBuf>,
    /// The generation that the canonical path names.
    pub serves: Option<GenerationNumber>,
    /// Every generation that is not proven gone.
    pub generations: Vec<GenerationStatus>,
    /// The build it is pinned to.
    pub hold: Option<BuildName>,
    /// Why there are no launches.
    pub fence: Option<String>,
    /// The layout as generations see it.
    pub layout: String,
    /// The limit of the host's parent cgroup.
    pub parent: Option<Limit>,
    /// Builds whose start failed, and why.
    pub failed: BTreeMap<BuildName, String>,
    /// The process of the sidecar.
    pub sidecar: Option<u32>,
}

/// One generation.
#[derive(Debug, Clone, serde::Serialize)]
pub struct GenerationStatus {
    /// Its number.
    pub number: GenerationNumber,
    /// Its build.
    pub build: BuildName,
    /// `incumbent`, `successor`, or how far it is on its way out.
    pub role: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// The verdicts over its marks, in words.
    pub verdicts: Vec<String>,
}

impl Actor {
    pub(super) fn status(&self) -> HostStatus {
        let route = self.shared.route();
        let record = self.swap.record();
        let store = self.shared.store();
        let role = |number: GenerationNumber| {
            let is = |member: &Option<Member<Staged>>| {
                member.as_ref().is_some_and(|member| member.number == number)
            };
            if is(&record.current) {
                "incumbent".to_owned()
            } else if is(&record.successor) {
                "successor".to_owned()
            } else {
                let leaving = record.leaving.iter().find(|one| one.member.number == number);
                leaving.map_or_else(String::new, |one| format!("{:?}", one.stage).to_lowercase())
            }
        };
        let generations = self
            .swap
            .members()
            .map(|member| {
                let running = self.running.get(&member.number);
                let slots = running.map(|running| running.slots.values()).into_iter().flatten();
                let slots: Vec<&Slot> = slots.filter(|slot| slot.exit.is_none()).collect();
                let max_age = self.shared.settings.max_age;
                GenerationStatus {
                    number: member.number,
                    build: member.build.name.clone(),
                    role: role(member.number),
                    pids: slots.iter().map(|slot| slot.proc.process.pid()).collect(),
                    verdicts: slots
                        .iter()
                        .map(|slot| {
                            let launched = &slot.proc.launched;
                            launched.explain(&launched.verdict(max_age))
                        })
                        .collect(),
                }
            })
            .collect();
        let layout = match self.shared.backend.gen_layout(route) {
            Layout::Flat => "flat".to_owned(),
            Layout::Nested => "nested".to_owned(),
            Layout::Foreign => "foreign".to_owned(),
            Layout::Fenced(reason) => format!("fenced: {reason}"),
            Layout::Conflict(reason) => format!("conflict: {reason}"),
        };
        HostStatus {
            host: route.host.clone(),
            state: self.swap.state().to_string(),
            socket: route.socket.clone(),
            serves: self.swap.serves(),
            generations,
            hold: store.hold.clone(),
            fence: store.fence.clone(),
            layout,
            parent: store.parent,
            failed: store.failed.clone(),
            sidecar: store.sidecar.as_ref().map(|(_, ran)| ran.identity.pid),
        }
    }
}
