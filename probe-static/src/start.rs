//! What the operating system gives a program and takes from it: argv and envp, the signal mask, the
//! timer, the exit status. Nothing here decides anything.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint};
use core::panic::PanicInfo;

use rustix::io::Errno;
use tickmark::clock::Clocks;
use tickmark_probe::Started;

const SIGPIPE: c_int = 13;
const SIGALRM: c_int = 14;
const SIG_SETMASK: c_int = 2;

const CLOCK_REALTIME: c_int = 0;
const CLOCK_MONOTONIC: c_int = 1;

/// The kernel's `struct sigaction` with every field zero: the default action, no flags.
#[repr(C)]
struct DefaultAction([u64; 4]);

/// musl's `struct timespec`.
#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: i64,
}

#[cfg(target_arch = "x86_64")]
const SYS_RT_SIGACTION: c_long = 13;
#[cfg(target_arch = "x86_64")]
const SYS_RT_SIGPROCMASK: c_long = 14;
#[cfg(not(target_arch = "x86_64"))]
const SYS_RT_SIGACTION: c_long = 134;
#[cfg(not(target_arch = "x86_64"))]
const SYS_RT_SIGPROCMASK: c_long = 135;

unsafe extern "C" {
    safe fn _exit(status: c_int) -> !;
    safe fn alarm(seconds: c_uint) -> c_uint;
    fn clock_gettime(clock: c_int, time: *mut Time) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

/// A panic is exit 1: not healthy, as far as anyone can tell.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    _exit(1)
}

/// Ends this process by SIGALRM after `seconds`, whatever its parent left ignored or blocked.
fn arm(seconds: c_uint) {
    let default = DefaultAction([0; 4]);
    // SIGPIPE is blocked in the same call: a reader of stdout that went away must not turn a
    // healthy worker into a killed probe.
    let mask = 1u64 << (SIGPIPE - 1);
    let none = core::ptr::null::<u64>();
    // Past musl's functions: they bring its locks and its own handling of signals along.
    // SAFETY: `default` is a whole `struct sigaction` of the kernel's and holds no handler; `mask`
    // is a whole set of 64 signals; both outlive the calls, and a null old value is allowed.
    unsafe {
        syscall(
            SYS_RT_SIGACTION,
            c_long::from(SIGALRM),
            &raw const default,
            none,
            size_of_val(&mask),
        );
        syscall(
            SYS_RT_SIGPROCMASK,
            c_long::from(SIG_SETMASK),
            &raw const mask,
            none,
            size_of_val(&mask),
        );
    }
    alarm(seconds);
}

fn nanoseconds(clock: c_int) -> i64 {
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` is a whole `struct timespec` of a 64-bit musl, and is only written.
    unsafe { clock_gettime(clock, &raw mut time) };
    time.seconds.wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds)
}

const CLOCKS: Clocks = Clocks {
    monotonic_ns: || nanoseconds(CLOCK_MONOTONIC).unsigned_abs(),
    realtime_ns: || nanoseconds(CLOCK_REALTIME),
};

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
        clocks: CLOCKS,
        stdout,
        stderr,
    }))
}
