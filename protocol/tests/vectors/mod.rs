//! The contents of `vectors/`: records with their bytes and fields, and directories with the
//! line that the probe prints over them.

use serde_json::{Value, json};
use tickmark_protocol::{
    Attempt, Decoded, Detail, Expected, Fault, Generation, LaunchToken, Mark, MarkFile, Phase,
    Pid1, RECORD_LEN, Record, State, TopologyReport, TopologyUnsafe, encode_expected,
    encode_generation, encode_mark, encode_unsafe,
};

use crate::directory::{DIR, Directory, File, Judge, SECOND, wall_ns};
use crate::examples;

/// File name and contents.
pub(crate) fn all() -> [(&'static str, Value); 7] {
    [
        ("expected", expected()),
        ("generation", generation()),
        ("mark", mark()),
        ("attempt", attempt()),
        ("topology-unsafe", topology_unsafe()),
        ("topology-report", topology_report()),
        ("verdict", verdict()),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn vector(name: &str, kind: u8, file: &str, bytes: &[u8], fields: Value) -> Value {
    let encoding = if bytes.len() == RECORD_LEN { "binary" } else { "text" };
    let mut vector = json!({
        "name": name, "kind": kind, "encoding": encoding, "file": file, "hex": hex(bytes),
        "fields": fields,
    });
    if encoding == "text" {
        vector["text"] = json!(str::from_utf8(bytes).expect("text is UTF-8"));
    }
    vector
}

/// 64 bits as a decimal string: JSON's numbers end at 2^53 in many languages.
fn long(value: u64) -> Value {
    json!(value.to_string())
}

fn generation_fields(generation: &Generation) -> Value {
    json!({
        "boot_id": generation.boot_id.map(|id| hex(&id)),
        "launch": generation.launch.as_ref().map(LaunchToken::as_str),
        "mount_namespace_id": generation.mount_namespace_id.map(long),
        "root_mount_id": generation.root_mount_id.map(long),
        "cgroup_id": generation.cgroup_id.map(long),
        "mount_namespace_inode": generation.mount_namespace_inode.map(long),
        "pid1_start_time": generation.pid1_start_time.map(long),
    })
}

fn expected() -> Value {
    let mut vectors = Vec::new();
    for (name, processes) in
        [("example", 2), ("none", 0), ("one", 1), ("most", 4096), ("two-byte varint", 128)]
    {
        let record = Expected { processes };
        let fields = json!({ "processes": processes });
        vectors.push(vector(name, 1, "expected", &record.encode(), fields.clone()));
        let text = encode_expected(&record);
        vectors.push(vector(name, 1, "expected", text.as_bytes(), fields));
    }
    vectors.into()
}

fn generation() -> Value {
    let mut vectors = Vec::new();
    for (name, record) in [
        ("example", examples::generation()),
        ("nothing", Generation::default()),
        ("largest", examples::largest_generation()),
        (
            "launched, on an old kernel",
            Generation {
                launch: LaunchToken::new(b"7f3a9c"),
                mount_namespace_id: None,
                root_mount_id: None,
                cgroup_id: Some(88_123),
                ..examples::generation()
            },
        ),
    ] {
        let fields = generation_fields(&record);
        vectors.push(vector(name, 2, "generation", &record.encode(), fields));
        if let Some(text) = encode_generation(&record) {
            let Ok(Decoded { record, .. }) = Generation::decode(text.as_bytes()) else {
                panic!("{text} does not parse")
            };
            let fields = generation_fields(&record);
            vectors.push(vector(name, 2, "generation", text.as_bytes(), fields));
        }
    }
    vectors.into()
}

fn mark() -> Value {
    let mut vectors = Vec::new();
    for (name, mark) in [
        ("example", examples::mark()),
        ("running", Mark { phase: Phase::Running, ..examples::mark() }),
        ("recovering", Mark { phase: Phase::Recovering, ..examples::mark() }),
        ("without a generation", Mark { generation: None, ..examples::mark() }),
        ("without states", Mark { consumer_states: heapless::Vec::new(), ..examples::mark() }),
        ("largest", examples::largest_mark()),
    ] {
        let file = format!("worker-{}", mark.slot);
        let phase = match mark.phase {
            Phase::Running => json!({ "running": {} }),
            Phase::Recovering => json!({ "recovering": {} }),
            Phase::Draining { left_ms } => json!({ "draining": { "left_ms": long(left_ms) } }),
        };
        let fields = json!({
            "slot": mark.slot,
            "pid": mark.pid,
            "sequence": long(mark.sequence),
            "wall_ms": long(mark.wall_ms),
            "monotonic_ns": long(mark.monotonic_ns),
            "tick_ms": mark.tick_ms,
            "phase": phase,
            "consumers_subscribed": mark.consumers_subscribed,
            "consumers_expected": mark.consumers_expected,
            "jobs_in_flight": mark.jobs_in_flight,
            "oldest_job_ms": long(mark.oldest_job_ms),
            "time_namespace": long(mark.time_namespace),
            "generation": mark.generation.as_ref().map(generation_fields),
            "consumer_states": str::from_utf8(&mark.consumer_states).expect("ASCII"),
        });
        vectors.push(vector(name, 3, &file, &MarkFile::encode(&mark), fields));
        // The year of the largest has more digits than the form.
        if name == "largest" {
            continue;
        }
        let text = encode_mark(&mark);
        let fields = json!({
            "wall_s": long(mark.wall_ms / 1000),
            "pid": mark.pid,
            "slot": mark.slot,
            "generation": mark.generation.as_ref().and_then(encode_generation).map(|text| {
                generation_fields(&Generation::decode(text.as_bytes()).expect("text").record)
            }),
        });
        vectors.push(vector(name, 3, &file, text.as_bytes(), fields));
    }
    vectors.into()
}

fn attempt() -> Value {
    let first = Attempt { starts: 1, last_report_ns: None, ..examples::attempt() };
    let attempts = [
        ("example", examples::attempt()),
        ("first start", first.clone()),
        ("without a generation", Attempt { generation: None, ..first }),
        ("largest", examples::largest_attempt()),
    ];
    attempts
        .map(|(name, attempt)| {
            let fields = json!({
                "starts": long(attempt.starts),
                "first_start_ns": long(attempt.first_start_ns),
                "last_report_ns": attempt.last_report_ns.map(long),
                "generation": attempt.generation.as_ref().map(generation_fields),
            });
            vector(name, 4, "attempt-1", &attempt.encode(), fields)
        })
        .to_vec()
        .into()
}

fn topology_unsafe() -> Value {
    let mut vectors = Vec::new();
    for (name, record) in [
        ("example", examples::topology_unsafe()),
        ("without a detail", TopologyUnsafe { detail: heapless::String::new() }),
        ("largest", examples::largest_unsafe()),
    ] {
        let fields = json!({ "detail": record.detail.as_str() });
        vectors.push(vector(name, 5, "topology-unsafe", &record.encode(), fields.clone()));
        let text = encode_unsafe(&record);
        vectors.push(vector(name, 5, "topology-unsafe", text.as_bytes(), fields));
    }
    vectors.into()
}

fn topology_report() -> Value {
    let states = [
        ("verified", State::Verified),
        ("verified by unique id", State::VerifiedByUniqueId),
        ("unsafe", State::Unsafe),
        ("example", State::Unverifiable),
        ("unavailable", State::Unavailable),
        ("non-Linux", State::NonLinux),
    ];
    states
        .map(|(name, state)| {
            let report = TopologyReport { state, ..examples::topology_report() };
            let fields = json!({
                "state": state.to_string(),
                "generation": report.generation.as_ref().map(generation_fields),
            });
            vector(name, 6, "topology-report", &report.encode(), fields)
        })
        .to_vec()
        .into()
}

fn verdict() -> Value {
    let judge = Judge::beside_the_worker();
    let mut rows = Vec::new();
    let mut row = |name: &str, judge: &Judge, directory: &Directory| {
        rows.push(observed(name, judge, directory));
    };
    let changed = |change: &dyn Fn(&mut Directory)| {
        let mut directory = Directory::healthy(2);
        change(&mut directory);
        directory
    };
    let other = Generation { mount_namespace_id: Some(4305), ..examples::generation() };

    row("healthy", &judge, &Directory::healthy(2));
    row("healthy, text", &judge, &Directory::healthy_text(2));
    row("unsafe topology published", &judge, &changed(&|d| d.put("topology-unsafe", "")));
    let mut elsewhere = judge.clone();
    elsewhere.own.pid1 = Pid1::Elsewhere(Detail::None);
    elsewhere.own.generation.pid1_start_time = None;
    row("PID 1 elsewhere, unique ids", &elsewhere, &Directory::healthy(2));
    row("PID 1 elsewhere, text", &elsewhere, &Directory::healthy_text(2));
    elsewhere.own.strict = true;
    row("PID 1 elsewhere, strict", &elsewhere, &Directory::healthy(2));
    row("expected missing", &judge, &changed(&|d| d.remove("expected")));
    for (name, text) in [
        ("expected 0", "0"),
        ("expected -1", "-1"),
        ("expected 1e9", "1e9"),
        ("expected 1000000000", "1000000000"),
        ("expected 4097", "4097"),
        ("expected empty", ""),
    ] {
        row(name, &judge, &changed(&|d| d.put("expected", text)));
    }
    row("expected unreadable", &judge, &changed(&|d| d.deny("expected")));
    row("generation missing", &judge, &changed(&|d| d.remove("generation")));
    let differs = changed(&|d| d.put("generation", other.encode()));
    row("generation differs", &judge, &differs);
    row("generation differs, reader has none", &Judge::nobody(), &differs);
    row("mark missing", &judge, &changed(&|d| d.remove("worker-1")));
    row("mark unreadable", &judge, &changed(&|d| d.deny("worker-1")));
    row("mark no regular file", &judge, &changed(&|d| d.fail("worker-1", Fault::NotRegular)));
    row("mark empty", &judge, &changed(&|d| d.put("worker-1", "")));
    row(
        "mark with a flipped bit",
        &judge,
        &changed(&|d| {
            let mut bytes = MarkFile::encode(&examples::mark());
            bytes[200] ^= 1;
            d.put("worker-1", bytes);
        }),
    );
    row(
        "mark of a newer format",
        &judge,
        &changed(&|d| {
            let mut bytes = MarkFile::encode(&examples::mark());
            bytes[3] = 2;
            d.put("worker-1", bytes);
        }),
    );
    row(
        "mark of a previous container",
        &judge,
        &changed(&|d| {
            d.put_mark(&Mark { generation: Some(other.clone()), ..examples::mark() });
        }),
    );
    row(
        "mark from the future",
        &judge,
        &changed(&|d| {
            let monotonic_ns = examples::MONOTONIC_NS + SECOND;
            d.put_mark(&Mark { monotonic_ns, ..examples::mark() });
        }),
    );
    row("marks stale", &judge.clone().after(120 * SECOND), &Directory::healthy(2));
    row("marks at the maximum age", &judge.clone().after(45 * SECOND), &Directory::healthy(2));
    let mut another_clock = judge.clone();
    another_clock.now.monotonic_ns = 0;
    another_clock.time_namespace += 1;
    row(
        "another time namespace, mtime decides",
        &another_clock,
        &changed(&|d| {
            d.touch("worker-1", wall_ns() - 120 * SECOND as i64);
        }),
    );
    let mut text = Directory::healthy_text(2);
    text.touch("worker-0", wall_ns() + 120 * SECOND as i64);
    text.touch("worker-1", wall_ns() - 120 * SECOND as i64);
    row("text marks from the future and stale", &judge, &text);
    let mut none = Directory::healthy(0);
    none.put("expected", "18");
    row("eighteen problems", &judge, &none);
    rows.into()
}

fn observed(name: &str, judge: &Judge, directory: &Directory) -> Value {
    let files: Value = directory
        .files
        .iter()
        .map(|(name, file)| {
            let file = match file {
                File::Bytes { bytes, mtime_ns } => {
                    json!({ "hex": hex(bytes), "mtime_ns": mtime_ns.to_string() })
                }
                File::Failed(Fault::Errno(errno)) => json!({ "errno": errno.to_string() }),
                File::Failed(fault) => json!({ "fault": fault.to_string() }),
            };
            (name.clone(), file)
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let (line, exit) = judge.answer(directory);
    json!({
        "name": name,
        "reader": {
            "dir": DIR,
            "generation": generation_fields(&judge.own.generation),
            "pid1": match judge.own.pid1 {
                Pid1::Here => "here",
                Pid1::Elsewhere(_) => "elsewhere",
                Pid1::Unknown(_) => "unknown",
            },
            "strict": judge.own.strict,
            "writes": if judge.own.text { "text" } else { "binary" },
            "max_age_s": judge.max_age.as_secs(),
            "monotonic_ns": long(judge.now.monotonic_ns),
            "realtime_ns": judge.now.realtime_ns.to_string(),
            "time_namespace": long(judge.time_namespace),
        },
        "files": files,
        "line": line,
        "exit": exit,
    })
}
