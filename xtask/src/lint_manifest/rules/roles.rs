//! Which container is the worker, and whether each worker is asked in its own container: the probe
//! compares container generations, so from another one every mark is a previous container's.

use super::{Findings, Member};
use crate::lint_manifest::finding::Level;

pub(super) struct Roles {
    /// The containers that only probe another's marks, and whose.
    elsewhere: Vec<(String, String)>,
}

impl Roles {
    pub(super) fn workers<'m, 'a>(
        &self,
        members: &'m [Member<'a>],
    ) -> impl Iterator<Item = &'m Member<'a>> {
        members.iter().filter(|member| {
            !self.elsewhere.iter().any(|(prober, _)| *prober == member.container.name)
        })
    }

    pub(super) fn is_asked_from_elsewhere(&self, member: &Member<'_>) -> bool {
        self.elsewhere.iter().any(|(_, worker)| *worker == member.container.name)
    }
}

pub(super) fn decide(members: &[Member<'_>], findings: &mut Findings<'_>) -> Roles {
    let mut elsewhere = Vec::new();
    for prober in members.iter().filter(|member| member.is_prober()) {
        let worker = members.iter().find(|other| {
            other.field != prober.field && !other.is_prober() && probes_for(prober, other)
        });
        let Some(worker) = worker else {
            continue;
        };
        let asked = prober.probes.iter().find(|asked| asked.reads_marks());
        findings.of(
            (Level::Error, "probe-elsewhere"),
            prober,
            asked.map_or("", |asked| asked.field),
            format!(
                "the worker is container {}, and the probe runs in another one: it says `heartbeat belongs \
                 to a previous container` for ever, and the kubelet restarts {} instead of {}",
                worker.container.name, prober.container.name, worker.container.name
            ),
            format!(
                "copy the probe into the image of {} and move the probes there; drop this container",
                worker.container.name
            ),
        );
        elsewhere.push((prober.container.name.clone(), worker.container.name.clone()));
    }
    let roles = Roles { elsewhere };
    shared(&roles.workers(members).collect::<Vec<_>>(), findings);
    roles
}

/// Whether `prober` can only mean the marks of `other`.
fn probes_for(prober: &Member<'_>, other: &Member<'_>) -> bool {
    let Some(mount) = volume(prober) else {
        let could_be_a_worker = prober.environment.has_ours()
            || prober.environment.may_come_from_elsewhere("TICKMARK_DIR");
        return !could_be_a_worker;
    };
    let only_looks = prober
        .lying
        .as_ref()
        .and_then(|lying| lying.mounted())
        .is_some_and(|mounted| mounted.mount.read_only == Some(true));
    volume(other) == Some(mount)
        && !prober.environment.has_a_workers_own()
        && (only_looks || !prober.environment.has_ours() || other.environment.has_a_workers_own())
}

/// The volume and the part of it that a container's marks are on.
fn volume<'m>(member: &'m Member<'_>) -> Option<(&'m str, String)> {
    let mounted = member.lying.as_ref()?.mounted()?;
    let dir = member.settings.dir.value.as_deref()?;
    let below = dir.strip_prefix(mounted.mount.mount_path.trim_end_matches('/'))?;
    let mount = mounted.mount;
    let part = mount.sub_path.as_deref().or(mount.sub_path_expr.as_deref()).unwrap_or_default();
    let whole = format!("{part}/{}", below.trim_matches('/'));
    Some((&mount.name, whole.trim_matches('/').to_owned()))
}

/// Two workers, one directory.
fn shared(workers: &[&Member<'_>], findings: &mut Findings<'_>) {
    for (index, worker) in workers.iter().enumerate() {
        let first = workers.iter().take(index).find(|first| {
            volume(first).is_some_and(|volume_of_first| volume(worker) == Some(volume_of_first))
        });
        let Some(first) = first else {
            continue;
        };
        let mount = worker.lying.as_ref().and_then(|lying| lying.mounted());
        findings.of(
            (Level::Error, "marks-shared"),
            worker,
            &mount.map_or_else(String::new, |mounted| format!("volumeMounts[{}]", mounted.index)),
            format!(
                "containers {} and {} leave their marks in one directory: each writes over the other's, and \
                 each probe finds marks of another container",
                first.container.name, worker.container.name
            ),
            "give each container a memory volume of its own, or at least a TICKMARK_DIR of its own on it; \
             if one of the two is no worker, take its TICKMARK_ variables and its probes away",
        );
    }
}
