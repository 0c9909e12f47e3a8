//! The evidence: what this process can read about its container, and where PID 1 is. Each
//! piece is read at most once and only when it is asked for; the decisions are in
//! `tickmark_protocol`.
//!
//! Measured in real containers: `docs/DESIGN.md` has the tables.
#![allow(
    unsafe_code,
    reason = "two ioctl operation codes that rustix does not define; paths as text"
)]

use core::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxFlags, openat, readlinkat_raw, statat, statfs, statx,
};
use rustix::io::{Errno as SysErrno, read};
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use tickmark_protocol::{
    Detail, Encoding, Errno, Generation, LaunchToken, Pid1, State, Topology, Witness, classify,
    procfs as parse,
};

/// A path in procfs, both for the kernel and for a message.
#[derive(Clone, Copy)]
struct ProcPath(&'static CStr);

const OWN_NAMESPACE: ProcPath = ProcPath(c"/proc/self/ns/mnt");
const PID1_NAMESPACE: ProcPath = ProcPath(c"/proc/1/ns/mnt");
const PID1_STAT: ProcPath = ProcPath(c"/proc/1/stat");

impl ProcPath {
    fn shown(self) -> &'static str {
        // Not `from_utf8`, which is a kilobyte of the probe.
        // SAFETY: the three paths above are ASCII.
        unsafe { core::str::from_utf8_unchecked(self.0.to_bytes()) }
    }

    #[cold]
    fn unreadable(self, errno: Errno) -> Detail {
        Detail::CannotRead(self.shown(), errno)
    }
}

pub(crate) fn errno(error: SysErrno) -> Errno {
    Errno(error.raw_os_error())
}

/// The pieces that the test switch can hide, as bits of its mask.
#[derive(Clone, Copy)]
enum Piece {
    Launch,
    MountNamespaceId,
    RootMount,
    Cgroup,
    MountNamespaceInode,
    Pid1Start,
    Pid1Namespace,
    Pid1Mounts,
    BootId,
}

#[cfg(feature = "test-hide-evidence")]
mod hiding {
    use core::sync::atomic::{AtomicU32, Ordering};

    static HIDDEN: AtomicU32 = AtomicU32::new(0);

    /// Names in the order of `Piece`.
    const NAMES: [&[u8]; 9] = [
        b"launch",
        b"mntns-id",
        b"root-mount",
        b"cgroup",
        b"mntns-inode",
        b"pid1-start",
        b"pid1-ns",
        b"pid1-mountinfo",
        b"boot-id",
    ];

    /// Hides the pieces in a comma-separated list. Only in tests: no release has the feature.
    pub(crate) fn hide(list: &[u8]) {
        let mut mask = 0;
        for name in list.split(|&b| b == b',') {
            if let Some(bit) = NAMES.iter().position(|known| *known == name) {
                mask |= 1 << bit;
            }
        }
        HIDDEN.store(mask, Ordering::Relaxed);
    }

    pub(super) fn is_hidden(piece: super::Piece) -> bool {
        HIDDEN.load(Ordering::Relaxed) & (1 << piece as u32) != 0
    }
}

#[cfg(feature = "test-hide-evidence")]
pub(crate) use hiding::hide;

#[cfg(feature = "test-hide-evidence")]
fn visible(piece: Piece) -> Result<(), Errno> {
    if hiding::is_hidden(piece) { Err(Errno::ACCESS) } else { Ok(()) }
}

#[cfg(not(feature = "test-hide-evidence"))]
#[expect(clippy::unnecessary_wraps, reason = "the test switch can fail")]
fn visible(_piece: Piece) -> Result<(), Errno> {
    Ok(())
}

/// What happens to a descriptor when the library is done with it: `drop` closes it at once, a
/// process that counts its system calls may close many in one. `None` asks it to close whatever
/// it still holds: the process has run out of descriptors.
pub type Dispose<'d> = &'d mut dyn FnMut(Option<OwnedFd>);

/// What this process can say about its container, read piece by piece.
pub struct Evidence<'d> {
    dispose: Dispose<'d>,
    /// The pieces that were asked for, a bit for each [`Piece`]: none is read twice.
    asked: u16,
    pid1: Option<Pid1>,
    missing: Detail,
    /// What has been read so far.
    held: Generation,
}

impl<'d> Evidence<'d> {
    /// Reads nothing yet.
    #[inline(never)]
    #[must_use]
    pub fn new(launch: Option<LaunchToken>, dispose: Dispose<'d>) -> Evidence<'d> {
        let mut held = Generation::empty();
        if visible(Piece::Launch).is_ok() {
            held.launch = launch;
        }
        Evidence { dispose, asked: 0, pid1: None, missing: Detail::None, held }
    }

    /// For a judge outside of the worker's container, that started it: the launch alone, and the
    /// machine's boot id. Nothing else of the judge is ever read, since nothing else of it says
    /// whose the marks are.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn of_launch(launch: Option<LaunchToken>, dispose: Dispose<'d>) -> Evidence<'d> {
        let asked = !(1 << Piece::BootId as u16);
        Evidence {
            asked,
            pid1: Some(Pid1::Unknown(Detail::None)),
            ..Evidence::new(launch, dispose)
        }
    }

    /// The disposer, for files that are not evidence.
    pub(crate) fn dispose(&mut self) -> &mut Dispose<'d> {
        &mut self.dispose
    }

    /// What has been read so far.
    #[must_use]
    pub fn held(&self) -> &Generation {
        &self.held
    }

    /// The same, where nothing more is read.
    #[must_use]
    pub fn into_held(self) -> Generation {
        self.held
    }

    /// Where PID 1 is, if that was read.
    #[must_use]
    pub fn known_pid1(&self) -> Option<Pid1> {
        self.pid1
    }

    /// Reads what a comparison with `written` can rest on, strongest first, and no more. The
    /// parts that rest on PID 1 are read only where no unique id is shared.
    pub fn read_for(&mut self, written: Option<&Generation>, encoding: Encoding) {
        if encoding == Encoding::Text {
            self.read_formula();
            return;
        }
        let launched = self.held.launch.is_some();
        let Some(written) = written else {
            if !launched && !self.read_unique(None) {
                self.read_formula();
            }
            return;
        };
        if written.boot_id.is_some() {
            self.boot_id();
        }
        if !launched && !self.read_unique(Some(written)) {
            // Nothing shared. Whether this process has a generation at all still matters.
            self.read_formula();
            if self.held.formula().is_none() {
                self.read_unique(None);
            }
        }
    }

    /// Reads everything there is.
    pub fn read_all(&mut self) {
        self.boot_id();
        for piece in UNIQUE {
            self.unique(piece);
        }
        self.read_formula();
    }

    /// Reads the unique ids that `written` holds, or all, in the order of [`UNIQUE`], until one is held.
    #[inline(never)]
    fn read_unique(&mut self, written: Option<&Generation>) -> bool {
        for piece in UNIQUE {
            let wanted = written.is_none_or(|written| match piece {
                Piece::MountNamespaceId => written.mount_namespace_id.is_some(),
                Piece::RootMount => written.root_mount_id.is_some(),
                _ => written.cgroup_id.is_some(),
            });
            if wanted && self.unique(piece) {
                return true;
            }
        }
        false
    }

    /// Whether `piece` is asked for the first time, so that it must be read.
    fn is_first(&mut self, piece: Piece) -> bool {
        let bit = 1 << piece as u16;
        let first = self.asked & bit == 0;
        self.asked |= bit;
        first
    }

    /// Whether a unique id is held, after it was asked for.
    #[inline(never)]
    fn unique(&mut self, piece: Piece) -> bool {
        let first = self.is_first(piece);
        let dispose = &mut self.dispose;
        let (id, read): (_, fn(&mut Dispose<'_>) -> Option<u64>) = match piece {
            Piece::MountNamespaceId => (&mut self.held.mount_namespace_id, mount_namespace_id),
            Piece::RootMount => (&mut self.held.root_mount_id, root_mount_id),
            _ => (&mut self.held.cgroup_id, cgroup_id),
        };
        if first && visible(piece).is_ok() {
            *id = read(dispose);
        }
        id.is_some()
    }

    /// The gem's pair. The topology is decided before anything is derived from PID 1: where
    /// PID 1 is the pod's or the node's, its start time says nothing about this container.
    #[inline(never)]
    fn read_formula(&mut self) {
        let pid1 = self.pid1();
        if self.is_first(Piece::MountNamespaceInode) {
            match namespace(Piece::MountNamespaceInode, OWN_NAMESPACE) {
                Ok(inode) => self.held.mount_namespace_inode = Some(inode),
                Err(detail) => self.missing = detail,
            }
        }
        if pid1.is_elsewhere() || !self.is_first(Piece::Pid1Start) {
            return;
        }
        let read = pid1_start_time(&mut self.dispose);
        if self.held.mount_namespace_inode.is_some() {
            match read {
                Ok(0) => self.missing = Detail::StartTimeZero,
                Ok(_) => {}
                Err(detail) => self.missing = detail,
            }
        }
        self.held.pid1_start_time = read.ok();
    }

    /// Why the gem's pair could not be read, where it could not.
    #[must_use]
    pub fn missing(&self) -> Detail {
        self.missing
    }

    fn boot_id(&mut self) {
        if self.is_first(Piece::BootId) && visible(Piece::BootId).is_ok() {
            let mut buffer = [0; 64];
            let text =
                read_file(c"/proc/sys/kernel/random/boot_id", &mut buffer, &mut self.dispose);
            self.held.boot_id = text.ok().and_then(parse::boot_id);
        }
    }

    /// Where PID 1 is; the first of three answers.
    #[inline(never)]
    pub fn pid1(&mut self) -> Pid1 {
        let pid1 = match self.pid1 {
            Some(known) => known,
            None => locate_pid1(&mut self.dispose),
        };
        self.pid1 = Some(pid1);
        pid1
    }
}

/// The kernel's ids that never repeat within a boot, in the order of [`Generation::unique_ids`].
const UNIQUE: [Piece; 3] = [Piece::MountNamespaceId, Piece::RootMount, Piece::Cgroup];

/// One inspection, at start: the state, and what is written into records.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The state and its detail.
    pub topology: Topology,
    /// What goes into records; `None` where there is nothing that identifies the container,
    /// or nothing trustworthy.
    pub generation: Option<Generation>,
    /// Everything that was read.
    pub evidence: Generation,
}

/// Reads all evidence once, as a worker does at start.
#[must_use]
pub fn inspect(encoding: Encoding, strict: bool, launch: Option<LaunchToken>) -> Inspection {
    let mut dispose = drop;
    let mut evidence = Evidence::new(launch, &mut dispose);
    evidence.read_all();
    let pid1 = evidence.pid1();
    let topology = classify(pid1, evidence.held(), encoding, strict, evidence.missing());
    let generation = match topology.state {
        State::Unsafe | State::Unavailable | State::NonLinux => None,
        State::Verified | State::VerifiedByUniqueId | State::Unverifiable => {
            Some(evidence.held().clone())
        }
    };
    Inspection { topology, generation, evidence: evidence.held().clone() }
}

/// Inode of this process's time namespace; 0 where the kernel has none (before Linux 5.6).
///
/// Source: `readlink /proc/self/ns/time`, time_namespaces(7).
#[must_use]
pub fn time_namespace() -> u64 {
    namespace_link(c"/proc/self/ns/time", "time").ok().flatten().unwrap_or(0)
}

/// `NS_GET_MNTNS_ID`, since Linux 6.11; `ENOTTY` before. The id is unique within a boot.
///
/// Source: `include/uapi/linux/nsfs.h`, ioctl_nsfs(2).
fn mount_namespace_id(dispose: &mut Dispose<'_>) -> Option<u64> {
    const NS_GET_MNTNS_ID: Opcode = opcode::read::<u64>(0xb7, 5);
    let namespace = open(OWN_NAMESPACE.0, dispose).ok()?;
    // SAFETY: the operation writes one u64, the type given, and nothing else.
    let id = unsafe { ioctl(&namespace, Getter::<NS_GET_MNTNS_ID, u64>::new()) };
    dispose(Some(namespace));
    id.ok().filter(|&id| id != 0)
}

/// `STATX_MNT_ID_UNIQUE` of `/`, since Linux 6.8.
///
/// An older kernel answers without the bit in `stx_mask`, and leaves its reusable id in the
/// very same field: the bit decides. Source: statx(2).
fn root_mount_id(_: &mut Dispose<'_>) -> Option<u64> {
    const STATX_MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    root_statx(STATX_MNT_ID_UNIQUE)
}

#[inline(never)]
fn root_statx(id: StatxFlags) -> Option<u64> {
    let root = statx(CWD, c"/", AtFlags::empty(), id).ok()?;
    // An emulated kernel (QEMU's user mode) passes the bit through and leaves the field zero.
    (root.stx_mask & id.bits() != 0 && root.stx_mnt_id != 0).then_some(root.stx_mnt_id)
}

/// Inode of the container's own cgroup v2 directory, since Linux 5.5, where it is the
/// container's own: `/sys/fs/cgroup` is a cgroup v2 and not its host's root (inode 1), and
/// this process is at the root of its cgroup namespace. Source: cgroups(7),
/// `CGROUP2_SUPER_MAGIC` in `include/uapi/linux/magic.h`.
fn cgroup_id(dispose: &mut Dispose<'_>) -> Option<u64> {
    const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
    let kind = statfs(c"/sys/fs/cgroup").ok()?.f_type;
    if u64::try_from(kind) != Ok(CGROUP2_SUPER_MAGIC) {
        return None;
    }
    let inode = statat(CWD, c"/sys/fs/cgroup", AtFlags::empty()).ok()?.st_ino;
    let mut buffer = [0; 256];
    let own = read_file(c"/proc/self/cgroup", &mut buffer, dispose).ok()?;
    (inode > 1 && parse::at_cgroup_root(own)).then_some(inode)
}

/// The inode of a mount namespace.
#[inline(never)]
fn namespace(piece: Piece, path: ProcPath) -> Result<u64, Detail> {
    match visible(piece).and_then(|()| namespace_link(path.0, "mnt")) {
        Ok(Some(inode)) => Ok(inode),
        Ok(None) => Err(Detail::CannotParse(path.shown())),
        Err(errno) => Err(path.unreadable(errno)),
    }
}

fn pid1_start_time(dispose: &mut Dispose<'_>) -> Result<u64, Detail> {
    let mut buffer = [0; 1024];
    match visible(Piece::Pid1Start).and_then(|()| read_file(PID1_STAT.0, &mut buffer, dispose)) {
        Ok(stat) => parse::stat_start_time(stat).ok_or(Detail::CannotParse(PID1_STAT.shown())),
        Err(errno) => Err(PID1_STAT.unreadable(errno)),
    }
}

/// The first answer wins: both namespace links; the mounts of both; none.
fn locate_pid1(dispose: &mut Dispose<'_>) -> Pid1 {
    let pid1 = namespace(Piece::Pid1Namespace, PID1_NAMESPACE);
    let own = namespace(Piece::MountNamespaceInode, OWN_NAMESPACE);
    let unknown = match (pid1, own) {
        (Ok(pid1), Ok(own)) if pid1 == own => return Pid1::Here,
        (Ok(pid1), Ok(own)) => return Pid1::Elsewhere(Detail::Namespaces { pid1, own }),
        (Err(detail), _) | (_, Err(detail)) => Pid1::Unknown(detail),
    };
    match compare_mounts(dispose) {
        Some(Mounts::Shared) => Pid1::Here,
        Some(Mounts::Disjoint { own }) => match second_witness(own, dispose) {
            Some(witness) => Pid1::Elsewhere(Detail::Mounts(witness)),
            None => unknown,
        },
        None => unknown,
    }
}

enum Mounts {
    /// The mount of our `/` is among PID 1's: one mount namespace.
    Shared,
    /// Both lists hold mounts, and no mount is in both.
    Disjoint {
        /// How many are in ours.
        own: u64,
    },
}

/// Mount ids that are looked for, and what a list of them is read for.
struct Sought {
    /// A part of our own list, however long that is.
    window: heapless::Vec<u64, 256>,
    /// Ids that are in the window, or in it and in PID 1's list.
    common: u64,
    /// Ids of the list that was read last.
    listed: u64,
}

impl Sought {
    /// Puts the ids of `path` that follow the first `skipped` into the window, or counts those that are
    /// in it.
    fn read(&mut self, path: &CStr, skipped: Option<u64>, dispose: &mut Dispose<'_>) -> Option<()> {
        self.listed = 0;
        self.common = 0;
        if skipped.is_some() {
            self.window.clear();
        }
        let file = open(path, dispose).ok()?;
        let mut ids = parse::MountIds::default();
        let mut buffer = [0; 1024];
        let complete = loop {
            match read_some(file.as_fd(), &mut buffer) {
                Ok([]) => break Some(()),
                Ok(piece) => ids.feed(piece, |id| {
                    match skipped {
                        Some(skipped) if self.listed >= skipped => {
                            let _full = self.window.push(id);
                        }
                        Some(_) => {}
                        None => self.common += u64::from(self.window.contains(&id)),
                    }
                    self.listed += 1;
                }),
                Err(_) => break None,
            }
        };
        dispose(Some(file));
        complete
    }
}

/// Mount ids of one machine are unique while the mount lives, and reading them needs no
/// capability. `None` where they show nothing.
fn compare_mounts(dispose: &mut Dispose<'_>) -> Option<Mounts> {
    const PID1_MOUNTS: &CStr = c"/proc/1/mountinfo";
    visible(Piece::Pid1Mounts).ok()?;
    // Not from our own list: a chrooted process does not see its own root in it.
    let root = root_statx(StatxFlags::MNT_ID)?;
    let mut sought = Sought { window: heapless::Vec::new(), common: 0, listed: 0 };
    let _fits = sought.window.push(root);
    sought.read(PID1_MOUNTS, None, dispose)?;
    if sought.common > 0 {
        return Some(Mounts::Shared);
    }
    // An empty list proves nothing: PID 1 may be chrooted into a plain directory.
    if sought.listed == 0 {
        return None;
    }
    let mut own = 0;
    loop {
        sought.read(c"/proc/self/mountinfo", Some(own), dispose)?;
        if sought.window.is_empty() {
            return (own > 0).then_some(Mounts::Disjoint { own });
        }
        own += sought.window.len() as u64;
        sought.read(PID1_MOUNTS, None, dispose)?;
        if sought.common > 0 {
            // Some mount is shared but not ours of `/`: neither proof holds.
            return None;
        }
    }
}

/// Two lists without a common mount show different namespaces only with a second witness: two
/// processes of one namespace, each chrooted into a mount of its own, have such lists too.
#[inline(never)]
fn second_witness(own_mounts: u64, dispose: &mut Dispose<'_>) -> Option<Witness> {
    if namespace_mounts(dispose) == Some(own_mounts) {
        return Some(Witness::WholeNamespace);
    }
    if namespace_link(c"/proc/self/ns/pid", "pid") == Ok(Some(parse::INITIAL_PID_NAMESPACE)) {
        return Some(Witness::InitialPidNamespace);
    }
    let absolute = namespace_link(c"/proc/self/ns/cgroup", "cgroup")
        == Ok(Some(parse::INITIAL_CGROUP_NAMESPACE));
    let (mut own, mut pid1) = ([0; 2048], [0; 2048]);
    let own = read_file(c"/proc/self/cgroup", &mut own, dispose).ok()?;
    let pid1 = read_file(c"/proc/1/cgroup", &mut pid1, dispose).ok()?;
    parse::pid1_cgroup_outside(own, pid1, absolute).then_some(Witness::Cgroup)
}

/// How many mounts this process's whole namespace holds: `NS_MNT_GET_INFO`, since Linux 6.12.
/// Source: `struct mnt_ns_info` in `include/uapi/linux/nsfs.h`.
fn namespace_mounts(dispose: &mut Dispose<'_>) -> Option<u64> {
    #[repr(C)]
    struct MntNsInfo {
        size: u32,
        nr_mounts: u32,
        mnt_ns_id: u64,
    }
    const NS_MNT_GET_INFO: Opcode = opcode::read::<MntNsInfo>(0xb7, 10);
    let namespace = open(OWN_NAMESPACE.0, dispose).ok()?;
    // SAFETY: the operation writes one `struct mnt_ns_info`, laid out as above; its size is
    // part of the operation code, so the kernel writes no more.
    let info = unsafe { ioctl(&namespace, Getter::<NS_MNT_GET_INFO, MntNsInfo>::new()) };
    dispose(Some(namespace));
    info.ok().map(|info| u64::from(info.nr_mounts))
}

#[inline(never)]
fn open(path: &CStr, dispose: &mut Dispose<'_>) -> Result<OwnedFd, Errno> {
    open_in(CWD, path, OFlags::empty(), dispose)
}

/// Opens for reading, and once more where only descriptors that wait to be closed were in the
/// way: evidence and marks must not be lost to a low limit.
#[inline(never)]
pub(crate) fn open_in(
    dir: BorrowedFd<'_>,
    path: &CStr,
    more: OFlags,
    dispose: &mut Dispose<'_>,
) -> Result<OwnedFd, Errno> {
    // NONBLOCK: nothing may wait for the writer of a FIFO that was planted.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | more;
    match openat(dir, path, flags, Mode::empty()) {
        Err(SysErrno::MFILE | SysErrno::NFILE) => {
            dispose(None);
            openat(dir, path, flags, Mode::empty())
        }
        other => other,
    }
    .map_err(errno)
}

/// One read: these files are made by the kernel in one piece.
fn read_file<'b>(
    path: &CStr,
    buffer: &'b mut [u8],
    dispose: &mut Dispose<'_>,
) -> Result<&'b [u8], Errno> {
    let file = open(path, dispose)?;
    let bytes = read_some(file.as_fd(), buffer);
    dispose(Some(file));
    bytes
}

/// read(2), again where a signal came between.
#[inline(never)]
pub(crate) fn read_some<'b>(file: BorrowedFd<'_>, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    loop {
        match read(file, &mut *buffer) {
            Ok(length) => return Ok(buffer.get(..length).unwrap_or_default()),
            Err(SysErrno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
}

/// The inode in the namespace link at `path`; `None` where it is not one of that `kind`.
#[inline(never)]
fn namespace_link(path: &CStr, kind: &str) -> Result<Option<u64>, Errno> {
    let mut buffer = [0; 64];
    let length = readlinkat_raw(CWD, path, &mut buffer[..]).map_err(errno)?;
    Ok(parse::namespace_inode(buffer.get(..length).unwrap_or_default(), kind))
}
