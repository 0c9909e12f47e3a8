//! The suite again inside a real Linux 6.1, whose cgroup v2 has every controller.

use std::env;
use std::fs;
use std::process::Command;

use libtest_mimic::{Completion, Trial};

use crate::{site, skip};

const UML: &str = "TICKMARK_UML";
const GUEST: &str = "TICKMARK_CONTAINMENT_GUEST";

/// A guest hides /tmp and /run, and has this read-only.
const VISIBLE_TO_A_GUEST: &str = "/var/tmp";

/// Whether a guest can be run, or this is one.
pub(crate) fn is_set() -> bool {
    env::var_os(UML).is_some()
}

pub(crate) fn is_this() -> bool {
    env::var_os(GUEST).is_some()
}

pub(crate) fn trial() -> Trial {
    Trial::ignorable_test("the_suite_under_linux_6_1", || {
        if is_this() {
            return Ok(Completion::ignored_with("this is the guest"));
        }
        if let Some(reason) = site::missing_means() {
            return skip(reason);
        }
        let Some(uml) = env::var_os(UML) else {
            return skip(format!(
                "{UML} is not set: it names a script that runs a program under Linux 6.1"
            ));
        };
        let uml = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(uml);
        let visible =
            tempfile::Builder::new().prefix("tickmark.").tempdir_in(VISIBLE_TO_A_GUEST)?;
        let tests = visible.path().join("containment");
        fs::copy(env::current_exe()?, &tests)?;
        // The guest is a tree of processes; in a PID namespace none of them outlives this test.
        let output = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"])
            .arg(uml)
            .args(["env", "--unset=TICKMARK_NO_SKIPS", &format!("--unset={UML}")])
            .arg(format!("{GUEST}=1"))
            .arg(&tests)
            .args(["--test-threads=2", "--color=never"])
            .current_dir("/")
            .env("UML_TIMEOUT_S", "900")
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if output.status.success() && said.contains("test result: ok") {
            for line in said.lines().filter(|line| line.contains("µs") || line.contains("result"))
            {
                eprintln!("Linux 6.1: {line}");
            }
            return Ok(Completion::Completed);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}\n{said}\n{errors}", output.status).into())
    })
}
