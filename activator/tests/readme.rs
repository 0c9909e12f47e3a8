//! Walks the README's tour of the activator as it stands there, without root and, where there is a
//! cgroup v2 for it, as root; and compares the two places that show the state diagram.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const README: &str = include_str!("../../README.md");
const ACTIVATOR: &str = env!("CARGO_BIN_EXE_tickmark-activator");

/// The blocks of the section, with their languages.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let (_, section) = README.split_once("\n## Without Kubernetes\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    section.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap()).collect()
}

/// The tour as one script: each command is shown with its status, and the daemon is waited for.
fn tour(cgroup: Option<&Path>) -> String {
    let scripts: Vec<&str> = blocks()
        .into_iter()
        .filter(|(language, _)| *language == "sh")
        .map(|(_, text)| text)
        .collect();
    let (build, tour) = scripts.split_first().unwrap();
    // What has built this test has built them.
    assert_eq!(*build, "cargo build --release --package tickmark-activator --bins --examples");
    let (root, tour) = tour.split_last().unwrap();
    let mut script = String::from("set -m\n");
    for block in tour {
        if block.starts_with("tickmark-activator run 2> ")
            && let Some(cgroup) = cgroup
        {
            assert!(root.contains("/sys/fs/cgroup/tickmark"));
            script += &root.replace("/sys/fs/cgroup/tickmark", cgroup.to_str().unwrap());
            script.push('\n');
        }
        script += block;
        script.push('\n');
        if block.contains("tickmark-activator run ") {
            script += "for i in $(seq 300); do tickmark-activator status >/dev/null 2>&1 && break; \
                sleep 0.1; done\n";
        }
        if block.contains("/bin/false") {
            script = script
                .replace("deploy web /bin/false\n", "deploy web /bin/false; echo \"exit $?\"\n");
        }
    }
    script
}

fn walk(cgroup: Option<&Path>) -> String {
    let target = Path::new(ACTIVATOR).parent().unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("target")).unwrap();
    std::os::unix::fs::symlink(target, directory.path().join("target/release")).unwrap();
    let out = Command::new("bash")
        .args(["-c", &tour(cgroup)])
        .current_dir(directory.path())
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let log = fs::read_dir(directory.path())
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("daemon.log")).ok())
        .collect::<String>();
    let all = format!("{}\n{}\n{log}", said(&out.stdout), said(&out.stderr));
    let stdout = said(&out.stdout);
    // What the README shows came out as it shows it.
    let shown = blocks().into_iter().find(|(language, _)| *language == "text").unwrap().1;
    assert!(stdout.contains(shown), "{all}");
    for line in [
        "nothing changed, generation 2 of build v2 serves: it died: ",
        "exit 1\n",
        "generation 4 of build v1 serves",
        "mail: generation 1 of build queue serves",
        "consuming ",
        "/hello from build v1, generation 4",
        "web: generation 5 of build v1 serves",
        "web: stopped; nothing runs",
        "mail: stopped; nothing runs",
    ] {
        assert!(stdout.contains(line), "{line}\n{all}");
    }
    let alone = "the leader's exit is the only proof";
    assert_eq!(log.contains(alone), cgroup.is_none(), "{all}");
    all
}

#[test]
fn the_tour_of_the_readme_without_cgroups() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl is not installed");
    }
    walk(None);
}

#[test]
fn the_tour_of_the_readme_as_root_with_cgroups() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl is not installed");
    }
    if !rustix::process::geteuid().is_root() {
        return skip("needs root");
    }
    let Some(cgroups) = cgroup2() else {
        return skip("there is no cgroup v2");
    };
    let cgroup = cgroups.join(format!("tickmark-tour-{}", std::process::id()));
    if fs::create_dir(&cgroup).is_err() {
        return skip("no cgroup can be made here");
    }
    walk(Some(&cgroup));
    // Everything is gone: what is left is empty directories.
    remove(&cgroup);
}

fn remove(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            remove(&entry.path());
        }
    }
    fs::remove_dir(cgroup).unwrap_or_else(|error| panic!("{}: {error}", cgroup.display()));
}

/// Where the cgroup v2 is mounted.
fn cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let found = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    found.into_iter().find(|fields| fields[2] == "cgroup2").map(|fields| fields[1].into())
}

fn skip(why: &str) {
    eprintln!("skipped: {why}");
    assert_ne!(std::env::var("TICKMARK_NO_SKIPS").as_deref(), Ok("1"), "skipped: {why}");
}

/// An arrow of a diagram, without its layout.
fn arrow(line: &str) -> Option<(&str, &str)> {
    let (from, to) = line.split_once(" --> ")?;
    Some((from.trim(), to.trim()))
}

#[test]
fn the_document_and_the_state_machine_show_one_diagram() {
    let source = include_str!("../src/swap.rs").lines();
    let source: Vec<String> = source
        .filter_map(|line| arrow(line.strip_prefix("//! ")?))
        .map(|(from, to)| {
            let (to, when) = to.split_once(':').unwrap();
            format!("{from} --> {to}: {}", when.trim())
        })
        .collect();
    let document = include_str!("../../docs/ACTIVATOR.md").lines();
    let document: Vec<String> = document
        .filter_map(|line| arrow(line.strip_prefix("    ")?))
        .map(|(from, to)| format!("{from} --> {to}"))
        .collect();
    assert!(source.len() > 50, "{}", source.len());
    assert_eq!(document, source);
}

#[test]
fn the_configuration_that_the_document_shows_is_one() {
    let document = include_str!("../../docs/ACTIVATOR.md");
    let (_, text) = document.split_once("```toml\n").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    tickmark_activator::config::Config::parse(text).unwrap();
}
