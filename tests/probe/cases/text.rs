//! What a Ruby worker leaves, and text that only looks like it.

use std::time::{Duration, SystemTime};

use tickmark::protocol::encode_mark;

use crate::answer::{Answer, DAMAGED, ONE_HEALTHY, PREVIOUS, answers};
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("text::healthy", Need::Pair, healthy),
    case("text::previous_container", Need::Pair, previous),
    case("text::freshness", Need::Pair, freshness),
    case("text::damaged_marks", Need::Pair, damaged),
];

fn healthy(site: &Site) {
    let marks = Marks::healthy_text(site, 3);
    answers(site, &marks, 0, "3 process(es) healthy");
    let mut command = site.probe(&marks);
    command.env("TICKMARK_FORMAT", "text");
    Answer::of(&mut command).is(0, "3 process(es) healthy");
    for expected in ["1", "1\n", " 1 ", "+1", "\t1\r\n", "01"] {
        marks.write("expected", expected);
        answers(site, &marks, 0, ONE_HEALTHY);
    }
    let mut generation = marks.read("generation");
    generation.push(b'\n');
    marks.write("generation", generation);
    answers(site, &marks, 0, ONE_HEALTHY);

    // Each file says for itself how it is written.
    let mixed = Marks::healthy(site, 2);
    mixed.write("worker-1", marks.read("worker-1"));
    answers(site, &mixed, 0, "2 process(es) healthy");
    mixed.write("expected", "2");
    answers(site, &mixed, 0, "2 process(es) healthy");
}

fn previous(site: &Site) {
    let marks = Marks::healthy_text(site, 1);
    let own = String::from_utf8(marks.read("generation")).expect("text");
    for other in [format!("{own}0"), own.replace("mnt:[", "mnt:[1"), "mnt:[0]:0".to_owned()] {
        marks.write("generation", other);
        answers(site, &marks, 1, PREVIOUS);
    }
    marks.remove("generation");
    answers(site, &marks, 1, PREVIOUS);
    marks.write("generation", &own);

    let line = String::from_utf8(marks.read("worker-0")).expect("text");
    let unsaid = line.replace(&format!(" generation={own}"), "");
    for other in [line.replace(&own, &format!("{own}0")), unsaid] {
        assert_ne!(other, line);
        marks.write("worker-0", other);
        answers(site, &marks, 1, "worker-0 belongs to a previous container");
    }
}

/// Its mtime is its only time stamp.
fn freshness(site: &Site) {
    let marks = Marks::healthy_text(site, 1);
    marks.modified_ago("worker-0", Duration::from_millis(119_100));
    answers(site, &marks, 1, "worker-0 stale 120s > 45s");
    marks.modified_ago("worker-0", Duration::from_secs(40));
    answers(site, &marks, 0, ONE_HEALTHY);
    marks.modified("worker-0", SystemTime::now() + Duration::from_millis(119_900));
    answers(site, &marks, 1, "worker-0 from the future 120s");
    marks.modified("worker-0", SystemTime::now() + Duration::from_secs(44));
    answers(site, &marks, 0, ONE_HEALTHY);
    marks.modified("worker-0", SystemTime::UNIX_EPOCH);
    let answer = Answer::of(&mut site.probe(&marks));
    assert_eq!(answer.status, Some(1));
    assert!(answer.stdout.starts_with("worker-0 stale 1"), "{answer:?}");
}

fn damaged(site: &Site) {
    let marks = Marks::healthy_text(site, 1);
    let line = encode_mark(&marks.mark(0));
    let whole = line.as_str();
    let body = whole.trim_end();
    for spoiled in [
        String::new(),
        "\n".to_owned(),
        // Only the line end shows that the line is whole.
        body.to_owned(),
        format!("{body}\r\n"),
        format!("{whole}{whole}"),
        format!("{body} \n"),
        format!(" {whole}"),
        format!("\u{feff}{whole}"),
        format!("{body} more=1\n"),
        whole.replace('Z', "+00:00"),
        whole.replace('T', " "),
        whole.replace("slot=0", "slot=1"),
        whole.replace("slot=0", "slot=-0"),
        whole.replace("slot=0", "slot="),
        whole.replace("pid=", "pid=99999999999999999999"),
        whole.replace("mnt:[", "net:["),
        format!("{:<5000}\n", body),
    ] {
        assert_ne!(spoiled, whole);
        marks.write("worker-0", &spoiled);
        let answer = Answer::of(&mut site.probe(&marks));
        assert_eq!(answer.stdout, format!("{DAMAGED}\n"), "for {spoiled:?}");
        answer.is(1, DAMAGED);
    }
    // A whole line and then more than a reader looks at.
    marks.write("worker-0", format!("{whole}{}", "x".repeat(5000)));
    answers(site, &marks, 1, DAMAGED);
}
