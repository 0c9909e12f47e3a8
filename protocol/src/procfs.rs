//! Parsers for the procfs files that evidence comes from: byte slices in, numbers out. What
//! reads the files, and in which order, is in the `tickmark` crate.

use core::str;

use crate::text::decimal;

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in the kernel's
/// `include/linux/proc_ns.h`): a process that sees it shares the node's PID 1.
pub const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Inode of the initial cgroup namespace (`PROC_CGROUP_INIT_INO`): paths in
/// `/proc/<pid>/cgroup` are then absolute.
pub const INITIAL_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;

/// Field 22 of `/proc/<pid>/stat`: start time in clock ticks after boot. Zero is valid data.
///
/// The command in parentheses may hold spaces, line ends and parentheses of its own, so the
/// fields are counted from the last `") "` (proc(5)).
#[must_use]
pub fn stat_start_time(stat: &[u8]) -> Option<u64> {
    let mut fields: &[u8] = &[];
    let mut rest = stat;
    while let [_, after @ ..] = rest {
        if let [b')', b' ', fields_after @ ..] = rest {
            fields = fields_after;
        }
        rest = after;
    }
    // Field 3 is the first of the rest; one space lies between two.
    for _ in 3..22 {
        fields = until_byte(fields, b' ').1;
    }
    decimal(until_byte(fields, b' ').0)
}

/// The inode in a namespace link such as `mnt:[4026532616]`; `kind` is the part before the
/// colon (namespaces(7)).
#[must_use]
pub fn namespace_inode(link: &[u8], kind: &str) -> Option<u64> {
    decimal(link.strip_prefix(kind.as_bytes())?.strip_prefix(b":[")?.strip_suffix(b"]")?)
}

/// `/proc/sys/kernel/random/boot_id`, a UUID in text, as 16 bytes.
#[must_use]
pub fn boot_id(text: &[u8]) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let mut digits = 0;
    for &byte in text.trim_ascii() {
        if byte == b'-' {
            continue;
        }
        let place = id.get_mut(digits / 2)?;
        *place = *place << 4 | char::from(byte).to_digit(16)? as u8;
        digits += 1;
    }
    (digits == 32).then_some(id)
}

/// Whether `/proc/self/cgroup` is exactly that of a process at the root of its own cgroup
/// namespace on a unified hierarchy. Only then is the inode of `/sys/fs/cgroup` the
/// container's own.
#[must_use]
pub fn at_cgroup_root(cgroup: &[u8]) -> bool {
    cgroup.strip_suffix(b"\n").unwrap_or(cgroup) == b"0::/"
}

/// Whether PID 1's cgroup shows that it is outside the container whose process reads
/// `own` and `pid1` (both `/proc/<pid>/cgroup`).
///
/// Seen from a cgroup namespace, a path outside it begins with `/..`. Without one (`absolute`)
/// the paths must be strangers in some hierarchy: neither the same, nor one above the other.
/// Equal paths show nothing.
#[must_use]
pub fn pid1_cgroup_outside(own: &[u8], pid1: &[u8], absolute: bool) -> bool {
    let mut rest = pid1;
    while let Some((id, path)) = next_cgroup(&mut rest) {
        if path == b"/.." || path.starts_with(b"/../") {
            return true;
        }
        let mut mine = if absolute { own } else { &[] };
        while let Some((my_id, my_path)) = next_cgroup(&mut mine) {
            if id == my_id && !is_under(my_path, path) && !is_under(path, my_path) {
                return true;
            }
        }
    }
    false
}

/// The hierarchy and the path of the next line that has both.
#[inline(never)]
fn next_cgroup<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    while !rest.is_empty() {
        let (line, after) = until_byte(rest, b'\n');
        *rest = after;
        let (id, controllers) = until_byte(line, b':');
        let (names, path) = until_byte(controllers, b':');
        // Without both colons one of the pieces goes on to the end of the line.
        if id.len() + names.len() + 2 + path.len() == line.len() {
            return Some((id, path));
        }
    }
    None
}

/// What stands before the first `end`, and what follows it; all and nothing where there is no `end`.
#[inline(never)]
#[must_use]
pub fn until_byte(bytes: &[u8], end: u8) -> (&[u8], &[u8]) {
    let mut rest = bytes;
    let mut length = 0;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte == end {
            break;
        }
        length += 1;
    }
    (bytes.get(..length).unwrap_or_default(), rest)
}

fn is_under(path: &[u8], above: &[u8]) -> bool {
    let above = above.strip_suffix(b"/").unwrap_or(above);
    path.strip_prefix(above).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
}

/// The mount ids (field 1) of a `mountinfo` that is read piece by piece: the file may be
/// longer than any buffer, and a line may lie across two pieces. Parent ids (field 2) are not
/// mounts that are listed, so they are not given.
#[derive(Debug, Default)]
pub struct MountIds {
    state: Line,
}

#[derive(Debug, Default, Clone, Copy)]
enum Line {
    #[default]
    Start,
    Id(u64),
    Rest,
}

impl MountIds {
    /// Takes the next piece of the file; calls `found` for each id that is complete. A line
    /// that does not start with a number and a space gives none.
    pub fn feed(&mut self, piece: &[u8], mut found: impl FnMut(u64)) {
        for &byte in piece {
            self.state = match (self.state, byte) {
                (_, b'\n') => Line::Start,
                (Line::Start, b'0'..=b'9') => Line::Id(u64::from(byte - b'0')),
                (Line::Id(id), b'0'..=b'9') => {
                    match id.checked_mul(10).and_then(|id| id.checked_add(u64::from(byte - b'0'))) {
                        Some(id) => Line::Id(id),
                        None => Line::Rest,
                    }
                }
                (Line::Id(id), b' ') => {
                    found(id);
                    Line::Rest
                }
                _ => Line::Rest,
            };
        }
    }
}

/// One line of `mountinfo` (proc(5)), for a reader that looks for a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountInfo<'a> {
    /// Field 1.
    pub id: u64,
    /// Field 5, as the kernel escapes it: compare with [`unescape`].
    pub mount_point: &'a [u8],
    /// The file system type, the first field after the ` - ` that ends the optional fields.
    pub fs_type: &'a str,
}

impl<'a> MountInfo<'a> {
    /// `None` for a line that lacks a field. Any number of optional fields is skipped.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<MountInfo<'a>> {
        let mut fields = line.split(|&b| b == b' ');
        let id = decimal(fields.next()?)?;
        let mount_point = fields.nth(3)?;
        fields.next()?; // mount options
        let _optional = fields.by_ref().find(|&field| field == b"-")?;
        let fs_type = str::from_utf8(fields.next()?).ok().filter(|name| !name.is_empty())?;
        Some(MountInfo { id, mount_point, fs_type })
    }
}

/// The bytes of a path in which the kernel wrote space, tab, line end and backslash as three
/// octal digits. An escape that is not complete is given as it stands.
pub fn unescape(field: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut rest = field;
    core::iter::from_fn(move || {
        let (&first, tail) = rest.split_first()?;
        if first == b'\\'
            && let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = tail
        {
            rest = after;
            return Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
        }
        rest = tail;
        Some(first)
    })
}
