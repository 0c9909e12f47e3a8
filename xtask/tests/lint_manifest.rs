//! `cargo xtask lint-manifest` as a script meets it: exit status, standard input, what goes where.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const GOOD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: w}
spec:
  containers:
  - name: w
    env: [{name: TICKMARK_DIR, value: /marks}]
    volumeMounts: [{name: m, mountPath: /marks}]
    startupProbe: {exec: {command: [/tickmark-probe]}, failureThreshold: 12, timeoutSeconds: 5}
    livenessProbe: {exec: {command: [/tickmark-probe]}, timeoutSeconds: 5}
  volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
";

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("lint-manifest")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn expect(output: &Output, status: i32, stdout: &str, stderr: &str) {
    let said = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{said:?}");
    assert!(said.0.contains(stdout) && said.1.contains(stderr), "{said:?}");
    assert!(!said.0.contains('\x1b'), "colour in a pipe: {said:?}");
}

#[test]
fn the_status_is_for_scripts() {
    expect(&run(&["-"], GOOD), 0, "1 workload checked: 0 errors, 0 warnings, 0 notes", "");
    let error = GOOD.replace("/marks", "/mark").replace("mountPath: /mark}", "mountPath: /marks}");
    expect(
        &run(&["-"], &error),
        1,
        "error[marks-mount] stdin:1 line 7: Pod/w, container w",
        "1 finding",
    );
    let warning = GOOD.replace(", sizeLimit: 1Mi", "");
    expect(&run(&["-"], &warning), 0, "warning[marks-size-limit]", "");
    expect(&run(&["--strict", "-"], &warning), 1, "warning[marks-size-limit]", "1 finding");
    expect(&run(&["-"], ""), 0, "nothing was checked", "");
    expect(&run(&["--nonsense"], ""), 2, "", "--nonsense");
    expect(
        &run(&["no/such/file.yaml"], ""),
        2,
        "",
        "no/such/file.yaml: cannot be read: No such file",
    );
    expect(&run(&["-"], "a: b: c\n"), 2, "", "stdin: line 1, column 5: ");
    // One that cannot be read hides no finding of another.
    expect(&run(&["no/such/file.yaml", "-"], &error), 2, "error[marks-mount]", "no/such/file.yaml");
}

#[test]
fn programs_get_one_object() {
    let output = run(&["--json", "-"], &GOOD.replace(", sizeLimit: 1Mi", ""));
    assert_eq!(output.status.code(), Some(0));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["checked"], &said["warnings"]), (&1.into(), &1.into()));
    assert_eq!(said["findings"][0]["rule"], "marks-size-limit");
    assert_eq!(said["findings"][0]["line"], 11);
}
