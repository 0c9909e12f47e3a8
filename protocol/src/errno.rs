//! Linux error numbers by their names: a verdict says `EACCES`, not `error 13`.

use crate::words::{Sink, Words, display, say_with};

/// A Linux error number as the kernel returned it (positive). The table is that of
/// asm-generic, which every target of tickmark uses for these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Permission denied.
    pub const ACCESS: Errno = Errno(13);
    /// No such file or directory.
    pub const NOT_FOUND: Errno = Errno(2);

    fn name(self) -> Option<&'static [u8]> {
        let mut rest = NAMES;
        while let [number, after @ ..] = rest {
            let mut length = 0;
            while let Some(b'A'..=b'Z') = after.get(length) {
                length += 1;
            }
            let (name, following) = after.split_at_checked(length)?;
            if i32::from(*number) == self.0 {
                return Some(name);
            }
            rest = following;
        }
        None
    }
}

/// Each number as a byte, none of which is a capital, and its name: a table of strings is three times
/// the size.
const NAMES: &[u8] = b"\x01EPERM\x02ENOENT\x05EIO\x06ENXIO\x09EBADF\x0bEAGAIN\x0cENOMEM\x0dEACCES\
    \x10EBUSY\x11EEXIST\x13ENODEV\x14ENOTDIR\x15EISDIR\x16EINVAL\x17ENFILE\x18EMFILE\x19ENOTTY\
    \x1cENOSPC\x1eEROFS\x24ENAMETOOLONG\x26ENOSYS\x28ELOOP\x74ESTALE\x7aEDQUOT";

impl Words for Errno {
    fn say(&self, sink: &mut dyn Sink) {
        match self.name() {
            Some(name) => sink.put(name),
            None => say_with("errno %", &[&u64::from(self.0.unsigned_abs())], sink),
        }
    }
}

display!(Errno);
