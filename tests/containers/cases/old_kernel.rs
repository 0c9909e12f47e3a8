//! The whole suite again, inside a real Linux 6.1 with a cgroup v2, where only the cgroup's id
//! is unique. `TICKMARK_UML` names the script that runs a program there.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};

use crate::site::{Binaries, GUEST, directory, in_guest, missing_means};
use crate::skip;

/// A guest has one processor and is slow, so there are several, each with a share of the cases.
pub(crate) const GUESTS: usize = 2;

/// The share of this guest, as `0/2`: those cases whose number leaves this remainder.
const SHARE: &str = "TICKMARK_OLD_KERNEL_SHARE";

/// Whether the case of this number is for this program: all are, outside a guest.
pub(crate) fn is_ours(number: usize) -> bool {
    let share = env::var(SHARE).ok();
    let share = share.as_deref().and_then(|share| share.split_once('/'));
    let Some((remainder, guests)) = share else {
        return true;
    };
    let (remainder, guests): (usize, usize) =
        (remainder.parse().expect("a share"), guests.parse().expect("a share"));
    number % guests == remainder
}

pub(crate) fn trials(binaries: &Binaries) -> Vec<Trial> {
    (0..GUESTS).map(|share| trial(binaries, share)).collect()
}

fn trial(binaries: &Binaries, share: usize) -> Trial {
    let binaries: Vec<(&'static str, PathBuf)> =
        binaries.found.iter().map(|(_, variable, path)| (*variable, path.clone())).collect();
    let name = format!("Linux 6.1: the suite in a guest, {} of {GUESTS}", share + 1);
    Trial::ignorable_test(name, move || {
        if in_guest() {
            return Ok(Completion::ignored_with("this is the guest"));
        }
        if let Some(reason) = missing_means() {
            return skip(reason);
        }
        let Some(uml) = env::var_os("TICKMARK_UML") else {
            return skip(
                "TICKMARK_UML is not set: it names a script that runs a program under Linux 6.1"
                    .to_owned(),
            );
        };
        if let Some((variable, path)) = binaries.iter().find(|(_, path)| !path.is_file()) {
            let reason = format!("{variable} names no static build: {}", path.display());
            return skip(reason);
        }
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        run_in_guest(&repository.join(uml), &binaries, share).map(|()| Completion::Completed)
    })
}

fn run_in_guest(
    uml: &Path,
    binaries: &[(&'static str, PathBuf)],
    share: usize,
) -> Result<(), Failed> {
    // A build may have put the binaries where the guest sees nothing.
    let visible = tempfile::Builder::new().prefix("guest.").tempdir_in(directory()?)?;
    let place = |from: &Path, name: &str| -> io::Result<PathBuf> {
        let to = visible.path().join(name);
        fs::copy(from, &to)?;
        Ok(to)
    };
    let mut settings: Vec<OsString> =
        vec![format!("{GUEST}=1").into(), format!("{SHARE}={share}/{GUESTS}").into()];
    for (variable, path) in binaries {
        let mut setting = OsString::from(format!("{variable}="));
        setting.push(place(path, variable)?);
        settings.push(setting);
    }
    if let Ok(restarts) = env::var("TICKMARK_RESTARTS") {
        settings.push(format!("TICKMARK_RESTARTS={restarts}").into());
    }
    let tests = place(&env::current_exe()?, "containers")?;
    // A part of the cases' names: `cargo xtask verify --kernels` wants no more.
    let only = env::var("TICKMARK_OLD_KERNEL_ONLY").ok();
    if let Some(only) = &only {
        settings.push(format!("TICKMARK_OLD_KERNEL_ONLY={only}").into());
    }
    // The guest is a tree of processes; in a PID namespace none of them outlives this test.
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"])
        .arg(uml)
        .args(["env", "--unset=TICKMARK_NO_SKIPS"])
        .args(settings)
        .arg(tests)
        .args(["--test-threads=4", "--color=never"])
        .args(only)
        .current_dir("/")
        .env("UML_TIMEOUT_S", "1800")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said.contains("test result: ok") {
        for line in said
            .lines()
            .filter(|line| line.contains("told apart") || line.contains("evidence-row: "))
        {
            eprintln!("Linux 6.1: {line}");
        }
        let result = said.lines().find(|line| line.starts_with("test result"));
        eprintln!("Linux 6.1: {}", result.unwrap_or_default());
        Ok(())
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}\n{said}\n{errors}", output.status).into())
    }
}
