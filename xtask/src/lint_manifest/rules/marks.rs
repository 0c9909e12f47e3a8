//! Where the marks lie: on memory, mounted where both sides look, writable, of a size that fits.

use super::{Findings, Member};
use crate::lint_manifest::finding::Level;
use crate::lint_manifest::volume::{Kind, Lying, Mounted, bytes};

/// What a slot and the rest take at most, from docs/KUBERNETES.md.
const SLOT_BYTES: u64 = 12 * 1024;
const OTHER_BYTES: u64 = 16 * 1024;

pub(super) fn check(member: &Member<'_>, findings: &mut Findings<'_>) {
    let dir = &member.settings.dir;
    let (Some(directory), Some(lying)) = (&dir.value, &member.lying) else {
        return;
    };
    if !directory.starts_with('/') {
        findings.of(
            (Level::Warning, "marks-directory"),
            member,
            &dir.path(),
            format!(
                "{directory:?} is not an absolute path: the worker and the probe find one directory only \
                 while both have the same working directory"
            ),
            "write the path from /, without white space before it",
        );
        return;
    }
    match lying {
        Lying::SharedMemory => {}
        Lying::Unmounted => unmounted(member, directory, findings),
        Lying::On(mounted) => on(member, directory, mounted, findings),
    }
}

fn unmounted(member: &Member<'_>, directory: &str, findings: &mut Findings<'_>) {
    let dir = &member.settings.dir;
    let read_only = member
        .container
        .security_context
        .as_ref()
        .is_some_and(|context| context.read_only_root_filesystem == Some(true));
    let mounts = member.container.volume_mounts.iter().flatten();
    let mounts: Vec<_> = mounts.map(|mount| mount.mount_path.as_str()).collect();
    let there = if mounts.is_empty() {
        "the container mounts nothing".to_owned()
    } else {
        format!("the container mounts {}", mounts.join(", "))
    };
    let effect = if read_only {
        "the root file system is read-only, so nothing is published and the probe says `worker has not \
         started yet` for ever"
    } else {
        "the marks are on the container's own file system, and a stalling disk restarts the worker"
    };
    findings.of(
        (Level::Error, "marks-mount"),
        member,
        &dir.path(),
        format!("no volume is mounted at {directory} ({}): {there}; {effect}", dir.by("the default")),
        format!(
            "mount a volume with `emptyDir: {{medium: Memory, sizeLimit: 1Mi}}` in this container and set \
             TICKMARK_DIR to its mountPath; now it is {directory}"
        ),
    );
}

fn on(member: &Member<'_>, directory: &str, mounted: &Mounted<'_>, findings: &mut Findings<'_>) {
    let mount_path = format!("volumeMounts[{}]", mounted.index);
    let name = &mounted.mount.name;
    let at = |index: &usize, field: &str| format!("volumes[{index}].{field}");
    let writes_nothing =
        "nothing is published, and the probe says `worker has not started yet` for ever";
    let memory = "use `emptyDir: {medium: Memory, sizeLimit: 1Mi}` for the marks alone";
    if mounted.mount.read_only == Some(true) {
        findings.of(
            (Level::Error, "marks-read-only"),
            member,
            &format!("{mount_path}.readOnly"),
            format!("the worker cannot write to {directory}: {writes_nothing}"),
            "remove readOnly; the probe shares the container's mounts and needs it no other way",
        );
    }
    let medium = (Level::Error, "marks-medium");
    match &mounted.kind {
        Kind::Missing => findings.of(
            (Level::Error, "marks-volume"),
            member,
            &mount_path,
            format!("the pod has no volume {name:?}: the API server refuses it"),
            "add the volume, or correct the name",
        ),
        Kind::EmptyDir { index, source } => match source.medium.as_deref() {
            Some("Memory") => size(member, *index, source.size_limit.as_ref().map(|q| q.0.as_str()), findings),
            other => findings.of_pod(
                medium,
                &at(index, "emptyDir"),
                format!(
                    "the marks of container {} are on {}, not in memory: a stalling disk keeps the worker \
                     from marking and the probe from reading, and restarts what is well",
                    member.container.name,
                    other.filter(|other| !other.is_empty()).map_or_else(
                        || "the node's disk".to_owned(),
                        |other| format!("the medium {other:?}")
                    )
                ),
                "set `medium: Memory`",
            ),
        },
        Kind::HostPath { index } => findings.of_pod(
            medium,
            &at(index, "hostPath"),
            "every pod of this node that mounts it leaves its marks in one directory, and they outlive the \
             pods: each finds the marks of others",
            memory,
        ),
        Kind::ReadOnly { index, field } => findings.of_pod(
            medium,
            &at(index, field),
            format!("a {field} volume cannot be written to: {writes_nothing}"),
            memory,
        ),
        Kind::Disk { index, field } => findings.of_pod(
            medium,
            &at(index, field),
            format!(
                "the marks of container {} depend on a {field}: when it stalls, what is well is restarted, \
                 and it outlives the pod with its marks",
                member.container.name
            ),
            memory,
        ),
        Kind::Claim => findings.of(
            medium,
            member,
            &mount_path,
            format!(
                "{name:?} is a volume claim: when its disk stalls, what is well is restarted, and it \
                 outlives the pod with its marks"
            ),
            memory,
        ),
    }
}

fn size(member: &Member<'_>, index: usize, limit: Option<&str>, findings: &mut Findings<'_>) {
    let Some(limit) = limit else {
        findings.of_pod(
            (Level::Warning, "marks-size-limit"),
            &format!("volumes[{index}].emptyDir"),
            "no sizeLimit: whatever writes there by mistake takes memory until the container's limit or \
             the node's end, and the worker is killed for it",
            "set `sizeLimit: 1Mi`, enough for 80 slots",
        );
        return;
    };
    let (Some(limit_bytes), Some(slots)) = (bytes(limit), member.settings.processes.value) else {
        return;
    };
    let needed = u64::from(slots) * SLOT_BYTES + OTHER_BYTES;
    if limit_bytes < needed {
        findings.of_pod(
            (Level::Error, "marks-size-limit"),
            &format!("volumes[{index}].emptyDir.sizeLimit"),
            format!(
                "{limit} is too small for {slots} slot(s), which take up to {} KiB: a slot that finds it full \
                 at its first start leaves no mark, and the pod is evicted if more is used than the limit",
                needed / 1024
            ),
            "set `sizeLimit: 1Mi`, or 12 KiB for each slot and 16 KiB more",
        );
    }
}
