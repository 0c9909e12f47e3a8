//! Beside a Ruby worker: what Ruby writes in the text format is judged with the gem's
//! messages, and what `TICKMARK_FORMAT=text` writes is accepted by a Ruby reader.
//!
//! Needs `ruby`; skipped with a line where it is not installed.

mod skipping;

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, Timespec, Timestamps, utimensat};
use tickmark::protocol::{Encoding, Generation, Slot, SlotCount, State, TopologyUnsafe};
use tickmark::{marks, observe, procfs, settings};

const MAX_AGE: &CStr = c"45";
const PREVIOUS: &str = "heartbeat belongs to a previous container: worker has not started yet";
const UNSUPPORTED: &str =
    "unsupported PID topology: pod must not set shareProcessNamespace or hostPID";

fn ruby(script: &str, arguments: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ruby").join(script);
    match Command::new("ruby").arg(script).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            skipping::skip("beside_ruby", &format!("ruby is not installed ({error})"));
            None
        }
    }
}

/// The library's verdict, which the static probe prints; and the probe's where it is there.
fn judge(dir: &Path) -> (bool, String) {
    let name = CString::new(dir.as_os_str().as_bytes()).expect("no NUL");
    let settings = settings::Settings::from_lookup(|variable| match variable {
        "TICKMARK_DIR" => Some(name.as_c_str()),
        "TICKMARK_MAX_AGE" => Some(MAX_AGE),
        _ => None,
    });
    let verdict = observe::judge(&settings, &mut drop);
    let line = verdict.line(name.to_bytes()).to_string();
    if let Some(probe) = std::env::var_os("TICKMARK_PROBE") {
        let output = Command::new(probe)
            .args(["--max-age", "45", "--dir"])
            .arg(dir)
            .output()
            .expect("run the probe");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{line}\n"));
        assert_eq!(output.status.code(), Some(i32::from(!verdict.is_healthy())));
    }
    (verdict.is_healthy(), line)
}

#[test]
fn what_ruby_writes_is_judged_as_the_gem_judges_it() {
    let scratch = tempfile::tempdir().expect("make a directory");
    let dir = scratch.path();
    let text = dir.to_str().expect("UTF-8");
    if ruby("reader.rb", &[text, "45"]).is_none() {
        return;
    }
    let write = |arguments: &[&str]| {
        let output =
            ruby("writer.rb", &[&[text], arguments].concat()).expect("ruby was there just now");
        assert!(output.status.success(), "{output:?}");
    };
    let line = judge(dir);
    assert_eq!(
        line,
        (
            false,
            format!(
                "no {text}/expected: worker has not started yet (is tickmark started before the consumers?)"
            )
        )
    );
    write(&["2"]);
    assert_eq!(judge(dir), (true, "2 process(es) healthy".into()));
    write(&["2", "119.05"]);
    assert_eq!(judge(dir), (false, "worker-0 stale 120s > 45s; worker-1 stale 120s > 45s".into()));
    write(&["2", "-119.95"]);
    assert_eq!(
        judge(dir),
        (false, "worker-0 from the future 120s; worker-1 from the future 120s".into())
    );
    // The gem lets a mark be a little ahead of the probe's clock.
    write(&["2", "-30"]);
    assert_eq!(judge(dir), (true, "2 process(es) healthy".into()));
    std::fs::remove_file(dir.join("worker-1")).expect("remove a mark");
    assert_eq!(judge(dir), (false, "worker-1 missing".into()));
    write(&["1", "0", "mnt:[4026531111]:12345"]);
    assert_eq!(judge(dir), (false, PREVIOUS.into()));
    write(&["2"]);
    std::fs::write(
        dir.join("worker-0"),
        "2026-11-29T18:00:00Z pid=7 slot=0 generation=mnt:[4026531111]:12345\n",
    )
    .expect("write a mark");
    assert_eq!(judge(dir), (false, "worker-0 belongs to a previous container".into()));
    std::fs::write(dir.join("topology-unsafe"), format!("{UNSUPPORTED}\nwhy\n"))
        .expect("write the topology");
    assert_eq!(judge(dir), (false, UNSUPPORTED.into()));
}

#[test]
fn a_ruby_reader_accepts_what_the_text_format_writes() {
    let scratch = tempfile::tempdir().expect("make a directory");
    let dir = scratch.path();
    let text = dir.to_str().expect("UTF-8");
    let Some(first) = ruby("reader.rb", &[text, "45"]) else {
        return;
    };
    let line = |output: &Output| {
        (output.status.success(), String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    };
    let read = || line(&ruby("reader.rb", &[text, "45"]).expect("ruby was there just now"));
    assert_eq!(line(&first), (false, format!("no {text}/expected: worker has not started yet")));

    let inspection = procfs::inspect(Encoding::Text, false, None);
    assert_ne!(inspection.topology.state, State::Unsafe, "PID 1 of this machine is elsewhere");
    let generation = inspection.generation;
    let name = CString::new(text).expect("no NUL");
    let publish = |slot: u32, generation: Option<&Generation>| {
        let slot = Slot::new(slot).expect("a slot");
        let mut publisher = marks::Publisher::new(name.clone(), slot, Encoding::Text);
        let session = publisher.begin().expect("open the directory");
        session.expected(SlotCount::new(2).expect("a count")).expect("declare");
        if let Some(generation) = generation {
            session.generation(generation).expect("publish the generation");
        }
        session.mark(&marks::mark_now(slot, generation.cloned())).expect("publish the mark");
        session
    };
    publish(0, generation.as_ref());
    assert_eq!(read(), (false, "worker-1 missing".into()));
    publish(1, generation.as_ref());
    assert_eq!(read(), (true, "2 process(es) healthy".into()));
    assert_eq!(judge(dir), (true, "2 process(es) healthy".into()));

    let old = SystemTime::now() - Duration::from_millis(120_500);
    let since_1970 = old.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let at = Timespec {
        tv_sec: i64::try_from(since_1970.as_secs()).expect("a time"),
        tv_nsec: since_1970.subsec_nanos().into(),
    };
    let times = Timestamps { last_access: at, last_modification: at };
    utimensat(CWD, dir.join("worker-0"), &times, rustix::fs::AtFlags::empty()).expect("set mtime");
    let (healthy, line) = read();
    let age = line.strip_prefix("worker-0 stale ").and_then(|rest| rest.strip_suffix("s > 45s"));
    // Ruby takes its time to start on a busy machine.
    let old = age.and_then(|age| age.parse().ok()).is_some_and(|age| (120..180).contains(&age));
    assert!(!healthy && old, "{line}");

    let other = Generation {
        mount_namespace_inode: Some(4_026_531_111),
        pid1_start_time: Some(12_345),
        ..Generation::default()
    };
    let session = publish(0, Some(&other));
    if generation.is_some() {
        assert_eq!(read(), (false, PREVIOUS.into()));
    }
    session
        .topology_unsafe(&TopologyUnsafe { detail: "why".try_into().expect("short") })
        .expect("publish the topology");
    assert_eq!(read(), (false, UNSUPPORTED.into()));
}
