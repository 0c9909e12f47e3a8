//! Linux error numbers by their names: a verdict says `EACCES`, not `error 13`.

use crate::words::{Sink, Words, display, say_all};

/// A Linux error number as the kernel returned it (positive). The table is that of
/// asm-generic, which every target of tickmark uses for these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Permission denied.
    pub const ACCESS: Errno = Errno(13);
    /// No such file or directory.
    pub const NOT_FOUND: Errno = Errno(2);

    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "EPERM",
            2 => "ENOENT",
            5 => "EIO",
            6 => "ENXIO",
            9 => "EBADF",
            11 => "EAGAIN",
            12 => "ENOMEM",
            13 => "EACCES",
            16 => "EBUSY",
            17 => "EEXIST",
            19 => "ENODEV",
            20 => "ENOTDIR",
            21 => "EISDIR",
            22 => "EINVAL",
            23 => "ENFILE",
            24 => "EMFILE",
            25 => "ENOTTY",
            28 => "ENOSPC",
            30 => "EROFS",
            36 => "ENAMETOOLONG",
            38 => "ENOSYS",
            40 => "ELOOP",
            116 => "ESTALE",
            122 => "EDQUOT",
            _ => return None,
        })
    }
}

impl Words for Errno {
    fn say(&self, sink: &mut dyn Sink) {
        match self.name() {
            Some(name) => name.say(sink),
            None => say_all(&[&"errno ", &self.0.unsigned_abs()], sink),
        }
    }
}

display!(Errno);
