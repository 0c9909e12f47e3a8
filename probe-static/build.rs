//! Link arguments of the static binary. They are given only for a musl target with the feature
//! `static`, so that the library and its tests build everywhere with the defaults.
//! What each of them saves is measured in README.md by `cargo xtask probe --size-steps`.

use std::env;

/// Each is one step of the table in README.md, under the name that `--size-steps` leaves out.
const STEPS: [(&str, &[&str]); 7] = [
    ("noseparate-code", &["-z", "noseparate-code"]),
    // Constants beside the code, in its segment: no header and no gap for them alone.
    ("no-rosegment", &["--no-rosegment"]),
    ("no-build-id", &["--build-id=none"]),
    ("norelro", &["-z", "norelro"]),
    ("no-eh-frame-hdr", &["--no-eh-frame-hdr"]),
    ("discard-eh-frame", &["--script=discard.ld"]),
    ("icf", &["--icf=all"]),
];

/// Not a step: without it the program would start in musl's code, which calls a `main` of C.
const START: (&str, &[&str]) = ("start", &["--entry=tickmark_start"]);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=discard.ld");
    println!("cargo:rerun-if-env-changed=TICKMARK_PROBE_LEAVE_OUT");
    let musl = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl");
    if !musl || env::var_os("CARGO_FEATURE_STATIC").is_none() {
        return;
    }
    // The program starts itself and relocates nothing, which musl's start code would do.
    assert!(
        env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|f| f.contains("relocation-model=static")),
        "the probe needs -Crelocation-model=static: build it by `cargo xtask probe`"
    );
    // A compiler that drives the linker wants the linker's own arguments wrapped.
    let direct = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("lld"));
    let directory = env!("CARGO_MANIFEST_DIR");
    let left_out = env::var("TICKMARK_PROBE_LEAVE_OUT").unwrap_or_default();
    for (step, arguments) in [START].into_iter().chain(STEPS) {
        if step == left_out {
            continue;
        }
        if direct {
            for argument in arguments {
                // The linker runs in the workspace's root, whatever builds this.
                let argument = argument.replace("--script=", &format!("--script={directory}/"));
                println!("cargo:rustc-link-arg-bins={argument}");
            }
        } else {
            let arguments =
                arguments.join(",").replace("--script=", &format!("--script={directory}/"));
            println!("cargo:rustc-link-arg-bins=-Wl,{arguments}");
        }
    }
}
