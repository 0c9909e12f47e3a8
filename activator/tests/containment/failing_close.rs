//! A close(2) that fails, as on a network file system that finds out only then that a write did not
//! arrive. No cgroup gives one, so the system call is kept from the kernel; all else is real.
#![allow(unsafe_code, reason = "neither std nor rustix installs a seccomp filter")]

use std::io;

use libc::{sock_filter, sock_fprog};

/// Every close of this thread answers EIO from now on, and closes nothing. Whether this kernel has
/// seccomp filters.
///
/// # References
/// [seccomp(2)](https://man7.org/linux/man-pages/man2/seccomp.2.html)
pub(crate) fn from_now_on() -> io::Result<()> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is_close = sock_filter {
        jf: 1,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_close as u32)
    };
    // The number of the call is the first word of what a filter sees.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_close,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program points to `filter`, which outlives the call, and its length is told; the
    // kernel copies it. Of this thread alone: no flag asks for others.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}
