//! What the operating system gives a program and takes from it: argv and envp, the signal mask, the
//! timer, the exit status. Nothing here decides anything.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::panic::PanicInfo;

use rustix::io::Errno;
use tickmark::clock::Clocks;
use tickmark_probe::{Started, kernel::call};

const SIGPIPE: usize = 13;
const SIGALRM: usize = 14;
const SIG_SETMASK: usize = 2;
const ITIMER_REAL: usize = 0;

const CLOCK_REALTIME: usize = 0;
const CLOCK_MONOTONIC: usize = 1;

/// The kernel's `struct sigaction` with every field zero: the default action, no flags.
#[repr(C)]
struct DefaultAction([u64; 4]);

/// The kernel's `struct itimerval`; no interval, so that it fires once.
#[repr(C)]
struct Timer {
    interval: [u64; 2],
    seconds: u64,
    microseconds: u64,
}

/// The kernel's `struct timespec`.
#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: i64,
}

/// System call numbers, `asm/unistd_64.h`.
#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const RT_SIGACTION: usize = 13;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const SETITIMER: usize = 38;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const EXIT_GROUP: usize = 231;
}

/// System call numbers, `asm-generic/unistd.h`.
#[cfg(not(target_arch = "x86_64"))]
mod number {
    pub(super) const RT_SIGACTION: usize = 134;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const SETITIMER: usize = 103;
    pub(super) const CLOCK_GETTIME: usize = 113;
    pub(super) const EXIT_GROUP: usize = 94;
}

fn exit(status: u8) -> ! {
    loop {
        // SAFETY: takes no pointer, and does not return.
        unsafe { call(number::EXIT_GROUP, [usize::from(status), 0, 0, 0]) };
    }
}

/// A panic is exit 1: not healthy, as far as anyone can tell.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(1)
}

/// Ends this process by SIGALRM after `seconds`, whatever its parent left ignored or blocked.
fn arm(seconds: u32) {
    let default = DefaultAction([0; 4]);
    // SIGPIPE is blocked in the same call: a reader of stdout that went away must not turn a
    // healthy worker into a killed probe.
    let mask = 1u64 << (SIGPIPE - 1);
    let timer = Timer { interval: [0; 2], seconds: u64::from(seconds), microseconds: 0 };
    let default = (&raw const default).expose_provenance();
    // SAFETY: `default` is a whole `struct sigaction` of the kernel's and holds no handler; `mask`
    // is a whole set of 64 signals; `timer` is a whole `struct itimerval`; all outlive the calls,
    // and a null old value is allowed.
    unsafe {
        call(number::RT_SIGACTION, [SIGALRM, default, 0, size_of::<u64>()]);
        call(
            number::RT_SIGPROCMASK,
            [SIG_SETMASK, (&raw const mask).expose_provenance(), 0, size_of::<u64>()],
        );
        call(number::SETITIMER, [ITIMER_REAL, (&raw const timer).expose_provenance(), 0, 0]);
    }
}

/// By system call: finding the kernel's fast clock costs 700 bytes, and a healthy verdict takes the
/// time once.
fn nanoseconds(clock: usize) -> i64 {
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` is a whole `struct timespec`, and is only written.
    unsafe { call(number::CLOCK_GETTIME, [clock, (&raw mut time).expose_provenance(), 0, 0]) };
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

/// The program's first instruction, named to the linker by build.rs: musl's start code sets up
/// threads, buffers and clocks, none of which this program has, in 3 KiB.
///
/// The kernel leaves argc, argv and envp on an aligned stack. A static program that is not
/// position-independent has nothing to relocate.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn tickmark_start() -> ! {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("xor ebp, ebp", "mov rdi, rsp", "call {main}", "ud2", main = sym main);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x29, 0", "mov x30, 0", "mov x0, sp", "b {main}", main = sym main);
}

/// # Safety
/// `stack` must be what the kernel leaves a new process (the psABI of each architecture): argc, argv
/// and its null, envp and its null.
unsafe extern "C" fn main(stack: *const *const c_char) -> ! {
    // SAFETY: argc is there, and envp begins after the null that ends argv.
    let (argc, argv, envp) = unsafe {
        let argc = stack.cast::<usize>().read();
        (argc, stack.add(1), stack.add(argc + 2))
    };
    let mut arguments = Strings { next: argv, initials: None };
    // The program's own name. An empty argv is possible and has none.
    if argc > 0 {
        arguments.next();
    }
    exit(tickmark_probe::run(Started {
        arguments,
        // TICKMARK_ and KICKS_LIVENESS_.
        environment: Strings { next: envp, initials: Some(*b"TK") },
        arm,
        clocks: CLOCKS,
        stdout,
        stderr,
    }))
}
