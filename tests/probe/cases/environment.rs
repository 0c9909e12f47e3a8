//! Settings from the environment: the gem's names, blank and invalid values, and flags over them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::time::Duration;

use tickmark::protocol::{Generation, LaunchToken, Mark, Record as _};

use crate::answer::{Answer, ONE_HEALTHY, PREVIOUS, not_started};
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("environment::directory", Need::Nothing, directory),
    case("environment::maximum_age", Need::Nothing, maximum_age),
    case("environment::other_settings", Need::Nothing, others),
    case("environment::launch_token", Need::Generation, launch_token),
    case("environment::of_100000_variables", Need::Nothing, large),
    case("environment::of_odd_entries", Need::Nothing, odd),
];

#[track_caller]
fn says(site: &Site, variables: &[(&str, &OsStr)], status: i32, line: &str) {
    let mut command = site.bare_probe();
    command.envs(variables.iter().copied());
    Answer::of(&mut command).is(status, line);
}

fn directory(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let (here, nowhere) = (marks.path().as_os_str(), OsStr::new("/nowhere"));
    let blank = OsStr::new(" \t");
    says(site, &[("TICKMARK_DIR", here)], 0, ONE_HEALTHY);
    says(site, &[("KICKS_LIVENESS_DIR", here)], 0, ONE_HEALTHY);
    says(site, &[("TICKMARK_DIR", here), ("KICKS_LIVENESS_DIR", nowhere)], 0, ONE_HEALTHY);
    for unset in [blank, OsStr::new("")] {
        says(site, &[("TICKMARK_DIR", unset), ("KICKS_LIVENESS_DIR", here)], 0, ONE_HEALTHY);
    }
    let line = not_started("/nowhere");
    says(site, &[("TICKMARK_DIR", nowhere), ("KICKS_LIVENESS_DIR", here)], 1, &line);

    let mut command = site.probe(&marks);
    command.env("TICKMARK_DIR", nowhere).env("KICKS_LIVENESS_DIR", nowhere);
    Answer::of(&mut command).is(0, ONE_HEALTHY);

    if !Path::new("/opt/app/tmp/health").exists() {
        let line = not_started("/opt/app/tmp/health");
        says(site, &[], 1, &line);
        says(site, &[("TICKMARK_DIR", blank), ("KICKS_LIVENESS_DIR", blank)], 1, &line);
        // Names that only begin so.
        says(site, &[("TICKMARK_DIRECTORY", here), ("XTICKMARK_DIR", here)], 1, &line);
    }
}

fn maximum_age(site: &Site) {
    let marks = Marks::empty(site);
    marks.fill(1);
    marks.put(&marks.mark_by_mtime(0));
    let says = |age_ms, variables: &[(&str, &str)], flag: Option<&str>, stale: Option<&str>| {
        marks.modified_ago("worker-0", Duration::from_millis(age_ms));
        let mut command = site.probe(&marks);
        command.envs(variables.iter().copied());
        command.args(flag.map(|age| format!("--max-age={age}")));
        let answer = Answer::of(&mut command);
        match stale {
            Some(ages) => answer.is(1, format_args!("worker-0 stale {ages}")),
            None => answer.is(0, ONE_HEALTHY),
        }
    };
    let (ours, gems) = ("TICKMARK_MAX_AGE", "KICKS_LIVENESS_MAX_AGE");
    says(50_100, &[], None, Some("51s > 45s"));
    says(40_000, &[], None, None);
    says(9_100, &[(ours, "5")], None, Some("10s > 5s"));
    says(9_100, &[(gems, "5")], None, Some("10s > 5s"));
    says(9_100, &[(ours, " 5 ")], None, Some("10s > 5s"));
    says(9_100, &[(ours, "20"), (gems, "5")], None, None);
    says(9_100, &[(ours, " "), (gems, "5")], None, Some("10s > 5s"));
    says(9_100, &[(ours, ""), (gems, "5")], None, Some("10s > 5s"));
    says(100_000, &[(ours, "4294967295")], None, None);
    for invalid in ["0", "-5", "+5", "5s", "5.0", "1e9", "five", "4294967296", "5 5"] {
        says(40_000, &[(ours, invalid)], None, None);
        says(50_100, &[(ours, invalid)], None, Some("51s > 45s"));
        says(50_100, &[(gems, invalid)], None, Some("51s > 45s"));
    }
    says(9_100, &[(ours, "20"), (gems, "20")], Some("5"), Some("10s > 5s"));
    says(9_100, &[(ours, "5"), (gems, "5")], Some("20"), None);
}

/// What makes no difference to a healthy worker in its own container.
fn others(site: &Site) {
    let marks = Marks::healthy(site, 1);
    for (name, value) in [
        ("TICKMARK_TOPOLOGY", "auto"),
        ("TICKMARK_TOPOLOGY", "STRICT"),
        ("TICKMARK_TOPOLOGY", ""),
        ("TICKMARK_FORMAT", "binary"),
        ("TICKMARK_FORMAT", "xml"),
        ("TICKMARK_FORMAT", " "),
        ("TICKMARK_TICK", "nonsense"),
        ("TICKMARK_SLOT", "9"),
        ("TICKMARK_PROCESSES", "9"),
        // No release has the switch that hides evidence.
        ("TICKMARK_TEST_HIDE", "boot-id,mntns-id,root-mount,cgroup,mntns-inode,pid1-start"),
        ("TICKMARK_LAUNCH", " "),
        ("TICKMARK_LAUNCH", "a token with spaces"),
        ("TICKMARK_LAUNCH", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0"),
    ] {
        let mut command = site.probe(&marks);
        command.env(name, value);
        Answer::of(&mut command).is(0, ONE_HEALTHY);
    }
}

fn launch_token(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let says = |token: &str, status, line: &str| {
        let mut command = site.probe(&marks);
        command.env("TICKMARK_LAUNCH", token);
        Answer::of(&mut command).is(status, line);
    };
    says("first", 1, PREVIOUS);
    let launch = LaunchToken::new(b"first");
    let launched = Generation { launch, ..site.generation.clone().expect("what the case needs") };
    marks.write("generation", launched.encode());
    says("first", 1, "worker-0 belongs to a previous container");
    marks.put(&Mark { generation: Some(launched), ..marks.mark(0) });
    says("first", 0, ONE_HEALTHY);
    says(" first ", 0, ONE_HEALTHY);
    says("second", 1, PREVIOUS);
}

/// The one that counts is the last, and the others begin as it does.
fn large(site: &Site) {
    let marks = Marks::healthy(site, 1);
    for initial in ["A", "T"] {
        let mut command = site.bare_probe();
        // Eight bytes and a pointer each: two megabytes is what the kernel takes.
        command.envs((0..100_000).map(|number| (format!("{initial}{number:05}"), "")));
        command.env("TICKMARK_DIR", marks.path());
        Answer::of(&mut command).is(0, ONE_HEALTHY);
    }
}

fn odd(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let mut command = site.probe(&marks);
    command.env(OsString::from_vec(b"T\xff\x01".to_vec()), OsString::from_vec(vec![0xff; 100_000]));
    command.env("TICKMARK_MAX_AGE", OsString::from_vec(b"\xff\xfe".to_vec()));
    command.env("TICKMARK_LAUNCH", OsString::from_vec(b"\xff".to_vec()));
    Answer::of(&mut command).is(0, ONE_HEALTHY);
}
