//! Which incarnation of the container wrote a record: the evidence for it, and how two
//! collections of evidence are compared.

use heapless::Vec;
use serde::{Deserialize, Serialize};

use crate::OutOfRange;
use crate::words::{Sink, Words, display, nth};

/// A random token that the activator gives each launch (`TICKMARK_LAUNCH`): 1 to 64 bytes of
/// graphic ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<u8, 64>")]
pub struct LaunchToken {
    length: u8,
    /// Zeroes after the token. Not a `Vec`, whose copies and comparisons go byte by byte.
    bytes: [u8; 64],
}

impl Serialize for LaunchToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.token())
    }
}

impl TryFrom<Vec<u8, 64>> for LaunchToken {
    type Error = OutOfRange;

    fn try_from(token: Vec<u8, 64>) -> Result<LaunchToken, OutOfRange> {
        LaunchToken::new(&token).ok_or(OutOfRange)
    }
}

impl LaunchToken {
    /// `None` for an empty or longer token, and for bytes outside graphic ASCII.
    #[must_use]
    pub fn new(token: &[u8]) -> Option<LaunchToken> {
        let mut bytes = [0; 64];
        if token.is_empty() || token.len() > bytes.len() {
            return None;
        }
        for (place, byte) in bytes.iter_mut().zip(token) {
            if !byte.is_ascii_graphic() {
                return None;
            }
            *place = *byte;
        }
        Some(LaunchToken { length: token.len() as u8, bytes })
    }

    fn token(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    /// The token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Graphic ASCII by construction.
        core::str::from_utf8(self.token()).unwrap_or_default()
    }
}

/// One kind of evidence, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// `TICKMARK_LAUNCH`; never repeats.
    Launch,
    /// `NS_GET_MNTNS_ID` on `/proc/self/ns/mnt`; Linux 6.11; never repeats within a boot.
    MountNamespaceId,
    /// `STATX_MNT_ID_UNIQUE` of `/`; Linux 6.8; never repeats within a boot.
    RootMountId,
    /// Inode of the container's cgroup v2 directory; Linux 5.5; never repeats within a boot.
    CgroupId,
    /// Mount namespace inode and PID 1's start time together, the gem's formula. Repeats
    /// where PID 1 outlives the container.
    InodeAndStartTime,
    /// `/proc/sys/kernel/random/boot_id`: can only tell two records apart.
    BootId,
}

display!(Evidence);

impl Words for Evidence {
    fn say(&self, sink: &mut dyn Sink) {
        const KINDS: &str = "launch token\nmount namespace id\nroot mount id\ncgroup id\n\
            mount namespace inode and PID 1 start time\nboot id";
        sink.put(nth(KINDS, *self as usize));
    }
}

/// Everything that could be read about this incarnation of the container. Ids are opaque:
/// small, and not monotonic.
///
/// The order of the fields is the wire format (`FORMAT.md`).
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// `/proc/sys/kernel/random/boot_id` as 16 bytes.
    pub boot_id: Option<[u8; 16]>,
    /// [`Evidence::Launch`].
    pub launch: Option<LaunchToken>,
    /// [`Evidence::MountNamespaceId`].
    pub mount_namespace_id: Option<u64>,
    /// [`Evidence::RootMountId`].
    pub root_mount_id: Option<u64>,
    /// [`Evidence::CgroupId`].
    pub cgroup_id: Option<u64>,
    /// `readlink /proc/self/ns/mnt`.
    pub mount_namespace_inode: Option<u64>,
    /// Field 22 of `/proc/1/stat`, clock ticks after boot. Zero is valid data that
    /// identifies nothing.
    pub pid1_start_time: Option<u64>,
}

/// What a comparison of two generations found, and by which evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// The same incarnation.
    Same(Evidence),
    /// Two incarnations.
    Different(Evidence),
    /// Nothing that both hold: nothing shows that they are the same.
    Incomparable,
}

impl Relation {
    fn by(evidence: Evidence, same: bool) -> Relation {
        if same { Relation::Same(evidence) } else { Relation::Different(evidence) }
    }

    /// Whether this shows the same incarnation.
    #[must_use]
    pub fn is_same(self) -> bool {
        matches!(self, Relation::Same(_))
    }
}

/// Not derived, which would ask of each field whether it is there.
impl Clone for Generation {
    #[inline(never)]
    fn clone(&self) -> Generation {
        let Generation {
            boot_id,
            launch,
            mount_namespace_id,
            root_mount_id,
            cgroup_id,
            mount_namespace_inode,
            pid1_start_time,
        } = *self;
        Generation {
            boot_id,
            launch,
            mount_namespace_id,
            root_mount_id,
            cgroup_id,
            mount_namespace_inode,
            pid1_start_time,
        }
    }
}

impl Generation {
    /// Nothing, set in one place.
    #[inline(never)]
    #[must_use]
    pub fn empty() -> Generation {
        Generation::default()
    }

    /// The kernel's ids that never repeat within a boot, strongest first: of the mount namespace, of
    /// the root mount, of the cgroup.
    #[must_use]
    pub fn unique_ids(&self) -> [Option<u64>; 3] {
        [self.mount_namespace_id, self.root_mount_id, self.cgroup_id]
    }

    /// Whether any id is held that never repeats.
    #[must_use]
    pub fn has_unique_id(&self) -> bool {
        self.shares_unique_id(self)
    }

    /// Whether `self` and `other` both hold the same kind of unique id.
    #[inline(never)]
    #[must_use]
    pub fn shares_unique_id(&self, other: &Generation) -> bool {
        (self.launch.is_some() && other.launch.is_some())
            || (self.mount_namespace_id.is_some() && other.mount_namespace_id.is_some())
            || (self.root_mount_id.is_some() && other.root_mount_id.is_some())
            || (self.cgroup_id.is_some() && other.cgroup_id.is_some())
    }

    /// The two halves of the gem's identity, if both can be relied on.
    #[inline(never)]
    #[must_use]
    pub fn formula(&self) -> Option<(u64, u64)> {
        match (self.mount_namespace_inode, self.pid1_start_time) {
            (Some(inode), Some(start)) if inode != 0 && start != 0 => Some((inode, start)),
            _ => None,
        }
    }

    /// Whether this is enough to tell one incarnation from another.
    #[must_use]
    pub fn identifies(&self) -> bool {
        self.has_unique_id() || self.formula().is_some()
    }

    /// Compares what the judging process knows of itself (`self`) with a record's `written`
    /// generation. The first evidence that both hold decides alone.
    #[must_use]
    pub fn relation(&self, written: &Generation) -> Relation {
        if let (Some(own), Some(written)) = (&self.boot_id, &written.boot_id)
            && own != written
        {
            return Relation::Different(Evidence::BootId);
        }
        // A launched process reads only records that carry its launch.
        if self.launch.is_some() {
            return Relation::by(Evidence::Launch, self.launch == written.launch);
        }
        if let (Some(own), Some(written)) = (self.mount_namespace_id, written.mount_namespace_id) {
            return Relation::by(Evidence::MountNamespaceId, own == written);
        }
        if let (Some(own), Some(written)) = (self.root_mount_id, written.root_mount_id) {
            return Relation::by(Evidence::RootMountId, own == written);
        }
        if let (Some(own), Some(written)) = (self.cgroup_id, written.cgroup_id) {
            return Relation::by(Evidence::CgroupId, own == written);
        }
        match (self.formula(), written.formula()) {
            (Some(own), Some(written)) => Relation::by(Evidence::InodeAndStartTime, own == written),
            _ => Relation::Incomparable,
        }
    }
}
