//! What a parent leaves to the probe beside its arguments: closed descriptors, signals, limits and
//! an empty argv. The code between fork and exec, and the only unsafe code of these tests.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Starts the program without these descriptors.
pub(crate) fn close(command: &mut Command, descriptors: &'static [i32]) {
    let run = move || {
        for &descriptor in descriptors {
            // SAFETY: the child's copy of a standard stream, which nothing owns after the fork.
            unsafe { libc::close(descriptor) };
        }
        Ok(())
    };
    // SAFETY: `run` only closes, which is async-signal-safe.
    unsafe { command.pre_exec(run) };
}

/// Starts the program with its standard streams and no other descriptor: one that whoever runs
/// the tests left open stands between those that the probe closes in one call.
pub(crate) fn only_standard_streams(command: &mut Command) {
    let run = || {
        // A kernel before Linux 5.11 refuses, and leaves open what it was given.
        // SAFETY: closes nothing before the exec.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        }
        Ok(())
    };
    // SAFETY: `run` makes one system call.
    unsafe { command.pre_exec(run) };
}

/// Starts the program with SIGALRM ignored and blocked: both pass through exec.
pub(crate) fn ignore_and_block_alarm(command: &mut Command) {
    let run = || {
        // SAFETY: the set is written before it is read; no handler is installed.
        let done = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGALRM);
            libc::signal(libc::SIGALRM, libc::SIG_IGN) != libc::SIG_ERR
                && libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: `run` calls nothing that is not async-signal-safe.
    unsafe { command.pre_exec(run) };
}

/// Starts the program with this soft and hard limit.
pub(crate) fn limit(command: &mut Command, resource: Resource, value: u64) {
    let run = move || {
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(resource, limit).map_err(io::Error::from)
    };
    // SAFETY: `run` makes one system call.
    unsafe { command.pre_exec(run) };
}

/// Starts the program with an argv that is empty, and this one variable.
pub(crate) fn without_arguments(command: &mut Command, name: &str, value: &OsStr) {
    let program = CString::new(command.get_program().as_bytes()).expect("a path");
    let variable = [name.as_bytes(), b"=", value.as_bytes()].concat();
    let variable = CString::new(variable).expect("a variable");
    let run = move || {
        let arguments = [std::ptr::null()];
        let environment = [variable.as_ptr(), std::ptr::null()];
        // SAFETY: both vectors end with null, and their strings live until the call.
        unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: `run` makes one system call, which does not return where it succeeds.
    unsafe { command.pre_exec(run) };
}
