//! What a process does to itself just before an exec, and the exec: the calls that neither std nor
//! rustix has.
#![allow(unsafe_code, reason = "close_range, signal and execve are unsafe or missing elsewhere")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;
use std::ptr;

/// Marks every descriptor from `first` on close-on-exec, so that what a careless library or the
/// activator's own parent left open goes no further.
///
/// # References
/// [close_range(2)](https://man7.org/linux/man-pages/man2/close_range.2.html):
/// `CLOSE_RANGE_CLOEXEC`, Linux 5.11; before, each of `/proc/self/fd`.
pub(super) fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range takes three integers and, with CLOEXEC, closes nothing.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if done == 0 { Ok(()) } else { each_close_on_exec_from(first) }
}

fn each_close_on_exec_from(first: RawFd) -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number: RawFd = name.to_str().and_then(|name| name.parse().ok()).unwrap_or(-1);
        if number < first {
            continue;
        }
        // SAFETY: fcntl with F_SETFD takes integers; a number that is not open is EBADF. One that
        // is open only gains a flag.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            let error = io::Error::last_os_error();
            // The descriptor of the listing itself is in the list.
            if error.raw_os_error() != Some(libc::EBADF) {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Gives every signal its default disposition and blocks none: an exec keeps what is ignored and
/// what is blocked.
///
/// # References
/// [signal(7)](https://man7.org/linux/man-pages/man7/signal.7.html)
pub(super) fn reset_signals() -> io::Result<()> {
    /// Signals are numbered from 1 to the bits of the kernel's set.
    const LAST: libc::c_int = 64;
    /// Handler, flags, restorer and mask of the kernel's `struct sigaction`, all zero: SIG_DFL.
    static DEFAULT: [usize; 4] = [0; 4];
    for signal in 1..=LAST {
        // Not the C library's `signal`: it refuses the two that it keeps for itself, and those
        // are inherited too.
        // SAFETY: DEFAULT is as long as the structure where it is longest, and SIG_DFL installs
        // no code of ours. KILL and STOP answer EINVAL, and have their default always.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const DEFAULT,
                ptr::null_mut::<usize>(),
                size_of::<u64>(),
            );
        }
    }
    // SAFETY: an all-zero sigset_t is storage for sigemptyset, which initialises it.
    let done = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The arrays of an exec, made beforehand: nothing is allocated between the go and the exec.
pub(super) struct Image {
    program: CString,
    /// Own what the pointers point to.
    _strings: [Vec<CString>; 2],
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
}

impl Image {
    /// `arguments` with the zeroth.
    pub(super) fn new(
        program: CString,
        arguments: Vec<CString>,
        environment: Vec<CString>,
    ) -> Image {
        fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
            strings.iter().map(|text| CStr::as_ptr(text)).chain([ptr::null()]).collect()
        }
        Image {
            program,
            arguments: pointers(&arguments),
            environment: pointers(&environment),
            _strings: [arguments, environment],
        }
    }

    /// Becomes the program, or gives the errno. Not `execvp`, which std uses: that one searches
    /// PATH and hands a file of no known format to `/bin/sh`.
    ///
    /// # References
    /// [execve(2)](https://man7.org/linux/man-pages/man2/execve.2.html)
    pub(super) fn exec(&self) -> i32 {
        // SAFETY: the path is a C string; both arrays end with a null pointer and point to C
        // strings that `self` owns.
        unsafe {
            libc::execve(self.program.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr());
        }
        io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    }
}
