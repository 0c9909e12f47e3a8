//! `--json` and `--explain`: readable, complete, and of one mind with the plain line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde_json::{Value, json};
use tickmark::protocol::{Mark, Phase};

use crate::answer::Answer;
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("report::json_agrees_with_the_plain_line", Need::Nothing, json_agrees),
    case("report::json_of_odd_directory_names", Need::Nothing, json_of_odd_names),
    case("report::states_of_odd_bytes", Need::Nothing, odd_states),
    case("report::json_holds_slots_and_settings", Need::Nothing, json_holds),
    case("report::explain_holds_slots_and_settings", Need::Nothing, explain_holds),
];

/// The JSON, after it was compared with the plain call in all that both say.
#[track_caller]
fn json_of(site: &Site, marks: &Marks) -> Value {
    let plain = Answer::of(&mut site.probe(marks));
    let answer = Answer::of(site.probe(marks).arg("--json"));
    assert_eq!((answer.status, answer.stderr.as_str()), (plain.status, ""), "{answer:?}");
    assert_eq!(answer.stdout.lines().count(), 1, "{answer:?}");
    assert!(answer.stdout.ends_with('\n'), "{answer:?}");
    let json: Value = serde_json::from_str(&answer.stdout)
        .unwrap_or_else(|error| panic!("{error} in {}", answer.stdout));
    assert_eq!(json["healthy"], json!(plain.status == Some(0)), "{json}");
    assert_eq!(json["verdict"], json!(plain.stdout.trim_end_matches('\n')), "{json}");
    json
}

fn json_agrees(site: &Site) {
    for slots in [1, 4, 4096] {
        let json = json_of(site, &Marks::healthy(site, slots));
        assert_eq!(json["slots"].as_array().map(Vec::len), Some(slots as usize));
    }
    json_of(site, &Marks::empty(site));
    json_of(site, &Marks::absent(site, "missing".as_ref()));
    let file = Marks::absent(site, "file".as_ref());
    std::fs::write(file.path(), "").expect("a file");
    json_of(site, &file);

    let marks = Marks::healthy(site, 20);
    marks.remove("worker-0");
    marks.write("worker-1", "");
    marks.write("worker-2", b"\xf5TM\x02\x03");
    marks.put(&Mark { monotonic_ns: u64::MAX, ..marks.mark(3) });
    marks.put(&Mark { generation: None, ..marks.mark(4) });
    marks.put(&Mark {
        phase: Phase::Draining { left_ms: u64::MAX },
        jobs_in_flight: 3,
        oldest_job_ms: u64::MAX,
        ..marks.mark(5)
    });
    let json = json_of(site, &marks);
    let problems: Vec<&Value> = json["slots"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|slot| &slot["problem"])
        .take(4)
        .collect();
    assert_eq!(
        json!(problems),
        json!([
            "missing",
            "unreadable (damaged)",
            "written by a newer tickmark (format 2)",
            "from the future"
        ])
    );
    for (file, contents) in [
        ("expected", &b"rubbish"[..]),
        ("generation", b"rubbish"),
        ("generation", b"\xf5TM\x02\x02"),
        ("expected", b"0"),
        ("expected", b"4097"),
        ("expected", b"\xf5TM\x02\x01"),
        ("topology-unsafe", b"\"\\\n\xff"),
    ] {
        let marks = Marks::healthy(site, 1);
        marks.write(file, contents);
        json_of(site, &marks);
    }
}

/// Whatever stands in the mark, the table stays a table and the JSON stays JSON.
fn odd_states(site: &Site) {
    let states = |states: &[u8]| {
        let marks = Marks::healthy(site, 1);
        let consumer_states = states.try_into().expect("at most 192 bytes");
        marks.put(&Mark { consumer_states, ..marks.mark(0) });
        let json = json_of(site, &marks);
        let table = Answer::of(site.probe(&marks).arg("--explain")).stdout;
        (json["slots"][0].get("consumer_states").cloned(), table)
    };
    assert_eq!(states(b"").0, None);
    let (json, table) = states(b"a\"b\\ consuming;\n\x1b[2J\xff stopped");
    assert_eq!(json, Some(json!("a\"b\\ consuming;??[2J? stopped")));
    assert!(table.contains("\n      consumer_states a\"b\\ consuming;??[2J? stopped\n"), "{table}");
    let longest = "~".repeat(192);
    assert_eq!(states(longest.as_bytes()).0, Some(json!(longest)));
}

fn json_of_odd_names(site: &Site) {
    let names: [&[u8]; 8] = [
        b"quote\"s",
        b"back\\slash\\",
        b"line\nend",
        b"tab\tbell\x07escape\x1b[2J\x7f",
        b"\xff\xfe not UTF-8",
        b"half of two bytes \xc3",
        "… ü 🦀".as_bytes(),
        b"\\u0041 ${dir} %s <script>",
    ];
    for name in names {
        let name = OsStr::from_bytes(name);
        let healthy = Marks::named(site, name);
        let not_started = json_of(site, &healthy);
        assert_eq!(not_started["healthy"], json!(false));
        healthy.fill(1);
        assert_eq!(json_of(site, &healthy)["healthy"], json!(true));
        json_of(site, &Marks::absent(site, name));
        // Printable ASCII stands there as it is.
        if let Some(text) = healthy.path().to_str()
            && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        {
            assert_eq!(not_started["dir"], json!(text));
        }
    }
    // Longer than any buffer for output.
    let mut long = OsString::from("/");
    long.push(OsString::from_vec([b"\"\\\n".repeat(80), b"/".to_vec()].concat().repeat(16)));
    let answer = Answer::of(site.bare_probe().arg("--json").arg("--dir").arg(&long));
    assert_eq!(answer.status, Some(1), "{answer:?}");
    let _: Value = serde_json::from_str(&answer.stdout).expect("JSON");
}

fn json_holds(site: &Site) {
    let marks = Marks::healthy(site, 3);
    let mut command = site.probe(&marks);
    command.arg("--json").env("KICKS_LIVENESS_MAX_AGE", "7").env("TICKMARK_TOPOLOGY", "auto");
    let answer = Answer::of(&mut command);
    let json: Value = serde_json::from_str(&answer.stdout).expect("JSON");
    for (member, due) in [
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("dir", json!(marks.path())),
        ("dir_from", json!("flag")),
        ("max_age_s", json!(7)),
        ("max_age_from", json!("KICKS_LIVENESS_MAX_AGE")),
        ("format_from", json!("default")),
        ("topology", json!("auto")),
        ("topology_from", json!("TICKMARK_TOPOLOGY")),
        ("expected", json!(3)),
        ("topology_unsafe_published", json!(false)),
    ] {
        assert_eq!(json[member], due, "{member} in {json}");
    }
    let slots = json["slots"].as_array().expect("slots");
    for (number, slot) in slots.iter().enumerate() {
        assert_eq!(slot["slot"], json!(number));
        assert_eq!(slot["pid"], json!(std::process::id()));
        assert_eq!(slot["consumers"], json!(2));
        assert_eq!(slot["consumers_expected"], json!(2));
        assert_eq!(slot["jobs"], json!(0));
        assert_eq!(slot["phase"], json!("running"));
        assert_eq!(slot["consumer_states"], json!("orders consuming; mails consuming"));
        assert!(slot["age_ms"].as_u64().is_some_and(|age| age < 45_000), "{slot}");
        assert_eq!(slot.get("problem"), None);
    }
}

fn explain_holds(site: &Site) {
    let marks = Marks::healthy(site, 12);
    marks.remove("worker-7");
    let mut command = site.probe(&marks);
    command.arg("--explain").env("TICKMARK_MAX_AGE", "9").env("TICKMARK_FORMAT", "nonsense");
    let answer = Answer::of(&mut command);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(1), ""), "{answer:?}");
    let line = |first: &str| {
        let mut lines = answer.stdout.lines().filter(|line| line.starts_with(first));
        let line = lines.next().unwrap_or_else(|| panic!("no {first} in\n{}", answer.stdout));
        assert_eq!(lines.next(), None, "{first} twice in\n{}", answer.stdout);
        line
    };
    let pid = std::process::id().to_string();
    for slot in 0..12 {
        let line = line(&format!("{slot} "));
        if slot == 7 {
            assert!(line.trim_end().ends_with(" missing"), "{line:?}");
        } else {
            for part in [&pid, "running", "2 of 2"] {
                assert!(line.contains(part), "no {part} in {line:?}");
            }
        }
    }
    let said = |line: &&str| *line == "      consumer_states orders consuming; mails consuming";
    assert_eq!(answer.stdout.lines().filter(said).count(), 11);
    assert!(line("dir ").ends_with(&format!(" {} (flag)", marks.shown())));
    assert!(line("max_age_s ").ends_with(" 9 (TICKMARK_MAX_AGE)"));
    assert!(line("format ").ends_with(" binary (default)"));
    assert!(line("topology ").ends_with(" auto (default)"));
    assert!(line("verdict ").ends_with(" worker-7 missing"));
}
