//! Where a container's marks lie: on which mount of it, and what that volume is.

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, PodSpec, Volume, VolumeMount};

/// The mount that holds a directory.
pub(super) enum Lying<'a> {
    /// On no mount of the manifest: the container's own file system.
    Unmounted,
    /// Below `/dev/shm`, which the runtime mounts as a tmpfs of 64 MiB for the whole pod.
    SharedMemory,
    On(Mounted<'a>),
}

pub(super) struct Mounted<'a> {
    /// Its place in `volumeMounts`.
    pub(super) index: usize,
    pub(super) mount: &'a VolumeMount,
    pub(super) kind: Kind<'a>,
}

/// What a volume is, as far as marks are concerned.
pub(super) enum Kind<'a> {
    /// The manifest has no volume of this name.
    Missing,
    EmptyDir {
        index: usize,
        source: &'a EmptyDirVolumeSource,
    },
    /// A configMap, a secret and their like, which cannot be written to.
    ReadOnly {
        index: usize,
        field: &'static str,
    },
    HostPath {
        index: usize,
    },
    /// Something that has a disk, or a network, behind it.
    Disk {
        index: usize,
        field: &'static str,
    },
    /// A StatefulSet's claim.
    Claim,
}

impl<'a> Lying<'a> {
    pub(super) fn of(
        dir: &str,
        container: &'a Container,
        pod: &'a PodSpec,
        claims: &[String],
    ) -> Self {
        let mounts = container.volume_mounts.iter().flatten().enumerate();
        // A mount inside another hides that part of it.
        let deepest = mounts
            .filter(|(_, mount)| is_within(dir, &mount.mount_path))
            .max_by_key(|(_, mount)| mount.mount_path.trim_end_matches('/').len());
        match deepest {
            Some((index, mount)) => {
                let kind = Kind::of(&mount.name, pod, claims);
                Self::On(Mounted { index, mount, kind })
            }
            None if is_within(dir, "/dev/shm") => Self::SharedMemory,
            None => Self::Unmounted,
        }
    }

    pub(super) fn mounted(&self) -> Option<&Mounted<'a>> {
        match self {
            Self::On(mounted) => Some(mounted),
            _ => None,
        }
    }
}

impl<'a> Kind<'a> {
    fn of(name: &str, pod: &'a PodSpec, claims: &[String]) -> Self {
        let mut volumes = pod.volumes.iter().flatten().enumerate();
        let Some((index, volume)) = volumes.find(|(_, volume)| volume.name == name) else {
            let claimed = claims.iter().any(|claim| claim == name);
            return if claimed { Self::Claim } else { Self::Missing };
        };
        if let Some(source) = &volume.empty_dir {
            return Self::EmptyDir { index, source };
        }
        if volume.host_path.is_some() {
            return Self::HostPath { index };
        }
        match read_only(volume) {
            Some(field) => Self::ReadOnly { index, field },
            None => Self::Disk { index, field: disk(volume) },
        }
    }
}

fn read_only(volume: &Volume) -> Option<&'static str> {
    let fields = [
        (volume.config_map.is_some(), "configMap"),
        (volume.secret.is_some(), "secret"),
        (volume.projected.is_some(), "projected"),
        (volume.downward_api.is_some(), "downwardAPI"),
        (volume.image.is_some(), "image"),
    ];
    fields.into_iter().find_map(|(is, field)| is.then_some(field))
}

fn disk(volume: &Volume) -> &'static str {
    let fields = [
        (volume.persistent_volume_claim.is_some(), "persistentVolumeClaim"),
        (volume.ephemeral.is_some(), "ephemeral"),
        (volume.csi.is_some(), "csi"),
        (volume.nfs.is_some(), "nfs"),
    ];
    fields.into_iter().find_map(|(is, field)| is.then_some(field)).unwrap_or("volume")
}

fn is_within(dir: &str, mount: &str) -> bool {
    let mount = mount.trim_end_matches('/');
    dir.strip_prefix(mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A quantity as Kubernetes writes one, in bytes; `None` for what is none.
pub(super) fn bytes(quantity: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let (number, unit) = UNITS
        .into_iter()
        .find_map(|(suffix, unit)| Some((quantity.strip_suffix(suffix)?, unit)))
        .unwrap_or((quantity, 1.0));
    let number: f64 = number.trim().parse().ok().filter(|number: &f64| *number >= 0.0)?;
    let bytes = (number * unit).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and is not negative"
    )]
    Some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, value) in [
            ("1Mi", Some(1_048_576)),
            ("512Ki", Some(524_288)),
            ("1M", Some(1_000_000)),
            ("0.5Gi", Some(536_870_912)),
            ("4096", Some(4096)),
            ("1e3", Some(1000)),
            ("100m", Some(1)),
            ("many", None),
            ("-1", None),
        ] {
            assert_eq!(bytes(text), value, "{text}");
        }
    }

    #[test]
    fn a_directory_is_within_whole_names_only() {
        assert!(is_within("/run/tickmark", "/run/tickmark"));
        assert!(is_within("/run/tickmark/a", "/run/tickmark/"));
        assert!(is_within("/run", "/"));
        assert!(!is_within("/run/tickmarks", "/run/tickmark"));
    }
}
