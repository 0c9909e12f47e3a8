//! Odd ways to be started: streams that are closed, full or abandoned, small limits, no argv.

use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};

use rustix::process::Resource;

use crate::answer::{Answer, ONE_HEALTHY};
use crate::inherited;
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("started::with_closed_streams", Need::Nothing, closed),
    case("started::with_a_full_stdout", Need::Nothing, full),
    case("started::with_a_stdout_that_nobody_reads", Need::Nothing, abandoned),
    case("started::with_8_descriptors", Need::Nothing, few_descriptors),
    case("started::with_a_small_stack", Need::Nothing, small_stack),
    case("started::with_an_empty_argv", Need::Nothing, no_arguments),
];

/// A healthy directory and one that is not, and their exit statuses.
fn both(site: &Site) -> [(Marks, i32); 2] {
    let unhealthy = Marks::healthy(site, 2);
    unhealthy.remove("worker-0");
    [(Marks::healthy(site, 2), 0), (unhealthy, 1)]
}

const MODES: [Option<&str>; 3] = [None, Some("--explain"), Some("--json")];

/// The exit status where nothing can be read from standard output.
#[track_caller]
fn status(command: &mut Command, due: i32, what: &str) {
    let answer = Answer::of(command);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(due), ""), "{what}: {answer:?}");
}

fn closed(site: &Site) {
    for (marks, due) in both(site) {
        let before = contents(&marks);
        for mode in MODES {
            for descriptors in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]] {
                let mut command = site.probe(&marks);
                command.args(mode);
                inherited::close(&mut command, descriptors);
                let answer = Answer::of(&mut command);
                assert_eq!(answer.status, Some(due), "without {descriptors:?}: {answer:?}");
                assert_eq!(answer.stderr, "");
                assert_eq!(answer.stdout.is_empty(), descriptors.contains(&1));
            }
        }
        // What it opened under the number of its standard output took nothing of it.
        assert_eq!(contents(&marks), before);
    }
    let mut command = site.bare_probe();
    command.arg("--nonsense");
    inherited::close(&mut command, &[0, 1, 2]);
    status(&mut command, 2, "wrong usage");
}

fn contents(marks: &Marks) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(marks.path()).expect("the directory");
    let mut contents: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            (entry.file_name(), fs::read(entry.path()).expect("a file"))
        })
        .collect();
    contents.sort();
    contents
}

fn full(site: &Site) {
    for (marks, due) in both(site) {
        for mode in MODES {
            let full = File::options().write(true).open("/dev/full").expect("/dev/full");
            let mut command = site.probe(&marks);
            // `output` would make a pipe of it.
            command.args(mode).stdout(full).stderr(Stdio::null());
            let ended = command.status().expect("the probe runs");
            assert_eq!(ended.code(), Some(due), "{mode:?}");
        }
    }
}

fn abandoned(site: &Site) {
    for (marks, due) in both(site) {
        for mode in MODES {
            let (reader, writer) = io::pipe().expect("a pipe");
            drop(reader);
            let mut command = site.probe(&marks);
            command.args(mode).stdout(writer).stderr(Stdio::null());
            let ended = command.status().expect("the probe runs");
            assert_eq!(ended.code(), Some(due), "{mode:?}: {ended}");
        }
    }
}

/// Descriptors that are closed late must not run out.
fn few_descriptors(site: &Site) {
    let marks = Marks::healthy(site, 200);
    let mut command = site.probe(&marks);
    inherited::limit(&mut command, Resource::Nofile, 8);
    Answer::of(&mut command).is(0, "200 process(es) healthy");
    marks.write("worker-150", "");
    let mut command = site.probe(&marks);
    inherited::limit(&mut command, Resource::Nofile, 8);
    Answer::of(&mut command).is(1, "worker-150 unreadable (damaged)");
}

fn small_stack(site: &Site) {
    for (marks, due) in both(site) {
        for mode in MODES {
            let mut command = site.probe(&marks);
            command.args(mode);
            inherited::limit(&mut command, Resource::Stack, 64 * 1024);
            status(&mut command, due, "64 KiB of stack");
        }
    }
}

/// Since Linux 5.18 the kernel puts an empty string there; before, there is nothing.
fn no_arguments(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let mut command = site.bare_probe();
    inherited::without_arguments(&mut command, "TICKMARK_DIR", marks.path().as_os_str());
    Answer::of(&mut command).is(0, ONE_HEALTHY);
}
