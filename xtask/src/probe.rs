//! `cargo xtask probe`: builds the static probe, reads it back, and writes it to `dist/` with a
//! checksum. Also the table of what each size step saves.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use crate::elf;
use crate::outcome::{Doing as _, Failure};
use crate::workspace::{self, build_directory, dist};

const HELP: &str = "\
cargo xtask probe [FLAG]...

Builds the static probe into dist/tickmark-probe-<architecture>, with dist/SHA256SUMS, and fails
unless each file is static, stripped, without an executable stack or a segment that is writable and
executable, and at most 24 KiB.

  --target T     x86_64-unknown-linux-musl or aarch64-unknown-linux-musl, or only the
                 architecture; may be repeated [both]
  --builder B    auto, cross or cargo [auto: cross where it and a container engine are, else cargo,
                 which needs nothing but what rustup fetches]
  --size-steps   instead: build for each target with each step left out, and print what it saved
";

/// Flags of the compiler that are not a cargo profile's. The name is the step's.
const COMPILER_STEPS: [(&str, &str); 3] = [
    ("relocation-model=static", "-Crelocation-model=static"),
    ("force-unwind-tables=no", "-Cforce-unwind-tables=no"),
    // A table of addresses is larger than the comparisons it replaces.
    ("jump-tables=no", "-Cjump-tables=no"),
];

/// No step: the probe has no C library, nor start code of one.
const NO_LIBC: &str = "-Clink-self-contained=no";

/// Passes of the code generator that make code faster and larger, turned off, and some that make it
/// smaller, turned on. Each only chooses among equal programs. They are the pinned compiler's.
const LLVM_STEPS: [&str; 5] = [
    "-disable-machine-licm",
    "-apply-ext-tsp-for-size",
    "-enable-pre=0",
    "-pre-RA-sched=list-ilp",
    "-enable-machine-outliner=always",
];
const LLVM_STEPS_X86_64: [&str; 1] = ["-x86-disable-avoid-SFB"];
const LLVM_STEPS_AARCH64: [&str; 3] =
    ["-homogeneous-prolog-epilog", "-enable-misched=0", "-enable-post-misched=0"];

/// The program lies within a megabyte, so that one instruction makes an address.
const TINY: (&str, &str) = ("code-model=tiny", "-Ccode-model=tiny");

/// What [`elf::trim`] does.
const TRIM: &str = "trim";

/// Steps of the profile: the name, and the variable that undoes it.
const PROFILE_STEPS: [(&str, &str, &str); 5] = [
    ("opt-level=z", "CARGO_PROFILE_PROBE_OPT_LEVEL", "3"),
    ("lto=fat", "CARGO_PROFILE_PROBE_LTO", "off"),
    ("panic=abort", "CARGO_PROFILE_PROBE_PANIC", "unwind"),
    ("codegen-units=1", "CARGO_PROFILE_PROBE_CODEGEN_UNITS", "16"),
    ("strip=symbols", "CARGO_PROFILE_PROBE_STRIP", "none"),
];

/// Steps that `probe-static/build.rs` knows by these names.
const LINK_STEPS: [&str; 7] = [
    "noseparate-code",
    "no-rosegment",
    "no-build-id",
    "norelro",
    "no-eh-frame-hdr",
    "discard-eh-frame",
    "icf",
];

/// A target the probe is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    X86_64,
    Aarch64,
}

impl Target {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|target| name == target.triple() || name == target.architecture())
    }

    /// The one that this machine runs, if it is one of them.
    pub(crate) fn host() -> Option<Self> {
        Self::named(std::env::consts::ARCH)
    }

    pub(crate) const fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-musl",
            Self::Aarch64 => "aarch64-unknown-linux-musl",
        }
    }

    pub(crate) const fn architecture(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As an OCI image names it.
    pub(crate) const fn goarch(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Where [`build_all`] leaves the probe for this target.
    pub(crate) fn file(self) -> PathBuf {
        dist().join(format!("tickmark-probe-{}", self.architecture()))
    }

    fn variable(self, suffix: &str) -> String {
        let triple = self.triple().replace('-', "_").to_uppercase();
        format!("CARGO_TARGET_{triple}_{suffix}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builder {
    Cross,
    Cargo,
}

impl Builder {
    /// cross where it can work, else cargo; says which and why.
    pub(crate) fn auto() -> Self {
        let why_not = if workspace::on_path("cross").is_none() {
            "cross is not on PATH"
        } else if !container_engine_responds() {
            "neither docker nor podman responds"
        } else {
            println!("builder: cross");
            return Self::Cross;
        };
        println!("builder: cargo ({why_not})");
        Self::Cargo
    }
}

/// A client alone is not enough: it needs its daemon.
fn container_engine_responds() -> bool {
    ["docker", "podman"].into_iter().any(|engine| {
        Command::new(engine)
            .arg("info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let mut targets = Vec::new();
    let mut builder = None;
    let mut steps = false;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("target") => {
                let name = arguments.value()?.string()?;
                let target = Target::named(&name).ok_or_else(|| {
                    let known = Target::ALL.map(Target::triple).join(" or ");
                    Failure::usage(format!("--target {name}: expected {known}"))
                })?;
                if !targets.contains(&target) {
                    targets.push(target);
                }
            }
            Long("builder") => {
                builder = match arguments.value()?.string()?.as_str() {
                    "auto" => None,
                    "cross" => Some(Builder::Cross),
                    "cargo" => Some(Builder::Cargo),
                    other => {
                        return Err(Failure::usage(format!(
                            "--builder {other}: expected auto, cross or cargo"
                        )));
                    }
                };
            }
            Long("size-steps") => steps = true,
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    if targets.is_empty() {
        targets = Target::ALL.to_vec();
    }
    if steps {
        return size_steps(&targets);
    }
    build_all(&targets, builder.unwrap_or_else(Builder::auto))
}

/// Builds and writes to `dist/` the probe for each of `targets`, and fails if one is not fit for a
/// release.
pub(crate) fn build_all(targets: &[Target], builder: Builder) -> Result<(), Failure> {
    let defects = build_for_use(targets, builder)?;
    if defects.is_empty() { Ok(()) } else { Err(Failure::failed(defects.join("\n"))) }
}

/// As [`build_all`], for a caller that only wants to run it: returns what a release would not pass.
pub(crate) fn build_for_use(targets: &[Target], builder: Builder) -> Result<Vec<String>, Failure> {
    fs::create_dir_all(dist()).doing("make dist/")?;
    let mut bad = Vec::new();
    for &target in targets {
        println!("building for {}", target.triple());
        let built = build(target, builder)?;
        let mut file = fs::read(&built).doing(format_args!("read {}", built.display()))?;
        elf::trim(&mut file).doing(format_args!("trim {}", built.display()))?;
        let destination = target.file();
        let writing = format!("write {}", destination.display());
        // Removed first: a probe that is running just now would refuse to be overwritten.
        let _absent = fs::remove_file(&destination);
        fs::write(&destination, &file).doing(&writing)?;
        fs::set_permissions(&destination, Permissions::from_mode(0o755)).doing(&writing)?;
        println!(
            "  {}: {} bytes (limit {}, aim {})",
            destination.display(),
            file.len(),
            elf::LIMIT,
            elf::AIM
        );
        let defects = elf::defects(&file);
        if defects.is_empty() {
            println!("  static, stripped, no executable stack, no segment writable and executable");
        } else {
            bad.push(format!("{}: {}", destination.display(), defects.join("; ")));
        }
    }
    write_checksums()?;
    Ok(bad)
}

/// Of every probe that is in `dist/`, so that building one target leaves the other's line in place.
fn write_checksums() -> Result<(), Failure> {
    let mut sums = String::new();
    for target in Target::ALL {
        let Ok(file) = fs::read(target.file()) else {
            continue;
        };
        let name = format!("tickmark-probe-{}", target.architecture());
        let _infallible = writeln!(sums, "{}  {name}", hex(&Sha256::digest(&file)));
    }
    fs::write(dist().join("SHA256SUMS"), sums).doing("write dist/SHA256SUMS")
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The compiler's flags for any small static program.
pub(crate) fn static_flags() -> impl Iterator<Item = &'static str> {
    COMPILER_STEPS.into_iter().map(|(_, flag)| flag)
}

/// The size steps that are flags of the compiler: each name and its flag.
fn compiler_steps(target: Target) -> Vec<(&'static str, String)> {
    let of_target = match target {
        Target::X86_64 => &LLVM_STEPS_X86_64[..],
        Target::Aarch64 => &LLVM_STEPS_AARCH64,
    };
    let tiny = (target == Target::Aarch64).then_some(TINY);
    let llvm = LLVM_STEPS.iter().chain(of_target);
    COMPILER_STEPS
        .into_iter()
        .chain(tiny)
        .map(|(step, flag)| (step, flag.to_owned()))
        .chain(llvm.map(|flag| (*flag, format!("-Cllvm-args={flag}"))))
        .collect()
}

/// The compiler's flags for the probe, without the step that is left out.
pub(crate) fn compiler_flags(target: Target, left_out: Option<&str>) -> String {
    let mut flags = NO_LIBC.to_owned();
    for (step, flag) in compiler_steps(target) {
        if left_out != Some(step) {
            flags.push(' ');
            flags.push_str(&flag);
        }
    }
    flags
}

/// What the linker is given for any small static program.
pub(crate) fn link_arguments() -> impl Iterator<Item = &'static str> {
    ["-lc", "-znoseparate-code", "--build-id=none", "-znorelro", "--no-eh-frame-hdr"].into_iter()
}

/// Builds for one target and returns the file.
fn build(target: Target, builder: Builder) -> Result<PathBuf, Failure> {
    let (mut command, file) = cargo_build(target, builder, None);
    workspace::run(&mut command)?;
    Ok(file)
}

/// The command that builds for one target, and the file it makes.
fn cargo_build(target: Target, builder: Builder, left_out: Option<&str>) -> (Command, PathBuf) {
    let directory = build_directory("probe");
    let mut command = match builder {
        Builder::Cargo => workspace::cargo(),
        Builder::Cross => Command::new("cross"),
    };
    command
        .current_dir(workspace::root())
        .args(["build", "--quiet", "--package", "tickmark-probe"])
        .args(["--bin", "tickmark-probe", "--features", "static"])
        .args(["--profile", "probe", "--target", target.triple()])
        .arg("--target-dir")
        .arg(&directory)
        // These would take the place of the target's own flags.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env(target.variable("LINKER"), "rust-lld")
        .env(target.variable("RUSTFLAGS"), compiler_flags(target, left_out))
        .env_remove("TICKMARK_PROBE_LEAVE_OUT");
    if let Some(step) = left_out {
        command.env("TICKMARK_PROBE_LEAVE_OUT", step);
        for (name, variable, undone) in PROFILE_STEPS {
            if name == step {
                command.env(variable, undone);
            }
        }
    }
    let file = directory.join(target.triple()).join("probe").join("tickmark-probe");
    (command, file)
}

/// Prints, as a table of the README, the size without each step. The steps overlap, so what they
/// save apart does not add up to what they save together.
fn size_steps(targets: &[Target]) -> Result<(), Failure> {
    let size = |target, left_out| -> Result<usize, Failure> {
        let (mut command, built) = cargo_build(target, Builder::Cargo, left_out);
        let output = command.output().doing("run cargo")?;
        if !output.status.success() {
            return Err(Failure::failed(String::from_utf8_lossy(&output.stderr)));
        }
        let reading = format!("read {}", built.display());
        let mut file = fs::read(&built).doing(&reading)?;
        if left_out != Some(TRIM) {
            elf::trim(&mut file).doing(&reading)?;
        }
        Ok(file.len())
    };
    for &target in targets {
        let compiler_steps = compiler_steps(target);
        let steps = PROFILE_STEPS
            .iter()
            .map(|step| step.0)
            .chain(compiler_steps.iter().map(|step| step.0))
            .chain(LINK_STEPS)
            .chain([TRIM]);
        let whole = size(target, None)?;
        println!("| {} | bytes | the step saves |", target.triple());
        println!("|---|---:|---:|");
        println!("| all steps | {whole} | |");
        for step in steps {
            // Two of them are no mere savings: a program without std has nothing to unwind with,
            // and only fat LTO drops the parts of `core` that ask for it.
            let Ok(without) = size(target, Some(step)) else {
                println!("| without `{step}` | does not link | |");
                continue;
            };
            let saved = without.cast_signed() - whole.cast_signed();
            println!("| without `{step}` | {without} | {saved} |");
        }
        println!();
    }
    Ok(())
}
