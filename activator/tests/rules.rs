//! The table of the rules names tests that there are, each where it says: `docs/RULES.md` against the
//! sources. Nothing is built or run for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const RULES: &str = include_str!("../../docs/RULES.md");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The rows of the tables of rules: what each says, and the tests that it names.
fn rows(document: &str) -> Vec<(&str, Vec<&str>)> {
    let mut rows = Vec::new();
    let mut of_rules = false;
    for line in document.lines() {
        match line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) {
            Some("rule | tests") => of_rules = true,
            Some(row) if of_rules => {
                let (rule, tests) = row.split_once(" | ").unwrap_or((row, ""));
                rows.push((rule, tests.split('`').skip(1).step_by(2).collect()));
            }
            // The line between the head of a table and its rows.
            None if line.starts_with("|--") => {}
            Some(_) | None => of_rules = false,
        }
    }
    rows
}

/// What names no test at all, and what names one that there is not.
fn mistakes(document: &str) -> Vec<String> {
    let mut known = BTreeMap::new();
    let mut found = Vec::new();
    for (rule, tests) in rows(document) {
        if tests.is_empty() {
            found.push(format!("{rule}\n  names no test"));
        }
        for test in tests {
            let (program, name) = test.rsplit_once("::").unwrap_or(("", test));
            let there: &BTreeSet<String> =
                known.entry(program).or_insert_with(|| tests_of(program));
            if !there.contains(name) {
                found.push(format!("{rule}\n  there is no test {test}"));
            }
        }
    }
    found
}

/// The names of a module's unit tests (`gate::tests`), or of a test program's (`swap`).
fn tests_of(program: &str) -> BTreeSet<String> {
    let root = repository();
    let places = match program.strip_suffix("::tests") {
        Some(module) => {
            let module = root.join("activator/src").join(module.replace("::", "/"));
            vec![module.with_extension("rs"), module.join("mod.rs")]
        }
        None => ["activator/tests", "tests", "protocol/tests"]
            .into_iter()
            .map(|tests| root.join(tests).join(program))
            .flat_map(|place| [place.with_extension("rs"), place])
            .collect(),
    };
    let sources = places.into_iter().filter(|_| !program.is_empty()).flat_map(|place| {
        let within = fs::read_dir(&place).into_iter().flatten().flatten();
        within.map(|entry| entry.path()).chain([place]).collect::<Vec<_>>()
    });
    sources
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|source| functions(&source).chain(listed(&source)).collect::<Vec<_>>())
        .collect()
}

/// Functions that are tests by their attribute.
fn functions(source: &str) -> impl Iterator<Item = String> + '_ {
    let attributes = ["#[test]", "#[tokio::test]"];
    source
        .lines()
        .enumerate()
        .filter(move |(_, line)| attributes.contains(&line.trim()))
        .filter_map(|(at, _)| {
            let name = source.lines().skip(at).find_map(|line| line.split_once("fn "))?.1;
            Some(name.split('(').next()?.to_owned())
        })
}

/// Tests of a program that lists them itself: the first argument of a call, or the first of a pair,
/// as text; or a line of their own in the list that a macro takes.
fn listed(source: &str) -> impl Iterator<Item = String> + '_ {
    let texts = source.split('"').collect::<Vec<_>>();
    let texts = texts.windows(2).filter(|two| two[0].trim_end().ends_with('('));
    let texts: Vec<&str> = texts.map(|two| two[1]).collect();
    let mut in_list = false;
    let lines = source.lines().map(str::trim).filter(move |line| {
        let within = in_list;
        in_list = match *line {
            line if line.contains("cases![") || line.ends_with("trials![") => true,
            line => within && !line.starts_with(']'),
        };
        within && in_list
    });
    texts.into_iter().chain(lines).filter(|name| is_sentence(name)).map(str::to_owned)
}

/// As tests are named here.
fn is_sentence(name: &str) -> bool {
    name.matches('_').count() >= 2
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn every_rule_names_tests_that_there_are() {
    let rows = rows(RULES);
    assert!(rows.len() > 100, "{} rules", rows.len());
    let mistakes = mistakes(RULES);
    assert!(mistakes.is_empty(), "docs/RULES.md:\n{}", mistakes.join("\n"));
}

#[test]
fn a_rule_without_a_test_and_a_test_that_is_not_there_are_found() {
    let table = |tests: &str| format!("| rule | tests |\n|---|---|\n| It holds. | {tests} |\n");
    // One of each kind that there is.
    for there in [
        "gate::tests::revocation_and_go_share_one_lock",
        "host::tests::the_live_link_gate_answers_under_the_lock_of_what_is_known",
        "unit::nested::tests::every_host_has_a_sidecars_name_and_no_generation_has_one",
        "command::a_rehearsal_changes_nothing",
        "swap::a_release_is_no_stop",
        "containment::a_clean_stop_leaves_no_mark",
        "containment::the_suite_under_linux_6_1",
        "systemd::a_unit_that_fails_says_so",
        "systemd::a_restart_of_the_activator_leaves_its_hosts_serving",
        "broker::a_swap_takes_consumers_from_n_to_2n_to_n",
    ] {
        assert_eq!(mistakes(&table(&format!("`{there}`"))), [""; 0]);
        let (program, name) = there.rsplit_once("::").unwrap();
        for other in [format!("{program}::no_{name}"), format!("no::{there}"), name.to_owned()] {
            let found = mistakes(&table(&format!("`{there}` `{other}`")));
            assert_eq!(found, [format!("It holds.\n  there is no test {other}")]);
        }
    }
    assert_eq!(mistakes(&table("none")), ["It holds.\n  names no test"]);
    // A function that no list has is none.
    let unlisted = mistakes(&table("`containment::missing_means` `swap::waits_for_the_go`"));
    assert_eq!(unlisted.len(), 2, "{unlisted:?}");
}
