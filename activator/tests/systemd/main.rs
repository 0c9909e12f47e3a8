//! Unit rows, the sidecars of nested rows and the activator's own units under a real
//! `systemd --user` (Debian 12's 252), in a guest with a whole cgroup v2.
//!
//! Needs root, `TICKMARK_UML` (a script that runs a program under Linux 6.1), systemd and
//! dbus-daemon. Skipped, with the reason in one line, without them; with `TICKMARK_NO_SKIPS` that
//! fails.

mod guest;
mod nested;
mod restart;
mod units;

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

const UML: &str = "TICKMARK_UML";

/// A guest hides /tmp and /run, and has this read-only.
const VISIBLE_TO_A_GUEST: &str = "/var/tmp";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if guest::is_this() {
        // One manager, and one set of units.
        arguments.test_threads = Some(1);
        let _manager = guest::start_manager();
        let trials =
            [units::trials(), nested::trials(), restart::trials()].into_iter().flatten().collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    let trial = Trial::ignorable_test("units_under_a_real_systemd", in_guest);
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

fn in_guest() -> Result<Completion, Failed> {
    if !rustix::process::geteuid().is_root() {
        return skip("needs root".to_owned());
    }
    for program in [guest::SYSTEMD, guest::DBUS] {
        if !Path::new(program).exists() {
            return skip(format!("needs {program}"));
        }
    }
    let Some(uml) = env::var_os(UML) else {
        return skip(format!(
            "{UML} is not set: it names a script that runs a program under Linux 6.1"
        ));
    };
    let uml = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(uml);
    let visible = tempfile::Builder::new().prefix("tickmark.").tempdir_in(VISIBLE_TO_A_GUEST)?;
    let tests = visible.path().join("systemd");
    let activator = Path::new(env!("CARGO_BIN_EXE_tickmark-activator"));
    // Which cargo builds with the tests.
    let http = activator.with_file_name("examples").join("http");
    for (from, name) in [
        (&env::current_exe()?, "systemd"),
        (&activator.to_owned(), "tickmark-activator"),
        (&http, "http"),
    ] {
        fs::copy(from, visible.path().join(name)).map_err(|error| {
            format!(
                "{}: {error}: it is built by `cargo test` without --test, or by \
                     `cargo build -p tickmark-activator --examples`",
                from.display()
            )
        })?;
    }
    // The guest is a tree of processes; in a PID namespace none of them outlives this test.
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"])
        .arg(uml)
        .args(["env", "--unset=TICKMARK_NO_SKIPS", guest::SETTING])
        .arg(&tests)
        .arg("--color=never")
        .current_dir("/")
        .env("UML_TIMEOUT_S", "900")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said.contains("test result: ok") {
        let result = said.lines().find(|line| line.starts_with("test result"));
        eprintln!("Linux 6.1 and systemd: {}", result.unwrap_or_default());
        return Ok(Completion::Completed);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}\n{said}\n{errors}", output.status).into())
}

/// What a test that cannot run here answers.
fn skip(reason: String) -> Result<Completion, Failed> {
    if env::var_os("TICKMARK_NO_SKIPS").is_some() {
        return Err(format!("skipped: {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}
