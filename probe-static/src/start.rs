//! What the operating system gives a program and takes from it: argv and envp, the signal mask, the
//! timer, the exit status. Nothing here decides anything.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong};
use core::panic::PanicInfo;

use rustix::io::Errno;
use tickmark_probe::Started;

const SIGPIPE: c_int = 13;
const SIGALRM: c_int = 14;
const SIG_SETMASK: c_int = 2;
const SIG_DFL: usize = 0;

/// musl's `sigset_t`: 1024 bits, of which the kernel reads the first 64.
#[repr(C)]
struct SignalSet([c_ulong; 128 / size_of::<c_long>()]);

unsafe extern "C" {
    safe fn _exit(status: c_int) -> !;
    safe fn alarm(seconds: c_uint) -> c_uint;
    fn signal(number: c_int, handler: usize) -> usize;
    fn sigprocmask(how: c_int, new: *const SignalSet, old: *mut SignalSet) -> c_int;
}

/// A panic is exit 1: not healthy, as far as anyone can tell.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    _exit(1)
}

/// Ends this process by SIGALRM after `seconds`, whatever its parent left ignored or blocked.
fn arm(seconds: c_uint) {
    // SIGPIPE is blocked in the same call: a reader of stdout that went away must not turn a
    // healthy worker into a killed probe.
    let mut mask = SignalSet([0; _]);
    mask.0[0] = 1 << (SIGPIPE - 1);
    // SAFETY: SIG_DFL is not a handler; `mask` is a whole `sigset_t` of musl and lives through the
    // call; a null `old` is allowed.
    unsafe {
        signal(SIGALRM, SIG_DFL);
        sigprocmask(SIG_SETMASK, &raw const mask, core::ptr::null_mut());
    }
    alarm(seconds);
}

fn stdout(bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: descriptor 1 is never closed here. Where the parent left it closed, a file that was
    // opened only for reading may have its number, and the write fails.
    rustix::io::write(unsafe { rustix::stdio::stdout() }, bytes)
}

fn stderr(bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: as for descriptor 1.
    rustix::io::write(unsafe { rustix::stdio::stderr() }, bytes)
}

/// The strings of a vector that ends with a null pointer, as `argv` and `envp` do.
#[derive(Clone, Copy)]
struct Strings {
    next: *const *const c_char,
    /// Only those that begin so are of interest; the others are not even measured. An environment
    /// may be large, and each setting is looked up in it.
    initials: Option<[u8; 2]>,
}

impl Iterator for Strings {
    type Item = &'static CStr;

    fn next(&mut self) -> Option<&'static CStr> {
        loop {
            // SAFETY: `next` points into a vector that the kernel made and that ends with null; it is
            // never moved beyond that null, and the strings are never written or freed.
            let (string, initial) = unsafe {
                let string = *self.next;
                if string.is_null() {
                    return None;
                }
                self.next = self.next.add(1);
                (string, string.cast::<u8>().read())
            };
            if self.initials.is_none_or(|initials| initials.contains(&initial)) {
                // SAFETY: as above; the kernel ends each string with a zero.
                return Some(unsafe { CStr::from_ptr(string) });
            }
        }
    }
}

/// Called by musl's start code.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    let mut arguments = Strings { next: argv, initials: None };
    // The program's own name. An empty argv is possible and has none.
    if argc > 0 {
        arguments.next();
    }
    c_int::from(tickmark_probe::run(Started {
        arguments,
        // TICKMARK_ and KICKS_LIVENESS_.
        environment: Strings { next: envp, initials: Some(*b"TK") },
        arm,
        stdout,
        stderr,
    }))
}
