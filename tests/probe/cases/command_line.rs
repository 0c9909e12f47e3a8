//! Flags: what is wrong usage, and what is said about it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use crate::answer::{Answer, ONE_HEALTHY};
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("command_line::help_and_version", Need::Nothing, help_and_version),
    case("command_line::wrong_usage", Need::Nothing, wrong_usage),
    case("command_line::forms_of_a_value", Need::Nothing, forms),
];

fn ask(site: &Site, arguments: &[&str]) -> Answer {
    Answer::of(site.bare_probe().args(arguments))
}

fn help_and_version(site: &Site) {
    let version = format!("tickmark-probe {}\n", env!("CARGO_PKG_VERSION"));
    for arguments in [&["--version"][..], &["-V"], &["--version", "--nonsense"]] {
        ask(site, arguments).is_output(0, &version);
    }
    let help = ask(site, &["--help"]);
    help.is_output(0, &help.stdout);
    for named in [
        "usage: tickmark-probe",
        "--dir",
        "--max-age",
        "--timeout",
        "--explain",
        "--json",
        "--version",
        "--help",
        "TICKMARK_DIR",
        "TICKMARK_MAX_AGE",
        "TICKMARK_TOPOLOGY",
        "0 healthy",
        "1 not healthy",
        "2 wrong usage",
    ] {
        assert!(help.stdout.contains(named), "no {named} in the help");
    }
    for arguments in [&["-h"][..], &["--help", "--nonsense"], &["--max-age", "9", "--help"]] {
        ask(site, arguments).is_output(0, &help.stdout);
    }
}

fn wrong_usage(site: &Site) {
    let help = ask(site, &["--help"]).stdout;
    let wrong = |arguments: &[OsString], message: &str| {
        let answer = Answer::of(site.bare_probe().args(arguments));
        let due = Answer {
            status: Some(2),
            signal: None,
            stdout: String::new(),
            stderr: format!("tickmark-probe: {message}\n\n{help}"),
        };
        assert_eq!(answer, due, "for {arguments:?}");
    };
    let unknown = "expected one of the flags below";
    let seconds = "a whole number of seconds from 1 to 4294967295";
    let directory = "a directory, which is not empty";
    for (arguments, message) in [
        (&["--dri"][..], format!("unknown argument --dri: {unknown}")),
        (&["--dri=x"], format!("unknown argument --dri: {unknown}")),
        (&["-d"], format!("unknown argument -d: {unknown}")),
        (&["-"], format!("unknown argument -: {unknown}")),
        (&["--"], format!("unknown argument --: {unknown}")),
        (&["/marks"], format!("unknown argument /marks: {unknown}")),
        (&[""], format!("unknown argument : {unknown}")),
        (&["--json", "x"], format!("unknown argument x: {unknown}")),
        (&["--dir"], format!("--dir lacks its value: expected {directory}")),
        (&["--dir="], format!("--dir '': expected {directory}")),
        (&["--dir", ""], format!("--dir '': expected {directory}")),
        (&["--max-age"], format!("--max-age lacks its value: expected {seconds}")),
        (&["--timeout"], format!("--timeout lacks its value: expected {seconds}")),
        (&["--explain=1"], "--explain takes no value".to_owned()),
        (&["--json="], "--json takes no value".to_owned()),
        (&["--help=x"], "--help takes no value".to_owned()),
        (&["--version=x"], "--version takes no value".to_owned()),
        (&["--explain", "--json"], "--json: expected only one of --explain and --json".to_owned()),
        (
            &["--json", "--explain"],
            "--explain: expected only one of --explain and --json".to_owned(),
        ),
    ] {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        wrong(&arguments, &message);
    }
    let numbers =
        ["0", "-1", "+1", "1.5", "45s", " 45", "1e3", "0x10", "4294967296", "99999999999999999999"];
    for number in numbers {
        for flag in ["--max-age", "--timeout"] {
            let message = format!("{flag} {number}: expected {seconds}");
            wrong(&[flag.into(), number.into()], &message);
            wrong(&[format!("{flag}={number}").into()], &message);
        }
    }
    // What a terminal would obey is not repeated to it.
    let hostile = OsString::from_vec(b"--\x1b[2J\xff\n".to_vec());
    wrong(&[hostile], &format!("unknown argument --?[2J??: {unknown}"));
    // A name longer than any buffer.
    let long = format!("--{}", "x".repeat(10_000));
    wrong(&[long.clone().into()], &format!("unknown argument {long}: {unknown}"));
}

fn forms(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let attached = format!("--dir={}", marks.shown());
    for arguments in [
        &[attached.as_str()][..],
        &[&attached, "--max-age", "4294967295", "--timeout=4294967295"],
        // The last one counts.
        &["--dir", "/nowhere", &attached],
    ] {
        ask(site, arguments).is(0, ONE_HEALTHY);
    }
}
