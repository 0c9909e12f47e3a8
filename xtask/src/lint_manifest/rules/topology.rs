//! Pods whose PID 1 is not their own: which kernels have an id that makes it harmless is in
//! docs/PLATFORM.md.

use super::{Cgroup, Findings, Member, Node};
use crate::lint_manifest::finding::Level;

/// `STATX_MNT_ID_UNIQUE`.
const ROOT_MOUNT_ID: (u32, u32) = (6, 8);
/// Inodes of cgroup v2 that are not used again.
const CGROUP_ID: (u32, u32) = (5, 5);

pub(super) fn check(members: &[Member<'_>], node: Node, findings: &mut Findings<'_>) {
    let spec = &findings.workload.spec;
    let field = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => "hostPID",
        (_, Some(true)) => "shareProcessNamespace",
        _ => return,
    };
    let remove = format!("remove {field}");
    let is_gem = members
        .iter()
        .any(|member| member.settings.text.value == Some(true) || member.environment.is_the_gems());
    if let Some(member) = members.iter().find(|member| member.settings.strict.value == Some(true)) {
        findings.of_pod(
            (Level::Error, "shared-pids"),
            field,
            format!(
                "container {} sets TICKMARK_TOPOLOGY=strict, which refuses such a pod for the life of its \
                 volume wherever it can be proven",
                member.container.name
            ),
            remove,
        );
        return;
    }
    if is_gem {
        findings.of_pod(
            (Level::Error, "shared-pids"),
            field,
            "marks in text carry no unique id: where it can be proven, the probe exits 1 for the life of the \
             volume; where not, a restarted container may take over the marks of the one before",
            format!("{remove}, or write binary marks on Linux 6.8 or later"),
        );
        return;
    }
    let terminal = "nothing tells a restarted container from the one before: where it can be proven, the \
        worker publishes topology-unsafe and every probe fails for the life of the volume; where not, the \
        startup probe passes early on old marks";
    let privileged = members.iter().any(|member| {
        let context = member.container.security_context.as_ref();
        context.is_some_and(|context| context.privileged == Some(true))
    });
    match (node.kernel, node.cgroup) {
        (Some(kernel), _) if kernel >= ROOT_MOUNT_ID => {}
        (Some(kernel), _) if kernel < CGROUP_ID => findings.of_pod(
            (Level::Error, "shared-pids"),
            field,
            format!("Linux {}.{} has no unique id: {terminal}", kernel.0, kernel.1),
            format!("{remove}, or run it on Linux 6.8 or later"),
        ),
        (Some(kernel), Some(Cgroup::V1)) => findings.of_pod(
            (Level::Error, "shared-pids"),
            field,
            format!("Linux {}.{} with cgroup v1 has no unique id: {terminal}", kernel.0, kernel.1),
            format!("{remove}, or run it on cgroup v2, or on Linux 6.8 or later"),
        ),
        (Some(kernel), Some(Cgroup::V2)) if privileged => findings.of_pod(
            (Level::Error, "shared-pids"),
            field,
            format!(
                "a privileged container has no cgroup namespace, and with it no unique id on Linux {}.{}: \
                 {terminal}",
                kernel.0, kernel.1
            ),
            format!("{remove}, or privileged, or run it on Linux 6.8 or later"),
        ),
        (Some(_), Some(Cgroup::V2)) => {}
        (Some(kernel), None) => findings.of_pod(
            (Level::Warning, "shared-pids"),
            field,
            format!(
                "on Linux {}.{} this is harmless with cgroup v2 alone, and in a container that is not \
                 privileged; with cgroup v1, {terminal}",
                kernel.0, kernel.1
            ),
            format!("{remove}, or say --cgroup v2 if the nodes have it"),
        ),
        (None, _) => findings.of_pod(
            (Level::Warning, "shared-pids"),
            field,
            format!(
                "this is harmless from Linux 6.8 on, and from 5.5 on with cgroup v2 in a container that is not \
                 privileged; else {terminal}"
            ),
            format!("{remove}, or say --kernel with the nodes' oldest"),
        ),
    }
}
