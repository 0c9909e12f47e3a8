//! In which image a printed command runs, and what is expected of it there. A command that no line here
//! knows fails: whoever prints a new kind of command says here where it belongs.

use std::fs;
use std::process::{self, Stdio};
use std::sync::Arc;

use crate::container::{Answer, Container, Running};
use crate::documents::{Command, Printed};
use crate::engine::run;
use crate::image::Image;
use crate::site::{Site, repository};

/// Containers in which the documents' commands make sense, started when the first one asks.
pub(crate) struct Places {
    site: Arc<Site>,
    /// The probe's image, alone.
    probe: Image,
    /// The probe beside a healthy worker.
    worker: Container,
    /// The same on somebody else's image, with a shell; the names are the documents'.
    theirs: Image,
    /// The lapin worker under its supervisor: without a broker, one slot would end.
    lapin: Container,
}

impl Places {
    pub(crate) fn open(site: &Arc<Site>, demo: &Image, theirs: Image, lapin: &Image) -> Self {
        let running = Running::as_documented;
        let worker = Container::start(site, demo, running(), &demo.entrypoint());
        let started = worker.exec_until_success(&["/tickmark-probe".to_owned()]);
        assert_eq!(
            started.status,
            Some(0),
            "the worker does not start: {started:?}\n{}",
            worker.log()
        );
        let supervised = [lapin.entrypoint(), vec!["--slots".to_owned(), "2".to_owned()]].concat();
        let lapin = Container::start(site, lapin, running(), &supervised);
        Self { site: Arc::clone(site), probe: site.probe_image(), worker, theirs, lapin }
    }

    /// Runs what a document prints, and says why it is not as the document means it.
    pub(crate) fn check(&self, printed: &Printed) -> Result<(), String> {
        let words = match &printed.command {
            Command::List(words) => return self.exec(words),
            Command::Line(line) => words(line),
        };
        let all: Vec<&str> = words.iter().map(String::as_str).collect();
        match all.as_slice() {
            ["kubectl", "exec"] => Ok(()), // A name in a sentence, and no call.
            ["kubectl", "exec", rest @ ..] => match rest.iter().position(|word| *word == "--") {
                Some(at) => self.exec(words.get(at + 3..).unwrap_or_default()),
                None => Err("no -- before the command: kubectl deprecates that".to_owned()),
            },
            // The rest of kubectl is for a cluster.
            [
                "kubectl",
                "get" | "apply" | "logs" | "describe" | "rollout" | "config" | "create" | "delete",
                ..,
            ] => Ok(()),
            ["cargo", "xtask", rest @ ..] => self.xtask(rest),
            ["cargo", "run", rest @ ..] => package(rest),
            ["cargo", rest @ ..] => cargo(rest),
            ["buildah" | "docker" | "podman", "bud" | "build", rest @ ..] => containerfile(rest),
            ["docker" | "podman", "load", ..]
            | ["ctr", "images", "import", ..]
            | ["skopeo", "copy", ..] => Ok(()), // The cases beside this one do what they stand for.
            // For a machine without a kubelet; activator/tests has the units under a real systemd.
            ["install", .., "/etc/systemd/system/"] => installs(&all),
            ["systemctl", "daemon-reload"] => Ok(()),
            ["systemctl", "enable", .., unit] => unit_of(unit),
            ["helm", "template", ..] => Ok(()), // Somebody else's program, into one of ours.
            ["tickmark-probe" | "/tickmark-probe", ..] => self.exec(&words),
            _ if all.iter().any(|word| *word == "your-worker" || *word == "tickmark-probe") => {
                self.in_a_shell(&all.join(" "))
            }
            _ => Err(unplaced("a line for a shell")),
        }
    }

    /// A command for a container: of a manifest, or after `kubectl exec … --`.
    fn exec(&self, words: &[String]) -> Result<(), String> {
        match words.first().map(String::as_str) {
            Some("/tickmark-probe" | "tickmark-probe") => {
                let mut words = words.to_vec();
                "/tickmark-probe".clone_into(&mut words[0]);
                self.probe(&words)
            }
            // Of the gem, in an image with Ruby: worker/tests/beside_ruby.rs has one.
            Some("bundle") if words.iter().any(|word| word == "kicks-liveness") => Ok(()),
            Some("kill") => self.kill(words),
            Some("/worker") => expect_status(&self.lapin.exec(words), 0).and_then(|()| {
                if self.lapin.is_running() { Ok(()) } else { Err("the worker ended".to_owned()) }
            }),
            _ => Err(unplaced("a command in a container")),
        }
    }

    /// Green beside a healthy worker, and red where there is none.
    fn probe(&self, words: &[String]) -> Result<(), String> {
        let answer = self.worker.exec(words);
        let healthy = if words.iter().any(|word| word == "--json") {
            serde_json::from_str::<serde_json::Value>(&answer.said)
                .is_ok_and(|said| said["healthy"] == true)
        } else {
            answer.said.contains("1 process(es) healthy")
        };
        expect_status(&answer, 0)?;
        let judges = !words.iter().any(|word| word == "--version" || word == "--help");
        if judges && !healthy {
            return Err(format!("beside a healthy worker it says {:?}", answer.said));
        }
        let alone = Container::once(&self.site, &self.probe, Running::as_documented(), words);
        expect_status(&alone, i32::from(judges))?;
        if judges && !alone.said.contains("worker has not started yet") {
            return Err(format!("without a worker it says {:?}", alone.said));
        }
        Ok(())
    }

    /// It ends a worker in an image that has it.
    fn kill(&self, words: &[String]) -> Result<(), String> {
        let main = ["/bin/your-worker".to_owned()];
        let container = Container::start(&self.site, &self.theirs, Running::as_documented(), &main);
        let probe = ["/tickmark-probe".to_owned()];
        expect_status(&container.exec_until_success(&probe), 0)?;
        expect_status(&container.exec(words), 0)?;
        for _ in 0..100 {
            if !container.is_running() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Err("the worker is still there after 10 s".to_owned())
    }

    /// What is typed beside a worker that was started by hand.
    fn in_a_shell(&self, line: &str) -> Result<(), String> {
        let shell = |line: String| ["/bin/sh", "-c", &line].map(str::to_owned);
        let directory = line
            .split(' ')
            .find_map(|word| word.strip_prefix("TICKMARK_DIR="))
            .ok_or_else(|| unplaced("a worker or a probe without TICKMARK_DIR"))?;
        let worker = line.strip_suffix(" &").filter(|line| line.contains("your-worker"));
        let started = worker.map_or_else(
            || format!("TICKMARK_DIR={directory} exec your-worker"),
            ToOwned::to_owned,
        );
        let container =
            Container::start(&self.site, &self.theirs, Running::as_documented(), &shell(started));
        let asked = match worker {
            Some(_) => format!("TICKMARK_DIR={directory} tickmark-probe"),
            None => line.to_owned(),
        };
        let answer = container.exec_until_success(&shell(asked));
        if answer.said.contains("healthy") {
            Ok(())
        } else {
            Err(format!("it says {:?}", answer.said))
        }
    }

    /// Of our own commands: that there is such a one, with such a flag.
    fn xtask(&self, words: &[&str]) -> Result<(), String> {
        let [command, rest @ ..] = words else {
            return Err("cargo xtask needs a command".to_owned());
        };
        if command.starts_with('-') {
            return Ok(());
        }
        let help = process::Command::new(&self.site.xtask)
            .args([command, "--help"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&help.stdout).into_owned();
        if !help.status.success() {
            return Err(format!(
                "there is no such command: {}",
                String::from_utf8_lossy(&help.stderr)
            ));
        }
        let unknown = rest.iter().find(|word| {
            let flag = word.split('=').next().unwrap_or(word);
            flag.starts_with("--") && !said.contains(flag)
        });
        unknown.map_or(Ok(()), |flag| Err(format!("cargo xtask {command} has no {flag}")))
    }
}

fn unplaced(what: &str) -> String {
    format!(
        "{what} that this test cannot place: say in tests/images/commands.rs in which image it runs and \
         what is expected of it"
    )
}

fn expect_status(answer: &Answer, status: i32) -> Result<(), String> {
    if answer.status == Some(status) {
        return Ok(());
    }
    Err(format!("expected exit {status}, got {:?} and {:?}", answer.status, answer.said))
}

/// The words of a line, without quotes.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(|word| word.trim_matches(['\'', '"']).to_owned()).collect()
}

/// `cargo run --package X`: there is such a package.
fn package(rest: &[&str]) -> Result<(), String> {
    let Some(at) = rest.iter().position(|word| ["--package", "-p"].contains(word)) else {
        return Err(unplaced("cargo run without --package"));
    };
    let Some(package) = rest.get(at + 1) else {
        return Err("--package lacks its value".to_owned());
    };
    let metadata = run(process::Command::new(env!("CARGO")).current_dir(repository()).args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]));
    if metadata.contains(&format!("\"name\":\"{package}\"")) {
        Ok(())
    } else {
        Err(format!("there is no package {package}"))
    }
}

/// Units to install are there.
fn installs(words: &[&str]) -> Result<(), String> {
    let Some(pattern) = words.iter().find(|word| word.ends_with(".service")) else {
        return Err("no unit to install".to_owned());
    };
    let (directory, pattern) = pattern.rsplit_once('/').unwrap_or((".", pattern));
    let (before, after) = pattern.split_once('*').unwrap_or((pattern, ""));
    let units =
        fs::read_dir(repository().join(directory)).map_err(|e| format!("{directory}: {e}"))?;
    let fits = |name: &str| name.starts_with(before) && name.ends_with(after);
    if units.flatten().any(|unit| fits(&unit.file_name().to_string_lossy())) {
        Ok(())
    } else {
        Err(format!("there is no {directory}/{pattern}"))
    }
}

fn unit_of(unit: &str) -> Result<(), String> {
    let file = format!("activator/systemd/{unit}.service");
    if repository().join(&file).is_file() { Ok(()) } else { Err(format!("there is no {file}")) }
}

/// A build names a file that is there; each of those is built by a case.
fn containerfile(rest: &[&str]) -> Result<(), String> {
    let at = rest.iter().position(|word| ["-f", "--file"].contains(word));
    let Some(file) = at.and_then(|at| rest.get(at + 1)) else {
        return Err("a build without -f".to_owned());
    };
    if repository().join(file).is_file() { Ok(()) } else { Err(format!("there is no {file}")) }
}

/// Cargo's own commands name packages, tests and benches of the workspace.
fn cargo(rest: &[&str]) -> Result<(), String> {
    match rest {
        ["test" | "bench" | "build" | "doc", rest @ ..] => {
            if rest.iter().any(|word| ["--package", "-p"].contains(word)) {
                package(rest)?;
            }
            if let Some(at) = rest.iter().position(|word| *word == "--test") {
                let name = rest.get(at + 1).copied().unwrap_or_default();
                let file = format!("{name}.rs");
                let crates = ["worker", "protocol", "probe-static", "xtask", "activator"];
                let found = crates.iter().any(|c| {
                    fs::exists(repository().join(c).join("tests").join(&file)).unwrap_or(false)
                });
                if !found {
                    return Err(format!("there is no test {name}"));
                }
            }
            Ok(())
        }
        ["+nightly" | "fuzz" | "install" | "add" | "vendor", ..] => Ok(()),
        _ => Err(unplaced("a cargo command")),
    }
}
