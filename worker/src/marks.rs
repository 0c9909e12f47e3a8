//! The marks directory: reading its files and publishing them. What a file says is
//! `tickmark_protocol`'s; when it is written is the monitor's.

use core::ffi::CStr;
use core::fmt;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno as SysErrno, pread, pwrite, write};
use tickmark_protocol::{
    Attempt, DecodeError, Decoded, Encoding, Errno, Expected, Fault, Generation, MAX_FILE_LEN,
    Mark, MarkFile, Phase, Read, ReadFile, Record, Slot, SlotCount, TopologyReport, TopologyUnsafe,
    encode_expected, encode_generation, encode_mark, encode_unsafe,
};

use crate::clock;
use crate::procfs::{Dispose, errno, open_in, read_some, time_namespace};

/// A damaged file is read again so often: a write in place can be seen half done.
const REREADS: usize = 2;

/// The files of a marks directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileName {
    /// How many slots the probe waits for.
    Expected,
    /// The container generation.
    Generation,
    /// `worker-<slot>`.
    Mark(Slot),
    /// `attempt-<slot>`.
    Attempt(Slot),
    /// The terminal verdict.
    TopologyUnsafe,
    /// The topology message that was logged last.
    TopologyReport,
    /// `.lock-<slot>`: held by the process that has the slot; always empty.
    Lock(Slot),
    /// `.lock-serve`: held by the process that serves the verdict; always empty.
    #[cfg(feature = "serve")]
    ServeLock,
    /// `.new-<slot>`: a file of that slot that is not published yet.
    Unpublished(Slot),
}

/// A file name with its NUL.
struct NameBytes([u8; 24]);

impl FileName {
    fn parts(self) -> (&'static str, Option<Slot>) {
        match self {
            FileName::Expected => ("expected", None),
            FileName::Generation => ("generation", None),
            FileName::Mark(slot) => ("worker-", Some(slot)),
            FileName::Attempt(slot) => ("attempt-", Some(slot)),
            FileName::TopologyUnsafe => ("topology-unsafe", None),
            FileName::TopologyReport => ("topology-report", None),
            FileName::Lock(slot) => (".lock-", Some(slot)),
            #[cfg(feature = "serve")]
            FileName::ServeLock => (".lock-serve", None),
            FileName::Unpublished(slot) => (".new-", Some(slot)),
        }
    }

    fn bytes(self) -> NameBytes {
        let (stem, slot) = self.parts();
        let mut bytes = [0; 24];
        let mut length = 0;
        for (place, &byte) in bytes.iter_mut().zip(stem.as_bytes()) {
            *place = byte;
            length += 1;
        }
        if let Some(slot) = slot {
            // A slot has at most four digits.
            let mut power = 1000;
            while power > 0 {
                if slot.get() >= power || power == 1 {
                    bytes[length] = b'0' + (slot.get() / power % 10) as u8;
                    length += 1;
                }
                power /= 10;
            }
        }
        NameBytes(bytes)
    }
}

impl NameBytes {
    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stem, slot) = self.parts();
        f.write_str(stem)?;
        slot.map_or(Ok(()), |slot| slot.fmt(f))
    }
}

/// A marks directory that is open for reading.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
}

/// A record that is not read in place.
struct Reading<R>(Option<Decoded<R>>);

impl<R: Record> ReadFile for Reading<R> {
    fn decode_into(&mut self, bytes: &[u8]) -> Result<Encoding, DecodeError> {
        Ok(self.0.insert(R::decode(bytes)?).encoding)
    }
}

impl Directory {
    /// # Errors
    /// What openat(2) gives; `ENOTDIR` for anything but a directory.
    pub fn open(path: &CStr) -> Result<Directory, Errno> {
        open_directory(path).map(|fd| Directory { fd }).map_err(errno)
    }

    /// Gives the descriptor away, to be closed with others.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Whether a file exists, readable or not.
    #[must_use]
    pub fn exists(&self, name: FileName) -> bool {
        statat(&self.fd, name.bytes().as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Reads a record, again where it is damaged.
    pub fn read<R: Record>(&self, name: FileName, mut dispose: Dispose<'_>) -> Read<Decoded<R>> {
        let mut reading = Reading(None);
        match self.read_into(name, &mut reading, &mut dispose) {
            Ok(_) => reading.0.map_or(Read::Absent, Read::Found),
            Err(fault) => Read::failed(fault),
        }
    }

    /// Reads a file into `record`, again where it is damaged, and gives its encoding and its mtime in
    /// nanoseconds since 1970. Once for all kinds of records: a copy of this loop for each is what the
    /// probe has no room for.
    pub(crate) fn read_into(
        &self,
        name: FileName,
        record: &mut dyn ReadFile,
        dispose: &mut Dispose<'_>,
    ) -> Result<(Encoding, i64), Fault> {
        let mut buffer = [0; MAX_FILE_LEN];
        let mut rereads = 0;
        loop {
            let (bytes, mtime_ns) = self.read_bytes(name, &mut buffer, dispose)?;
            match record.decode_into(bytes) {
                Ok(encoding) => return Ok((encoding, mtime_ns)),
                Err(DecodeError::Damaged(_)) if rereads < REREADS => rereads += 1,
                Err(error) => return Err(Fault::Decode(error)),
            }
        }
    }

    fn read_bytes<'b>(
        &self,
        name: FileName,
        buffer: &'b mut [u8; MAX_FILE_LEN],
        dispose: &mut Dispose<'_>,
    ) -> Result<(&'b [u8], i64), Fault> {
        let name = name.bytes();
        let file = open_in(self.fd.as_fd(), name.as_c_str(), OFlags::NOFOLLOW, dispose)
            .map_err(Fault::Errno)?;
        let read = read_regular(file.as_fd(), buffer);
        dispose(Some(file));
        read
    }
}

fn read_regular<'b>(
    file: BorrowedFd<'_>,
    buffer: &'b mut [u8; MAX_FILE_LEN],
) -> Result<(&'b [u8], i64), Fault> {
    let stat = fstat(file).map_err(|error| Fault::Errno(errno(error)))?;
    if !is_regular(&stat) {
        return Err(Fault::NotRegular);
    }
    let bytes = read_some(file, buffer).map_err(Fault::Errno)?;
    Ok((bytes, mtime_ns(&stat)))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_possible_wrap,
    reason = "field types differ by architecture"
)]
fn mtime_ns(stat: &Stat) -> i64 {
    // 1970 to 2255: what lies outside is too far from now either way, and would not fit.
    (stat.st_mtime as i64).clamp(0, 9_000_000_000) * 1_000_000_000 + stat.st_mtime_nsec as i64
}

fn open_directory(path: &CStr) -> Result<OwnedFd, SysErrno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// A first mark of this process, at this moment and on its clocks: running, with neither consumers
/// nor jobs, and the default tick. What is otherwise goes over it:
/// `Mark { consumers_expected: 2, ..mark_now(slot, generation) }`.
#[must_use]
pub fn mark_now(slot: Slot, generation: Option<Generation>) -> Mark {
    Mark {
        slot: slot.get(),
        pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
        sequence: 1,
        wall_ms: clock::realtime_ms(),
        monotonic_ns: clock::monotonic_ns(),
        tick_ms: 10_000,
        phase: Phase::Running,
        consumers_subscribed: 0,
        consumers_expected: 0,
        jobs_in_flight: 0,
        oldest_job_ms: 0,
        time_namespace: time_namespace(),
        generation,
        consumer_states: Default::default(),
    }
}

/// Why something could not be published. Names the file and the operation; the directory is
/// the caller's to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// Another process holds the slot.
    SlotTaken(Slot),
    /// An operation on a file failed.
    File {
        /// What was being done, such as `create`.
        operation: &'static str,
        /// To which file.
        file: FileName,
        /// Why it failed.
        errno: Errno,
    },
    /// The directory could not be made or opened.
    Directory(Errno),
    /// The file system is full and there is no file yet that could be written over.
    NoRoom(FileName),
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::SlotTaken(slot) => write!(
                f,
                "slot {slot} is held by another process: give each process a TICKMARK_SLOT of its own"
            ),
            PublishError::File { operation, file, errno } => {
                write!(f, "cannot {operation} {file} ({errno})")
            }
            PublishError::Directory(errno) => {
                write!(f, "cannot open or make the marks directory ({errno})")
            }
            PublishError::NoRoom(file) => write!(
                f,
                "the marks file system is full and there is no {file} to write over: raise its sizeLimit or free space"
            ),
        }
    }
}

impl core::error::Error for PublishError {}

/// A slot's right to publish, held from tick to tick.
#[derive(Debug)]
pub struct Publisher<P> {
    dir: P,
    slot: Slot,
    encoding: Encoding,
    lock: Option<Lock>,
}

#[derive(Debug)]
struct Lock {
    /// Holds the lock while it is open.
    _file: OwnedFd,
    device: u64,
    inode: u64,
}

/// The marks directory as it is in this tick, with the slot's lock held.
#[derive(Debug)]
pub struct Session {
    directory: Directory,
    slot: Slot,
    encoding: Encoding,
}

/// Whose turn it is to report the topology.
#[cfg(feature = "std")]
#[derive(Debug)]
pub(crate) enum ReportTurn {
    /// This process's, while the descriptor is open.
    Mine(Option<OwnedFd>),
    /// Another process is at it.
    Anothers,
}

impl<P: AsRef<CStr>> Publisher<P> {
    /// Touches nothing yet. `P` is a `CString`, or a `&CStr` where there is no allocator.
    pub fn new(dir: P, slot: Slot, encoding: Encoding) -> Publisher<P> {
        Publisher { dir, slot, encoding, lock: None }
    }

    /// The marks directory.
    pub fn dir(&self) -> &CStr {
        self.dir.as_ref()
    }

    /// Once a tick: opens the directory, or makes it; takes the slot's lock, or sees that it
    /// is still the one in this directory; removes what a killed process of this slot left
    /// unpublished.
    ///
    /// The lock is flock(2)'s: it belongs to the open file, so that it ends with the process
    /// and not with any close of the file.
    ///
    /// # Errors
    /// [`PublishError::SlotTaken`] while another process has the slot; the others as they are
    /// named.
    pub fn begin(&mut self) -> Result<Session, PublishError> {
        let dir = self.dir.as_ref();
        let fd = open_or_make_directory(dir)?;
        let file = FileName::Lock(self.slot);
        if !self.lock.as_ref().is_some_and(|lock| lock.is_in(&fd, file)) {
            // Another directory has taken the place of the one that was locked.
            self.lock = None;
            self.lock = Some(take_lock(&fd, file)?.ok_or(PublishError::SlotTaken(self.slot))?);
            remove(fd.as_fd(), FileName::Unpublished(self.slot))?;
        }
        Ok(Session { directory: Directory { fd }, slot: self.slot, encoding: self.encoding })
    }
}

/// The right to serve the verdict over a marks directory: one process has it at a time, and it
/// ends with that process.
#[cfg(feature = "serve")]
#[derive(Debug)]
pub(crate) struct ServeLock(Lock);

#[cfg(feature = "serve")]
impl ServeLock {
    /// Sees that `held` is this directory's lock: one that is stays, else it becomes a new one, or none
    /// where another process has it.
    ///
    /// # Errors
    /// Where the directory or the lock cannot be opened or made; then `held` is as it was, since a
    /// process that lets go of the lock and serves on looks like a stranger to its siblings.
    pub(crate) fn take(dir: &CStr, held: &mut Option<ServeLock>) -> Result<(), PublishError> {
        let fd = open_or_make_directory(dir)?;
        let is_ours = |held: &ServeLock| held.0.is_in(&fd, FileName::ServeLock);
        if !held.as_ref().is_some_and(is_ours) {
            *held = take_lock(&fd, FileName::ServeLock)?.map(ServeLock);
        }
        Ok(())
    }
}

fn open_or_make_directory(dir: &CStr) -> Result<OwnedFd, PublishError> {
    match open_directory(dir) {
        Err(SysErrno::NOENT) => make_directories(dir).and_then(|()| open_directory(dir)),
        other => other,
    }
    .map_err(|error| PublishError::Directory(errno(error)))
}

impl Lock {
    fn is_in(&self, dir: &OwnedFd, file: FileName) -> bool {
        let name = file.bytes();
        statat(dir, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| stat.st_dev == self.device && stat.st_ino == self.inode)
    }
}

/// `None` where another process holds it.
fn take_lock(dir: &OwnedFd, file: FileName) -> Result<Option<Lock>, PublishError> {
    let failed = |operation| {
        move |error| match error {
            SysErrno::NOSPC | SysErrno::DQUOT => PublishError::NoRoom(file),
            error => PublishError::File { operation, file, errno: errno(error) },
        }
    };
    loop {
        let name = file.bytes();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Without CREATE first: in a sticky directory the kernel refuses it for a file of
        // another user, which a lock may be (fs.protected_regular).
        let fd = match openat(dir, name.as_c_str(), flags, Mode::empty()) {
            Err(SysErrno::NOENT) => {
                openat(dir, name.as_c_str(), flags | OFlags::CREATE, Mode::from_raw_mode(0o644))
            }
            other => other,
        }
        .map_err(failed("open"))?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(SysErrno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failed("lock")(error)),
        }
        let stat = fstat(&fd).map_err(failed("stat"))?;
        let lock = Lock { _file: fd, device: stat.st_dev, inode: stat.st_ino };
        // Someone may have removed the file between the open and the lock.
        if lock.is_in(dir, file) {
            return Ok(Some(lock));
        }
    }
}

/// Makes `path` and what is missing above it, each readable by the probe whatever its user.
fn make_directories(path: &CStr) -> Result<(), SysErrno> {
    let bytes = path.to_bytes();
    let mut buffer = [0; 4096];
    if bytes.len() >= buffer.len() {
        return Err(SysErrno::NAMETOOLONG);
    }
    for end in 1..=bytes.len() {
        if end < bytes.len() && bytes[end] != b'/' {
            continue;
        }
        buffer[..end].copy_from_slice(&bytes[..end]);
        buffer[end] = 0;
        let level = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
        match mkdirat(CWD, level, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                // The umask must not hide the marks from a probe of another user.
                let fd = openat(
                    CWD,
                    level,
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                fchmod(&fd, Mode::from_raw_mode(0o755))?;
            }
            Err(SysErrno::EXIST) => {}
            // A level above that exists may be on a read-only file system.
            Err(SysErrno::ROFS | SysErrno::ACCESS) if end < bytes.len() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What may be written over when the file system is full.
#[derive(Clone, Copy)]
enum Overwrite<'a> {
    /// The checksum shows a torn read.
    Checked,
    /// Text has no checksum: only over text that `same` accepts.
    Text(&'a dyn Fn(&[u8]) -> bool),
}

impl Session {
    /// The directory, for reading.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Publishes `expected`.
    ///
    /// # Errors
    /// As every publication: [`PublishError::NoRoom`] or [`PublishError::File`].
    pub fn expected(&self, count: SlotCount) -> Result<(), PublishError> {
        let record = Expected { processes: count.get() };
        match self.encoding {
            Encoding::Binary => {
                self.publish(FileName::Expected, &record.encode(), Overwrite::Checked)
            }
            Encoding::Text => self.publish(
                FileName::Expected,
                encode_expected(&record).as_bytes(),
                Overwrite::Text(&|_| true),
            ),
        }
    }

    /// Publishes `generation`. As text, one that has no text form is not written: a Ruby
    /// probe would take it for another container's.
    ///
    /// # Errors
    /// As [`Session::expected`].
    pub fn generation(&self, generation: &Generation) -> Result<(), PublishError> {
        match self.encoding {
            Encoding::Binary => {
                self.publish(FileName::Generation, &generation.encode(), Overwrite::Checked)
            }
            Encoding::Text => match encode_generation(generation) {
                None => Ok(()),
                Some(text) => self.publish(
                    FileName::Generation,
                    text.as_bytes(),
                    Overwrite::Text(&|old| old == text.as_bytes()),
                ),
            },
        }
    }

    /// Publishes this slot's mark.
    ///
    /// # Errors
    /// As [`Session::expected`].
    pub fn mark(&self, mark: &Mark) -> Result<(), PublishError> {
        let file = FileName::Mark(self.slot);
        match self.encoding {
            Encoding::Binary => self.publish(file, &MarkFile::encode(mark), Overwrite::Checked),
            Encoding::Text => {
                let text = encode_mark(mark);
                let generation = mark.generation.as_ref().and_then(Generation::formula);
                let same = |old: &[u8]| {
                    MarkFile::decode(self.slot, old).is_ok_and(|old| {
                        old.generation().and_then(Generation::formula) == generation
                    })
                };
                self.publish(file, text.as_bytes(), Overwrite::Text(&same))
            }
        }
    }

    /// Publishes the terminal `topology-unsafe`.
    ///
    /// # Errors
    /// As [`Session::expected`].
    pub fn topology_unsafe(&self, record: &TopologyUnsafe) -> Result<(), PublishError> {
        match self.encoding {
            Encoding::Binary => {
                self.publish(FileName::TopologyUnsafe, &record.encode(), Overwrite::Checked)
            }
            Encoding::Text => self.publish(
                FileName::TopologyUnsafe,
                encode_unsafe(record).as_bytes(),
                Overwrite::Text(&|_| true),
            ),
        }
    }

    /// Whether some process has proven an unsafe topology.
    #[must_use]
    pub fn topology_unsafe_exists(&self) -> bool {
        self.directory.exists(FileName::TopologyUnsafe)
    }

    /// The turn to say something about the topology. By flock(2) on the directory itself, which
    /// needs no file; it ends with the value, or with the process.
    #[cfg(feature = "std")]
    pub(crate) fn turn_to_report(&self) -> ReportTurn {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let locked = openat(&self.directory.fd, c".", flags, Mode::empty()).and_then(|fd| {
            flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
            Ok(fd)
        });
        match locked {
            Ok(fd) => ReportTurn::Mine(Some(fd)),
            Err(SysErrno::WOULDBLOCK) => ReportTurn::Anothers,
            // A file system without such locks, or a directory that may not be read: two processes
            // that say the same are better than none.
            Err(_) => ReportTurn::Mine(None),
        }
    }

    /// This slot's starts since it was last healthy.
    #[must_use]
    pub fn attempt(&self) -> Read<Attempt> {
        record(self.directory.read(FileName::Attempt(self.slot), &mut drop))
    }

    /// # Errors
    /// As [`Session::expected`].
    pub fn write_attempt(&self, attempt: &Attempt) -> Result<(), PublishError> {
        self.publish(FileName::Attempt(self.slot), &attempt.encode(), Overwrite::Checked)
    }

    /// # Errors
    /// [`PublishError::File`]; a file that is not there is no error.
    pub fn remove_attempt(&self) -> Result<(), PublishError> {
        remove(self.directory.fd.as_fd(), FileName::Attempt(self.slot))
    }

    /// The topology message that was logged last.
    #[must_use]
    pub fn report(&self) -> Read<TopologyReport> {
        record(self.directory.read(FileName::TopologyReport, &mut drop))
    }

    /// # Errors
    /// As [`Session::expected`].
    pub fn write_report(&self, report: &TopologyReport) -> Result<(), PublishError> {
        self.publish(FileName::TopologyReport, &report.encode(), Overwrite::Checked)
    }

    /// # Errors
    /// As [`Session::remove_attempt`].
    pub fn remove_report(&self) -> Result<(), PublishError> {
        remove(self.directory.fd.as_fd(), FileName::TopologyReport)
    }

    /// A new file under another name, then a rename: a reader sees the old one or the new.
    fn publish(
        &self,
        file: FileName,
        bytes: &[u8],
        overwrite: Overwrite<'_>,
    ) -> Result<(), PublishError> {
        let dir = self.directory.fd.as_fd();
        let unpublished = FileName::Unpublished(self.slot).bytes();
        let unpublished = unpublished.as_c_str();
        match write_new(dir, unpublished, bytes) {
            Ok(()) => {}
            Err((_, SysErrno::NOSPC | SysErrno::DQUOT)) => {
                let _may_be_absent = unlinkat(dir, unpublished, AtFlags::empty());
                return write_over(dir, file, bytes, overwrite);
            }
            Err((operation, error)) => {
                let _may_be_absent = unlinkat(dir, unpublished, AtFlags::empty());
                let file = FileName::Unpublished(self.slot);
                return Err(PublishError::File { operation, file, errno: errno(error) });
            }
        }
        renameat(dir, unpublished, dir, file.bytes().as_c_str()).map_err(|error| {
            let _not_published = unlinkat(dir, unpublished, AtFlags::empty());
            PublishError::File { operation: "replace", file, errno: errno(error) }
        })
    }
}

fn record<R>(read: Read<Decoded<R>>) -> Read<R> {
    match read {
        Read::Absent => Read::Absent,
        Read::Failed(fault) => Read::Failed(fault),
        Read::Found(found) => Read::Found(found.record),
    }
}

fn remove(dir: BorrowedFd<'_>, file: FileName) -> Result<(), PublishError> {
    match unlinkat(dir, file.bytes().as_c_str(), AtFlags::empty()) {
        Ok(()) | Err(SysErrno::NOENT) => Ok(()),
        Err(error) => Err(PublishError::File { operation: "remove", file, errno: errno(error) }),
    }
}

fn write_new(
    dir: BorrowedFd<'_>,
    name: &CStr,
    bytes: &[u8],
) -> Result<(), (&'static str, SysErrno)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let fd = match openat(dir, name, flags, mode) {
        // Left by a failed removal of ours, or planted: never written through.
        Err(SysErrno::EXIST) => {
            unlinkat(dir, name, AtFlags::empty()).map_err(|error| ("remove", error))?;
            openat(dir, name, flags, mode)
        }
        other => other,
    }
    .map_err(|error| ("create", error))?;
    fchmod(&fd, mode).map_err(|error| ("change the mode of", error))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match write(&fd, rest) {
            Ok(0) => return Err(("write", SysErrno::NOSPC)),
            Ok(written) => rest = &rest[written..],
            Err(SysErrno::INTR) => {}
            Err(error) => return Err(("write", error)),
        }
    }
    Ok(())
}

/// On a full file system: one write over a file that is surely ours, of the same length, so
/// that it needs no new page.
fn write_over(
    dir: BorrowedFd<'_>,
    file: FileName,
    bytes: &[u8],
    overwrite: Overwrite<'_>,
) -> Result<(), PublishError> {
    let no_room = |_| PublishError::NoRoom(file);
    let access = match overwrite {
        Overwrite::Checked => OFlags::WRONLY,
        Overwrite::Text(_) => OFlags::RDWR,
    };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(dir, file.bytes().as_c_str(), flags, Mode::empty()).map_err(no_room)?;
    let stat = fstat(&fd).map_err(no_room)?;
    let ours = is_regular(&stat)
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
        && u64::try_from(stat.st_size) == Ok(bytes.len() as u64);
    if !ours {
        return Err(PublishError::NoRoom(file));
    }
    if let Overwrite::Text(same) = overwrite {
        let mut old = [0; 512];
        let length = pread(&fd, &mut old[..], 0).map_err(no_room)?;
        if !same(&old[..length]) {
            return Err(PublishError::NoRoom(file));
        }
    }
    match pwrite(&fd, bytes, 0) {
        Ok(written) if written == bytes.len() => Ok(()),
        Ok(_) => Err(PublishError::NoRoom(file)),
        Err(error) => {
            Err(PublishError::File { operation: "write over", file, errno: errno(error) })
        }
    }
}
