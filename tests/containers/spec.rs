//! The OCI configuration a kubelet would have written for a container of this shape.

use serde_json::{Value, json};

use crate::site::in_guest;

/// The capability set that containerd gives a container whose manifest names none.
const KUBERNETES_CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// As whom a process of the container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) default_capabilities: bool,
}

impl Credentials {
    pub(crate) const ROOT: Self = Self { uid: 0, default_capabilities: true };
    /// No more than a pod that was hardened leaves.
    pub(crate) const NOBODY: Self = Self { uid: 1000, default_capabilities: false };
    /// What a kubelet's pause image runs as.
    pub(crate) const PAUSE: Self = Self { uid: 65535, default_capabilities: true };

    /// Every combination that the suite runs; in the slow guest the two extremes.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self::ROOT, Self::NOBODY];
        if !in_guest() {
            all.push(Self { default_capabilities: false, ..Self::ROOT });
            all.push(Self { default_capabilities: true, ..Self::NOBODY });
        }
        all
    }

    pub(crate) fn name(self) -> String {
        let capabilities = if self.default_capabilities { "default" } else { "no" };
        format!("uid {} with {capabilities} capabilities", self.uid)
    }
}

/// Whose processes the container sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PidNamespace {
    Private,
    /// That of the container whose main process has this pid on the host.
    Of(u32),
    Host,
}

/// A container of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) credentials: Credentials,
    pub(crate) pid: PidNamespace,
    pub(crate) cgroup_namespace: bool,
    pub(crate) read_only: bool,
}

/// The `process` object, of the main process and of an exec alike.
pub(crate) fn process(
    credentials: Credentials,
    arguments: &[String],
    environment: &[(String, String)],
) -> Value {
    let capabilities: &[&str] =
        if credentials.default_capabilities { &KUBERNETES_CAPABILITIES } else { &[] };
    let environment: Vec<String> =
        environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    json!({
        "terminal": false,
        "user": { "uid": credentials.uid, "gid": credentials.uid },
        "args": arguments,
        "env": environment,
        "cwd": "/",
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
        },
        "noNewPrivileges": true,
    })
}

/// The whole of `config.json`.
pub(crate) fn config(
    name: &str,
    rootfs: &str,
    marks: &str,
    shape: &Shape,
    process: &Value,
) -> Value {
    let mut namespaces = vec![
        json!({ "type": "mount" }),
        json!({ "type": "ipc" }),
        json!({ "type": "uts" }),
        json!({ "type": "network" }),
    ];
    match shape.pid {
        PidNamespace::Private => namespaces.push(json!({ "type": "pid" })),
        PidNamespace::Of(pid) => {
            namespaces.push(json!({ "type": "pid", "path": format!("/proc/{pid}/ns/pid") }));
        }
        PidNamespace::Host => {}
    }
    if shape.cgroup_namespace {
        namespaces.push(json!({ "type": "cgroup" }));
    }
    json!({
        "ociVersion": "1.0.2",
        "process": process,
        "root": { "path": rootfs, "readonly": shape.read_only },
        "hostname": "tickmark",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc",
              "options": ["nosuid", "noexec", "nodev"] },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
              "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs",
              "options": ["nosuid", "noexec", "nodev", "ro"] },
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
              "options": ["nosuid", "noexec", "nodev", "relatime", "ro"] },
            { "destination": "/marks", "type": "bind", "source": marks,
              "options": ["rbind", "rprivate", "rw"] },
        ],
        "linux": {
            "cgroupsPath": format!("/{name}"),
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": namespaces,
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
                "/sys/firmware",
            ],
            "readonlyPaths": [
                "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
            ],
        },
    })
}
