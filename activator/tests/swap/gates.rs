//! When the real backend asks its gate: at each attempt of a start, the live link's after the
//! caller's, and not at all where there is nothing to ask.

use std::fs::{self, OpenOptions};
use std::sync::{Arc, Mutex};

use tickmark_activator::backend::{Generations as _, Start, StartError};
use tickmark_activator::gate::{Context, Ended, Gate};
use tickmark_activator::process::Exit;

use crate::backend::{SAYS, backend, cold, end, row, soon, staged, start};
use crate::basics::Case;
use crate::site::{Site, build, host};

pub(crate) const ALL: &[Case] = &[
    ("the_gate_is_asked_and_the_record_written_at_each_attempt_of_a_start", || {
        Box::pin(async { each_attempt() })
    }),
    ("a_gate_that_refuses_the_second_attempt_refuses_the_start", || {
        Box::pin(async { second_attempt() })
    }),
    ("the_live_link_gate_is_asked_after_the_callers_in_both_rounds", || {
        Box::pin(async { live_gate() })
    }),
    ("a_start_without_gate_record_and_live_check_goes_as_it_is", || Box::pin(async { no_hook() })),
    ("a_backend_outside_of_this_crate_asks_the_same_gate", || Box::pin(async { outside() })),
];

type Said = Arc<Mutex<Vec<&'static str>>>;

fn says(said: &Said, what: &'static str) -> impl Fn() + Send + Sync + 'static {
    let said = Arc::clone(said);
    move || said.lock().unwrap().push(what)
}

/// An executable that is open for writing, and starts once that ends.
fn busy(site: &Site) -> Mutex<Option<fs::File>> {
    site.stage("1", "trace");
    let writer = OpenOptions::new().append(true).open(site.builds().join("1")).unwrap();
    Mutex::new(Some(writer))
}

fn each_attempt() {
    let site = Site::new();
    let (backend, route) = (backend(&site), row(&site));
    let writer = busy(&site);
    let said = Said::default();
    let (asked, recorded, noted) =
        (says(&said, "asked"), says(&said, "recorded"), says(&said, "noted"));
    let attempts = Mutex::new(0);
    let gate = Gate::asking(Context::new(), move || {
        asked();
        Ok(())
    })
    .recording(move || {
        recorded();
        let mut attempts = attempts.lock().unwrap();
        *attempts += 1;
        if *attempts == 3 {
            writer.lock().unwrap().take();
        }
        Ok(true)
    });
    let note = |_| {
        noted();
        Ok(())
    };
    let start = Start { route: &route, slot: 0, gate: &gate, note: &note, deadline: soon() };
    let (_, proc) = backend.start_staged(&start, staged(&site, "1")).unwrap();
    let attempt = ["noted", "asked", "recorded", "asked"];
    let said = said.lock().unwrap();
    assert_eq!(said[..12], [attempt; 3].concat()[..], "{said:?}");
    assert!(said.len() % 4 == 0, "{said:?}");
    end(&backend, &route, &proc);
}

fn second_attempt() {
    let site = Site::new();
    let (backend, route) = (backend(&site), row(&site));
    let writer = busy(&site);
    let asked = Mutex::new(0);
    let gate = Gate::asking(Context::new(), move || {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        if *asked == 1 {
            return Ok(());
        }
        // By now it could start.
        writer.lock().unwrap().take();
        Err("superseded meanwhile".into())
    });
    let error = start(&backend, &route, staged(&site, "1"), &gate).unwrap_err();
    let StartError::Refused(refused) = error else { panic!("{error:?}") };
    assert_eq!(refused.into_inner().to_string(), "superseded meanwhile");
    assert!(!site.path().join("trace").exists());
}

fn live_gate() {
    let site = Site::new();
    site.stage_script("1", SAYS);
    let said = Said::default();
    let live = says(&said, "live");
    let backend = backend(&site).asking_live(Arc::new(move |route, name| {
        assert_eq!((&route.host, name), (&host(), &build("1")));
        live();
        Ok(())
    }));
    let route = row(&site);
    site.point_live_at("1");
    for (wrote, expected) in [
        (true, &["caller", "live", "record", "caller", "live"][..]),
        (false, &["caller", "live", "record"]),
    ] {
        let (caller, record) = (says(&said, "caller"), says(&said, "record"));
        let gate = Gate::asking(Context::new(), move || {
            caller();
            Ok(())
        })
        .recording(move || {
            record();
            Ok(wrote)
        });
        for (generation, asked) in [(cold(), true), (staged(&site, "1"), false)] {
            said.lock().unwrap().clear();
            let (_, proc) = start(&backend, &route, generation, &gate).unwrap();
            proc.process.wait(soon()).unwrap();
            proc.launched.forget();
            let expected: Vec<&str> =
                expected.iter().copied().filter(|said| asked || *said != "live").collect();
            // More than once where another test's process held the script open for writing.
            let said = said.lock().unwrap();
            assert!(!said.is_empty());
            for attempt in said.chunks(expected.len()) {
                assert_eq!(attempt, expected, "a staged path is not the live link");
            }
        }
    }
    // Its answer counts in either round.
    for refused_at in [1, 2] {
        let asked = Mutex::new(0);
        let backend = crate::backend::backend(&site).asking_live(Arc::new(move |_, _| {
            let mut asked = asked.lock().unwrap();
            *asked += 1;
            if *asked == refused_at { Err("it failed before".into()) } else { Ok(()) }
        }));
        fs::remove_file(site.path().join("said")).unwrap_or_default();
        let gate = Gate::none().recording(|| Ok(true));
        let error = start(&backend, &route, cold(), &gate).unwrap_err();
        let StartError::Refused(refused) = error else { panic!("{error:?}") };
        assert_eq!(refused.into_inner().to_string(), "it failed before");
        assert!(!site.path().join("said").exists(), "it ran");
    }
}

fn no_hook() {
    let site = Site::new();
    site.stage_script("1", SAYS);
    let (backend, route) = (backend(&site), row(&site));
    // A context alone is none: it is a gated start that honours its context.
    let ended = Context::new();
    ended.end(Ended::Cancelled);
    let gate = Gate::none().within(ended);
    assert!(gate.hook().is_none());
    let (_, proc) = start(&backend, &route, staged(&site, "1"), &gate).unwrap();
    assert_eq!(proc.process.wait(soon()).unwrap(), Some(Exit::Code(0)));
    proc.launched.forget();
}

/// All that such a backend has: the gate of its start, and what it does instead of an exec.
fn outside() {
    let said = Said::default();
    let (asked, recorded) = (says(&said, "asked"), says(&said, "recorded"));
    let context = Context::new();
    let gate = Gate::asking(context.clone(), move || {
        asked();
        Ok(())
    })
    .recording(move || {
        recorded();
        Ok(true)
    });
    gate.pass(says(&said, "goes")).unwrap();
    assert_eq!(*said.lock().unwrap(), ["asked", "recorded", "asked", "goes"]);
    context.end(Ended::LeaseLost);
    let refused = gate.pass(|| panic!("it ran")).unwrap_err().into_error();
    assert!(refused.is_refused() && refused.is_lease_lost(), "{refused:?}");
}
