//! Every rule on the manifest that the documents print, changed so that it fires, and changed so that
//! it just does not.

use std::fs;

use super::finding::{Finding, Level};
use super::report::Report;
use super::rules::{Cgroup, Node};
use super::{Options, kernel, lint};
use crate::workspace;

/// The fenced YAML of a document, with what it begins at.
fn printed(document: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(workspace::root().join(document)).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```yaml" {
            let block =
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let block = block.map(|line| format!("{line}\n")).collect();
            blocks.push((format!("{document}:{}", number + 1), block));
        }
    }
    blocks
}

/// What the documents recommend.
fn good() -> String {
    let mut blocks = printed("docs/KUBERNETES.md").into_iter().map(|(_, block)| block);
    blocks.find(|block| block.contains("name: orders-worker")).unwrap()
}

fn report(text: &str, node: Node) -> Report {
    let mut report = Report::default();
    lint("test.yaml", text, node, &mut report).unwrap();
    report
}

fn findings(text: &str) -> Vec<Finding> {
    report(text, Node::default()).findings
}

/// The good manifest with each text replaced, which must be in it once.
fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(good(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from:?} in\n{text}");
        text.replace(from, to)
    })
}

const LIVENESS: &str = "            periodSeconds: 10\n            failureThreshold: 3\n";
const EMPTY_DIR: &str = "emptyDir:\n            medium: Memory\n            sizeLimit: 1Mi";
const MOUNT: &str = "{name: marks, mountPath: /run/tickmark}";
const DIR: &str = "{name: TICKMARK_DIR, value: /run/tickmark}";
const TICK: &str = r#"{name: TICKMARK_TICK, value: "10"}"#;
const MAX_AGE: &str = r#"{name: TICKMARK_MAX_AGE, value: "45"}"#;
const GRACE: &str = r#"{name: TICKMARK_SHUTDOWN_GRACE, value: "60"}"#;
const ALLOWED: &str = "terminationGracePeriodSeconds: 60";
const SPEC: &str = "      securityContext:\n        runAsNonRoot: true";
const STARTUP: &str = "          startupProbe:
            exec:
              command: [\"/tickmark-probe\"]
            periodSeconds: 5
            failureThreshold: 24
            timeoutSeconds: 5
";
const CONTAINERS: &str = "      containers:\n";

/// The liveness probe's part of the manifest from its command on, with another command.
fn liveness(command: &str) -> String {
    let (before, after) = r#"          livenessProbe:
            exec:
              command: ["/tickmark-probe"]"#
        .split_once(r#"["/tickmark-probe"]"#)
        .unwrap();
    format!("{before}{command}{after}")
}

fn with_liveness(command: &str) -> String {
    changed(&[(&liveness(r#"["/tickmark-probe"]"#), &liveness(command))])
}

/// The one finding that a text has, by level, rule and the end of its path.
#[track_caller]
fn expect(text: &str, expected: &[(Level, &str, &str)]) -> Vec<Finding> {
    expect_of(findings(text), expected, text)
}

#[track_caller]
fn expect_of(found: Vec<Finding>, expected: &[(Level, &str, &str)], text: &str) -> Vec<Finding> {
    let matches = found.len() == expected.len()
        && found.iter().zip(expected).all(|(finding, (level, rule, path))| {
            finding.level == *level && finding.rule == *rule && finding.place.path.ends_with(path)
        });
    assert!(matches, "expected {expected:?}, found {found:#?} in\n{text}");
    found
}

#[test]
fn what_the_documents_print_is_clean() {
    let mut manifests = 0;
    let documents = ["README.md", "docs/KUBERNETES.md", "docs/SETUP.md", "images/README.md"];
    for (place, block) in documents.into_iter().flat_map(printed) {
        let block = if block.contains("kind:") { block } else { pod(&place, &block) };
        let report = report(&block, Node::default());
        assert_eq!(report.checked, 1, "{place}");
        assert_eq!(report.findings, [], "{place}");
        manifests += 1;
    }
    assert!(manifests >= 2, "only {manifests} are left");
}

/// A fragment that starts at the containers, as the README's does, in a pod.
fn pod(place: &str, fragment: &str) -> String {
    let indent = fragment.len() - fragment.trim_start().len();
    assert!(fragment.trim_start().starts_with("containers:"), "{place}: what manifest is this?");
    let fragment: String =
        fragment.lines().map(|line| format!("  {}\n", line.get(indent..).unwrap_or(""))).collect();
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: printed}}\nspec:\n{fragment}")
}

#[test]
fn marks_belong_on_memory() {
    let error = (Level::Error, "marks-medium");
    for (volume, path) in [
        ("emptyDir: {}", "volumes[0].emptyDir"),
        ("emptyDir: {medium: HugePages-2Mi}", "volumes[0].emptyDir"),
        ("hostPath: {path: /var/marks}", "volumes[0].hostPath"),
        ("persistentVolumeClaim: {claimName: marks}", "volumes[0].persistentVolumeClaim"),
        ("configMap: {name: marks}", "volumes[0].configMap"),
        ("csi: {driver: example}", "volumes[0].csi"),
    ] {
        expect(&changed(&[(EMPTY_DIR, volume)]), &[(error.0, error.1, path)]);
    }
}

#[test]
fn a_stateful_sets_claim_is_no_memory() {
    let text = changed(&[
        ("kind: Deployment", "kind: StatefulSet"),
        (
            "  replicas: 3",
            "  serviceName: orders\n  volumeClaimTemplates: [{metadata: {name: disk}}]",
        ),
        (MOUNT, "{name: disk, mountPath: /run/tickmark}"),
    ]);
    expect(&text, &[(Level::Error, "marks-medium", "volumeMounts[0]")]);
    let memory = changed(&[
        ("kind: Deployment", "kind: StatefulSet"),
        (
            "  replicas: 3",
            "  serviceName: orders\n  volumeClaimTemplates: [{metadata: {name: disk}}]",
        ),
    ]);
    expect(&memory, &[]);
}

#[test]
fn the_memory_has_a_limit_that_fits() {
    let limit = |limit: &str| changed(&[("            sizeLimit: 1Mi\n", limit)]);
    expect(&limit(""), &[(Level::Warning, "marks-size-limit", "volumes[0].emptyDir")]);
    let limit = |limit: &str, processes: &str| {
        changed(&[
            ("sizeLimit: 1Mi", &format!("sizeLimit: {limit}")),
            (
                TICK,
                &format!(
                    "{TICK}\n            - {{name: TICKMARK_PROCESSES, value: \"{processes}\"}}"
                ),
            ),
        ])
    };
    expect(&limit("28Ki", "1"), &[]);
    expect(&limit("27Ki", "1"), &[(Level::Error, "marks-size-limit", "emptyDir.sizeLimit")]);
    expect(&limit("1Mi", "84"), &[]);
    expect(&limit("1Mi", "85"), &[(Level::Error, "marks-size-limit", "emptyDir.sizeLimit")]);
}

#[test]
fn marks_lie_where_something_is_mounted() {
    let error = |path| [(Level::Error, "marks-mount", path)];
    // The two sides of one typing error.
    expect(&changed(&[(MOUNT, "{name: marks, mountPath: /run/tickmarks}")]), &error("env[0]"));
    let found =
        expect(&changed(&[(DIR, "{name: TICKMARK_DIR, value: /run/ticks}")]), &error("env[0]"));
    assert!(found[0].what.contains("mounts /run/tickmark;"), "{found:#?}");
    assert!(found[0].what.contains("read-only"), "{found:#?}");
    // Without the variable, the default is what counts.
    let found = expect(&changed(&[(&format!("            - {DIR}\n"), "")]), &error("env"));
    assert!(found[0].what.contains("/opt/app/tmp/health (the default)"), "{found:#?}");
    expect(
        &changed(&[
            (&format!("            - {DIR}\n"), ""),
            (MOUNT, "{name: marks, mountPath: /opt/app/tmp/health}"),
        ]),
        &[],
    );
    // Below the mount, and on the runtime's own tmpfs.
    expect(&changed(&[(DIR, "{name: TICKMARK_DIR, value: /run/tickmark/orders}")]), &[]);
    expect(&changed(&[(DIR, "{name: TICKMARK_DIR, value: /dev/shm/marks}")]), &[]);
    expect(
        &changed(&[(DIR, "{name: TICKMARK_DIR, value: run/tickmark}")]),
        &[(Level::Warning, "marks-directory", "env[0]")],
    );
    // A mount inside the mount hides it.
    expect(
        &changed(&[
            (
                MOUNT,
                "{name: marks, mountPath: /run}\n            - {name: disk, mountPath: /run/tickmark}",
            ),
            (
                "        - name: marks\n",
                "        - {name: disk, emptyDir: {}}\n        - name: marks\n",
            ),
        ]),
        &[(Level::Error, "marks-medium", "volumes[0].emptyDir")],
    );
}

#[test]
fn the_mount_is_writable_and_its_volume_there() {
    expect(
        &changed(&[(MOUNT, "{name: marks, mountPath: /run/tickmark, readOnly: true}")]),
        &[(Level::Error, "marks-read-only", "volumeMounts[0].readOnly")],
    );
    expect(&changed(&[(MOUNT, "{name: marks, mountPath: /run/tickmark, readOnly: false}")]), &[]);
    expect(
        &changed(&[(MOUNT, "{name: mark, mountPath: /run/tickmark}")]),
        &[(Level::Error, "marks-volume", "volumeMounts[0]")],
    );
}

#[test]
fn a_tick_is_a_third_of_the_age() {
    let tick = |tick: &str, max_age: &str| {
        changed(&[
            (TICK, &format!("{{name: TICKMARK_TICK, value: \"{tick}\"}}")),
            (MAX_AGE, &format!("{{name: TICKMARK_MAX_AGE, value: \"{max_age}\"}}")),
        ])
    };
    expect(&tick("15", "45"), &[]);
    expect(&tick("16", "45"), &[(Level::Warning, "tick", "env[2]")]);
    expect(&tick("22", "45"), &[(Level::Warning, "tick", "env[2]")]);
    expect(&tick("23", "45"), &[(Level::Error, "tick", "env[2]")]);
    let found = expect(&tick("45", "45"), &[(Level::Error, "tick", "env[2]")]);
    assert!(found[0].what.contains("every 10 s"), "{found:#?}");
    let found = expect(&tick("10", "5"), &[(Level::Error, "tick", "env[2]")]);
    assert!(found[0].what.contains("every 2.5 s"), "{found:#?}");
    // The default tick of 10 s beside an age that is set.
    let text = changed(&[
        (&format!("            - {TICK}\n"), ""),
        (MAX_AGE, "{name: TICKMARK_MAX_AGE, value: \"15\"}"),
    ]);
    expect(&text, &[(Level::Error, "tick", "env[1]")]);
}

#[test]
fn the_grace_covers_what_the_kubelet_allows() {
    let grace = |grace: &str, allowed: &str| {
        changed(&[
            (GRACE, &format!("{{name: TICKMARK_SHUTDOWN_GRACE, value: \"{grace}\"}}")),
            (ALLOWED, &format!("terminationGracePeriodSeconds: {allowed}")),
        ])
    };
    let warning = [(Level::Warning, "shutdown-grace", "env[3]")];
    expect(&grace("60", "30"), &[]);
    expect(&grace("61", "61"), &[]);
    // 60 − 10 + 45: red from 95 s on.
    let found = expect(&grace("60", "95"), &warning);
    assert!(found[0].what.contains("`shutdown grace of 60s is over`"), "{found:#?}");
    let found = expect(&grace("60", "96"), &warning);
    assert!(found[0].what.contains("red from 95 s on"), "{found:#?}");
    // What the kubelet allows without a word.
    let text = changed(&[
        (&format!("      {ALLOWED}\n"), ""),
        (GRACE, "{name: TICKMARK_SHUTDOWN_GRACE, value: \"29\"}"),
    ]);
    let found = expect(&text, &warning);
    assert!(found[0].what.contains("30 s (the default)"), "{found:#?}");
    // A short grace of the probe's own kills the drain: 60 − 10 + 45 + 10 × 2 + 5 = 120.
    let own = |allowed: &str| {
        changed(&[
            (ALLOWED, &format!("terminationGracePeriodSeconds: {allowed}")),
            (LIVENESS, &format!("{LIVENESS}            terminationGracePeriodSeconds: 5\n")),
        ])
    };
    expect(&own("120"), &warning);
    let found = expect(&own("121"), &[(Level::Error, "shutdown-grace", "env[3]")]);
    assert!(found[0].what.contains("after 120 s"), "{found:#?}");
}

#[test]
fn one_failure_is_not_enough() {
    let text = |failures: &str| changed(&[(LIVENESS, &LIVENESS.replace('3', failures))]);
    expect(&text("1"), &[(Level::Error, "failure-threshold", "livenessProbe.failureThreshold")]);
    expect(&text("2"), &[]);
    // Absent is 3.
    expect(&changed(&[(LIVENESS, "            periodSeconds: 10\n")]), &[]);
}

#[test]
fn the_start_has_a_probe_of_its_own() {
    let found =
        expect(&changed(&[(STARTUP, "")]), &[(Level::Error, "no-startup-probe", "livenessProbe")]);
    assert!(found[0].what.contains("30 s"), "{found:#?}");
    let delayed = format!("{LIVENESS}            initialDelaySeconds: 60\n");
    expect(
        &changed(&[(STARTUP, ""), (LIVENESS, &delayed)]),
        &[(Level::Warning, "no-startup-probe", "livenessProbe")],
    );
    // One that asks something else lets the other begin too soon.
    expect(
        &changed(&[(STARTUP, &STARTUP.replace("/tickmark-probe", "/bin/true"))]),
        &[(Level::Warning, "startup-probe-other", "startupProbe")],
    );
}

#[test]
fn the_start_has_time_for_a_tick() {
    let budget = |failures: &str| {
        changed(&[("failureThreshold: 24", &format!("failureThreshold: {failures}"))])
    };
    expect(&budget("2"), &[(Level::Error, "startup-budget", "startupProbe")]);
    expect(&budget("3"), &[]);
}

#[test]
fn somebody_asks() {
    let text = good();
    let (before, _) = text.split_once("          livenessProbe:").unwrap();
    let (_, after) = text.split_once("      volumes:").unwrap();
    let without = format!("{before}      volumes:{after}");
    expect(&without, &[(Level::Error, "no-liveness-probe", "containers[0]")]);
    let ready =
        format!("{}      volumes:{after}", before.replace("startupProbe", "readinessProbe"));
    let found = expect(&ready, &[(Level::Error, "no-liveness-probe", "containers[0]")]);
    assert!(found[0].what.contains("traffic"), "{found:#?}");
}

#[test]
fn the_kubelet_is_more_patient_than_the_probe() {
    let path = "livenessProbe.timeoutSeconds";
    let timeout = |timeout: &str, command: &str| {
        let text = changed(&[(
            &format!("{LIVENESS}            timeoutSeconds: 5\n"),
            &format!("{LIVENESS}{timeout}"),
        )]);
        text.replace(&liveness(r#"["/tickmark-probe"]"#), &liveness(command))
    };
    let plain = r#"["/tickmark-probe"]"#;
    let warning = [(Level::Warning, "probe-timeout", path)];
    let found = expect(&timeout("", plain), &warning);
    assert!(found[0].what.contains("1 s (the default)"), "{found:#?}");
    expect(&timeout("            timeoutSeconds: 3\n", plain), &warning);
    expect(&timeout("            timeoutSeconds: 4\n", plain), &[]);
    expect(
        &timeout("            timeoutSeconds: 4\n", r#"["/tickmark-probe", "--timeout=4"]"#),
        &warning,
    );
    expect(
        &timeout("            timeoutSeconds: 2\n", r#"["/tickmark-probe", "--timeout", "1"]"#),
        &[],
    );
}

#[test]
fn the_command_is_a_list_of_words_that_the_probe_knows() {
    let path = "livenessProbe.exec.command";
    let error = [(Level::Error, "probe-command", path)];
    expect(&with_liveness(r#"["/tickmark-probe --max-age 45"]"#), &error);
    let found = expect(&with_liveness(r#"["/tickmark-probe", "--max_age", "45"]"#), &error);
    assert!(found[0].what.contains("unknown argument --max_age"), "{found:#?}");
    expect(&with_liveness(r#"["/tickmark-probe", "--json"]"#), &[]);
    let green = [(Level::Error, "probe-always-green", path)];
    expect(&with_liveness(r#"["/tickmark-probe", "--version"]"#), &green);
    expect(&with_liveness("[tickmark-probe]"), &[(Level::Warning, "probe-through", path)]);
    expect(&with_liveness("[/usr/local/bin/tickmark-probe]"), &[]);
}

#[test]
fn no_shell_is_between() {
    let path = "livenessProbe.exec.command";
    let through = (Level::Warning, "probe-through", path);
    for command in [
        r#"["sh", "-c", "/tickmark-probe"]"#,
        r#"["/bin/bash", "-ec", "exec /tickmark-probe --max-age 45"]"#,
        r#"["/usr/bin/env", "/tickmark-probe"]"#,
    ] {
        expect(&with_liveness(command), &[through]);
    }
    for command in
        [r#"["sh", "-c", "/tickmark-probe || true"]"#, r#"["sh", "-c", "/tickmark-probe; exit 0"]"#]
    {
        expect(&with_liveness(command), &[(Level::Error, "probe-always-green", path), through]);
    }
    expect(&with_liveness(r#"["sh", "-c", "/tickmark-probe || exit 1"]"#), &[through]);
    let dir = r#"["sh", "-c", "/tickmark-probe --dir /marks"]"#;
    expect(&with_liveness(dir), &[(Level::Error, "probe-directory", path), through]);
}

#[test]
fn both_sides_have_one_directory_and_one_age() {
    let path = "livenessProbe.exec.command";
    let error = [(Level::Error, "probe-directory", path)];
    expect(&with_liveness(r#"["/tickmark-probe", "--dir", "/run/marks"]"#), &error);
    let found = expect(&with_liveness(r#"["/tickmark-probe", "--dir=$(TICKMARK_DIR)"]"#), &error);
    assert!(found[0].what.contains("no variable is expanded"), "{found:#?}");
    expect(&with_liveness(r#"["/tickmark-probe", "--dir=/run/tickmark/"]"#), &[]);
    let age = |level| [(level, "probe-max-age", path)];
    expect(&with_liveness(r#"["/tickmark-probe", "--max-age=60"]"#), &age(Level::Warning));
    expect(&with_liveness(r#"["/tickmark-probe", "--max-age=15"]"#), &age(Level::Error));
    expect(&with_liveness(r#"["/tickmark-probe", "--max-age=45"]"#), &[]);
}

#[test]
fn a_port_is_no_verdict() {
    let exec = liveness(r#"["/tickmark-probe"]"#);
    let other = |action: &str, variable: &str| {
        let action = format!("          livenessProbe:\n            {action}");
        let serve = format!("{TICK}\n            {variable}");
        changed(&[(&exec, &action), (TICK, if variable.is_empty() { TICK } else { &serve })])
    };
    let error = |field| [(Level::Error, "probe-action", field)];
    let served = "- {name: TICKMARK_SERVE, value: \"0.0.0.0:8086\"}";
    for (action, field) in [
        ("tcpSocket: {port: 8086}", "livenessProbe.tcpSocket"),
        ("grpc: {port: 8086}", "livenessProbe.grpc"),
        ("exec: {command: [/bin/true]}", "livenessProbe.exec"),
    ] {
        expect(&other(action, ""), &error(field));
        expect(&other(action, served), &error(field));
    }
    let found =
        expect(&other("httpGet: {port: 8086, path: /livez}", ""), &error("livenessProbe.httpGet"));
    assert!(found[0].what.contains("TICKMARK_SERVE is not set"), "{found:#?}");
    expect(&other("httpGet: {port: 8086, path: /livez}", served), &[]);
    expect(
        &other("httpGet: {port: 8086, path: /healthz}", served),
        &error("livenessProbe.httpGet.path"),
    );
    expect(
        &other("httpGet: {port: 8086, path: /metrics}", served),
        &[(Level::Error, "probe-always-green", "livenessProbe.httpGet.path")],
    );
    let address = |path| [(Level::Error, "serve-address", path)];
    expect(
        &other("httpGet: {port: 8080, path: /livez}", served),
        &address("livenessProbe.httpGet.port"),
    );
    expect(
        &other("httpGet: {port: live, path: /livez}", served),
        &address("livenessProbe.httpGet.port"),
    );
    let inside = "- {name: TICKMARK_SERVE, value: \"127.0.0.1:8086\"}";
    expect(&other("httpGet: {port: 8086, path: /livez}", inside), &address("env[3]"));
    let unknown = "- {name: TICKMARK_SERVE, valueFrom: {configMapKeyRef: {name: c, key: k}}}";
    expect(
        &other("httpGet: {port: 8086, path: /livez}", unknown),
        &[(Level::Note, "unknown-value", "env[3]")],
    );
}

#[test]
fn the_gems_probe_reads_text() {
    let gem = r#"["bundle", "exec", "kicks-liveness"]"#;
    expect(&with_liveness(gem), &[(Level::Error, "probe-format", "livenessProbe")]);
    let text = with_liveness(gem)
        .replace(TICK, &format!("{TICK}\n            - {{name: TICKMARK_FORMAT, value: text}}"));
    expect(&text, &[]);
    // A Ruby worker with the gem's names, and either probe.
    let ruby = good().replace("TICKMARK_", "KICKS_LIVENESS_");
    expect(&ruby, &[]);
    expect(&ruby.replacen("[\"/tickmark-probe\"]", gem, 2), &[]);
}

const SIDECAR: &str = "        - name: sidecar
          volumeMounts:
            - {name: marks, mountPath: /run/tickmark}
          env:
            - {name: TICKMARK_DIR, value: /run/tickmark}
          startupProbe:
            exec: {command: [\"/tickmark-probe\"]}
            timeoutSeconds: 5
          livenessProbe:
            exec: {command: [\"/tickmark-probe\"]}
            timeoutSeconds: 5
";

/// The good manifest with the worker's probes gone and another container in front of it.
fn asked_by(sidecar: &str) -> String {
    let text = good();
    let (before, rest) = text.split_once(STARTUP).unwrap();
    let (_, after) = rest.split_once("      volumes:").unwrap();
    let text = format!("{before}      volumes:{after}");
    text.replace(CONTAINERS, &format!("{CONTAINERS}{sidecar}"))
}

#[test]
fn the_probe_is_in_the_workers_container() {
    let error = [(Level::Error, "probe-elsewhere", "containers[0].startupProbe")];
    let found = expect(&asked_by(SIDECAR), &error);
    assert!(found[0].what.contains("the worker is container worker"), "{found:#?}");
    assert_eq!(found[0].place.container.as_deref(), Some("sidecar"));
    // It only looks; or sees nothing at all.
    let only_looks =
        SIDECAR.replace("mountPath: /run/tickmark", "mountPath: /run/tickmark, readOnly: true");
    expect(&asked_by(&only_looks), &error);
    let blind = SIDECAR
        .replace(
            "          volumeMounts:\n            - {name: marks, mountPath: /run/tickmark}\n",
            "",
        )
        .replace("          env:\n            - {name: TICKMARK_DIR, value: /run/tickmark}\n", "");
    expect(&asked_by(&blind), &error);
    // A sidecar that lasts is an init container to Kubernetes.
    let lasting = format!("      initContainers:\n{SIDECAR}          restartPolicy: Always\n");
    let text = asked_by("").replace(CONTAINERS, &format!("{lasting}{CONTAINERS}"));
    expect(&text, &[(Level::Error, "probe-elsewhere", "initContainers[0].startupProbe")]);
}

#[test]
fn two_workers_have_two_directories() {
    let text = good();
    let (before, worker) = text.split_once(CONTAINERS).unwrap();
    let (worker, after) = worker.split_once("      volumes:").unwrap();
    let two = |second: &str| format!("{before}{CONTAINERS}{worker}{second}      volumes:{after}");
    let second = worker.replace("name: worker", "name: second");
    expect(&two(&second), &[(Level::Error, "marks-shared", "containers[1].volumeMounts[0]")]);
    expect(&two(&second.replace(DIR, "{name: TICKMARK_DIR, value: /run/tickmark/second}")), &[]);
    expect(
        &two(&second.replace(MOUNT, "{name: marks, mountPath: /run/tickmark, subPath: second}")),
        &[],
    );
    // Another container that has nothing to do with marks.
    expect(&two("        - {name: proxy, image: proxy}\n"), &[]);
}

#[test]
fn shared_pids_depend_on_the_kernel() {
    let node = |kernel: &str, cgroup| Node { kernel: self::kernel(kernel), cgroup };
    let (v1, v2) = (Some(Cgroup::V1), Some(Cgroup::V2));
    for field in ["shareProcessNamespace", "hostPID"] {
        let text = changed(&[(SPEC, &format!("      {field}: true\n{SPEC}"))]);
        let check = |node, expected: &[Level]| {
            let expected: Vec<_> =
                expected.iter().map(|&level| (level, "shared-pids", field)).collect();
            expect_of(report(&text, node).findings, &expected, &text)
        };
        let found = check(Node::default(), &[Level::Warning]);
        assert!(found[0].what.contains("from Linux 6.8 on"), "{found:#?}");
        check(node("6.8", None), &[]);
        check(node("7.0.1", v1), &[]);
        check(node("6.1.0-13-amd64", None), &[Level::Warning]);
        check(node("6.1", v2), &[]);
        check(node("6.1", v1), &[Level::Error]);
        check(node("5.4", v2), &[Level::Error]);
        let privileged = text.replace(
            "            allowPrivilegeEscalation: false\n",
            "            privileged: true\n",
        );
        let found = report(&privileged, node("6.1", v2)).findings;
        expect_of(found, &[(Level::Error, "shared-pids", field)], &privileged);
        // What no kernel helps.
        for variable in
            ["{name: TICKMARK_TOPOLOGY, value: strict}", "{name: TICKMARK_FORMAT, value: text}"]
        {
            let text = text.replace(TICK, &format!("{TICK}\n            - {variable}"));
            let found = report(&text, node("6.12", v2)).findings;
            expect_of(found, &[(Level::Error, "shared-pids", field)], &text);
        }
        let off = changed(&[(SPEC, &format!("      {field}: false\n{SPEC}"))]);
        expect(&off, &[]);
    }
}

#[test]
fn names_are_known() {
    let variable =
        |variable: &str| changed(&[(TICK, &format!("{TICK}\n            - {variable}"))]);
    let warning = [(Level::Warning, "unknown-variable", "env[3].name")];
    expect(&variable("{name: TICKMARK_MAXAGE, value: \"45\"}"), &warning);
    let found = expect(&variable("{name: KICKS_LIVENESS_FORMAT, value: text}"), &warning);
    assert!(found[0].fix.contains("TICKMARK_FORMAT"), "{found:#?}");
    expect(&variable("{name: RAILS_ENV, value: production}"), &[]);
    let two = [(Level::Warning, "two-names", "env[3].value")];
    expect(&variable("{name: KICKS_LIVENESS_DIR, value: /marks}"), &two);
    expect(&variable("{name: KICKS_LIVENESS_DIR, value: /run/tickmark}"), &[]);
    expect(
        &variable("{name: TICKMARK_LAUNCH, value: one}"),
        &[(Level::Error, "launch-token", "env[3]")],
    );
    // The last of a name counts.
    expect(&variable("{name: TICKMARK_TICK, value: \"40\"}"), &[(Level::Error, "tick", "env[3]")]);
}

#[test]
fn values_are_values() {
    for (name, value) in [
        ("TICKMARK_TICK", "10s"),
        ("TICKMARK_MAX_AGE", "0"),
        ("TICKMARK_SHUTDOWN_GRACE", "1m"),
        ("TICKMARK_PROCESSES", "0"),
        ("TICKMARK_SLOT", "worker-1"),
        ("TICKMARK_FORMAT", "json"),
        ("TICKMARK_TOPOLOGY", "strictly"),
    ] {
        let text = changed(&[(
            GRACE,
            &format!("{GRACE}\n            - {{name: {name}, value: \"{value}\"}}"),
        )]);
        let found = findings(&text);
        assert!(
            found.iter().any(
                |finding| finding.rule == "bad-value" && finding.place.path.ends_with(".value")
            ),
            "{name}: {found:#?}"
        );
        // A blank one is an unset one.
        expect(&text.replace(&format!("\"{value}\""), "\" \""), &[]);
    }
    // Without quotes the API server takes it for a number.
    let found = expect(
        &changed(&[(TICK, "{name: TICKMARK_TICK, value: 10}")]),
        &[(Level::Error, "schema", "containers[0].env[2].value")],
    );
    assert!(found[0].fix.contains("quotes"), "{found:#?}");
}

#[test]
fn slots_are_below_the_processes() {
    let slots = |processes: &str, slot: &str| {
        let more = format!(
            "{TICK}\n            - {{name: TICKMARK_PROCESSES, value: \"{processes}\"}}\n            - \
             {{name: TICKMARK_SLOT, value: \"{slot}\"}}"
        );
        changed(&[(TICK, &more)])
    };
    expect(&slots("1", "0"), &[]);
    expect(&slots("2", "2"), &[(Level::Error, "slots", "env[4]")]);
    expect(&slots("2", "1"), &[(Level::Warning, "slots", "env[4]")]);
    let alone =
        changed(&[(TICK, &format!("{TICK}\n            - {{name: TICKMARK_SLOT, value: \"1\"}}"))]);
    expect(&alone, &[(Level::Error, "slots", "env[3]")]);
    let supervised = changed(&[(
        TICK,
        &format!("{TICK}\n            - {{name: TICKMARK_PROCESSES, value: \"4\"}}"),
    )]);
    expect(&supervised, &[]);
}

#[test]
fn a_wrapper_sets_nothing_that_both_read() {
    let image = "          image: registry.example/orders-worker:1\n";
    let command = |command: &str| changed(&[(image, &format!("{image}          {command}\n"))]);
    expect(
        &command(r#"command: ["sh", "-c", "TICKMARK_DIR=/marks exec /worker"]"#),
        &[(Level::Error, "set-in-wrapper", "command[2]")],
    );
    expect(
        &command(r#"args: ["-c", "export KICKS_LIVENESS_MAX_AGE=60; /worker"]"#),
        &[(Level::Error, "set-in-wrapper", "args[1]")],
    );
    expect(&command(r#"command: ["sh", "-c", "TICKMARK_SLOT=1 exec /worker"]"#), &[]);
}

#[test]
fn what_comes_from_elsewhere_is_not_guessed() {
    let note = (Level::Note, "unknown-value", "env[0]");
    for value in [
        "valueFrom: {configMapKeyRef: {name: settings, key: dir}}",
        "valueFrom: {fieldRef: {fieldPath: metadata.name}}",
        "value: /run/$(POD)",
    ] {
        // The mount would be wrong, were it known.
        let text = changed(&[
            (DIR, &format!("{{name: TICKMARK_DIR, {value}}}")),
            (MOUNT, "{name: marks, mountPath: /elsewhere}"),
        ]);
        expect(&text, &[note]);
    }
    let from = "          envFrom: [{configMapRef: {name: settings}}]\n          env:\n";
    let text = changed(&[("          env:\n", from), (&format!("            - {DIR}\n"), "")]);
    expect(&text, &[(Level::Note, "unknown-value", "envFrom")]);
    // With this prefix it cannot be one of ours.
    let text = text.replace("{configMapRef", "{prefix: APP_, configMapRef");
    expect(&text, &[(Level::Error, "marks-mount", "env")]);
}

#[test]
fn a_field_that_is_none_is_named() {
    let found = expect(
        &changed(&[("          livenessProbe:", "          livenesProbe:")]),
        &[
            (Level::Error, "no-liveness-probe", "containers[0]"),
            (Level::Warning, "schema", "containers[0].livenesProbe"),
        ],
    );
    assert!(found[1].place.line > found[0].place.line, "{found:#?}");
}

#[test]
fn a_finding_says_where_it_is() {
    let text = format!(
        "# first\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\n---\n{}",
        changed(&[(MAX_AGE, "{name: TICKMARK_MAX_AGE, value: 45s}")])
    );
    let report = report(&text, Node::default());
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
    let place = &report.findings[0].place;
    let line = text.lines().position(|line| line.contains("45s")).unwrap() + 1;
    assert_eq!((place.file.as_str(), place.document, place.line), ("test.yaml", 2, line as u64));
    assert_eq!((place.kind.as_str(), place.name.as_str()), ("Deployment", "orders-worker"));
    assert_eq!(place.container.as_deref(), Some("worker"));
    assert_eq!(place.path, "spec.template.spec.containers[0].env[1].value");
    assert_eq!(report.skipped.len(), 1);
    assert_eq!(report.skipped[0].what, "Service/s");
    let said = report.text(false);
    assert!(said.contains("error[bad-value] test.yaml:2 line "), "{said}");
    assert!(said.contains("Deployment/orders-worker, container worker\n"), "{said}");
    assert!(said.contains("skipped test.yaml:1 Service/s"), "{said}");
    assert!(!said.contains('\x1b') && report.text(true).contains('\x1b'));
    let json = report.json();
    assert_eq!(json["errors"], 1);
    assert_eq!(json["findings"][0]["path"], "spec.template.spec.containers[0].env[1].value");
    assert_eq!(json["findings"][0]["level"], "error");
    assert_eq!(json["skipped"][0]["object"], "Service/s");
}

#[test]
fn every_kind_with_a_pod_is_looked_at() {
    let text = changed(&[(LIVENESS, &LIVENESS.replace('3', "1"))]);
    let (_, pod) = text.split_once("    spec:\n").unwrap();
    let pod: String = pod.lines().map(|line| format!("{line}\n")).collect();
    let indented = |by: usize| -> String {
        pod.lines()
            .map(|line| format!("{}{}\n", " ".repeat(by), line.get(6..).unwrap_or("")))
            .collect()
    };
    let templated = |version: &str, kind: &str| {
        format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: w}}\nspec:\n  template:\n    spec:\n{}",
            indented(6)
        )
    };
    let mut objects = vec![
        (
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: w}}\nspec:\n{}", indented(2)),
            "spec.",
        ),
        (
            format!(
                "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: w}}\nspec:\n  schedule: \"@daily\"\n  \
                 jobTemplate:\n    spec:\n      template:\n        spec:\n{}",
                indented(10)
            ),
            "spec.jobTemplate.spec.template.spec.",
        ),
    ];
    for (version, kind) in [
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ReplicaSet"),
        ("batch/v1", "Job"),
    ] {
        let mut object = templated(version, kind);
        if version == "apps/v1" {
            object = object.replace("  template:", "  selector: {}\n  template:");
        }
        objects.push((object, "spec.template.spec."));
    }
    let mut list = "apiVersion: v1\nkind: List\nitems:\n".to_owned();
    for (object, prefix) in &objects {
        let path = format!("{prefix}containers[0].livenessProbe.failureThreshold");
        let found = expect(object, &[(Level::Error, "failure-threshold", &path)]);
        assert_eq!(found[0].place.path, path);
        for (number, line) in object.lines().enumerate() {
            list += &format!("{}{line}\n", if number == 0 { "- " } else { "  " });
        }
    }
    let found = findings(&list);
    assert_eq!(found.len(), objects.len(), "{found:#?}");
    assert!(found[1].place.path.starts_with("items[1].spec"), "{found:#?}");
}

#[test]
fn what_is_no_worker_is_named_and_skipped() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n---\napiVersion: argoproj.io/v1\nkind: Rollout\n\
                metadata: {name: r}\n---\napiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: old}\n---\n\
                patch: true\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {}\n  \
                template:\n    spec:\n      containers: [{name: web}]\n";
    let report = report(text, Node::default());
    assert_eq!((report.checked, report.findings.len()), (0, 0));
    let skipped: Vec<_> = report
        .skipped
        .iter()
        .chain(&report.unrelated)
        .map(|skipped| (skipped.document, skipped.what.as_str()))
        .collect();
    assert_eq!(
        skipped,
        [
            (1, "ConfigMap/c"),
            (3, "Rollout/r"),
            (4, "Deployment/old"),
            (5, "an object without a kind"),
            (6, "Deployment/web"),
        ]
    );
    assert!(report.text(false).contains("nothing was checked"));
}

#[test]
fn anchors_empty_documents_and_windows_line_ends_change_nothing() {
    let anchored = changed(&[
        (STARTUP, &STARTUP.replace("            exec:\n", "            exec: &ask\n")),
        (&liveness(r#"["/tickmark-probe"]"#), "          livenessProbe:\n            exec: *ask"),
    ]);
    expect(&anchored, &[]);
    expect(&format!("---\n---\n{}---\n# nothing\n", good()), &[]);
    expect(&good().replace('\n', "\r\n"), &[]);
    let merged = "x: &probe {exec: {command: [/tickmark-probe]}, timeoutSeconds: 5}\napiVersion: v1\nkind: Pod\n\
        metadata: {name: m}\nspec:\n  containers:\n  - name: w\n    volumeMounts: [{name: m, mountPath: /opt/app}]\n    \
        startupProbe: {<<: *probe, periodSeconds: 5, failureThreshold: 24}\n    livenessProbe: {<<: *probe}\n  \
        volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]\n";
    expect(merged, &[(Level::Warning, "schema", "x")]);
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_place() {
    let fails = |text: &str| lint("f", text, Node::default(), &mut Report::default()).unwrap_err();
    assert!(fails("a: b: c\n").starts_with("line 1, column 5: "));
    assert!(fails("- a\n").contains("no Kubernetes object"));
    assert!(fails("just text\n").contains("no Kubernetes object"));
    let template = changed(&[("registry.example/orders-worker:1", "\"{{ .Values.image }}\"")]);
    let said = fails(&template);
    assert!(said.contains("helm template"), "{said}");
    assert!(said.starts_with(&format!(
        "line {}: ",
        template.lines().position(|l| l.contains(".Values")).unwrap() + 1
    )));
    let broken = changed(&[(
        "          image: registry.example/orders-worker:1\n",
        "{{- include \"image\" . }}\n",
    )]);
    assert!(fails(&broken).contains("helm template"));
}

#[test]
fn the_command_line() {
    let options =
        |words: &[&str]| super::options(lexopt::Parser::from_args(words)).map_err(|f| f.status());
    let Options { files, node, strict, json } =
        options(&["--kernel", "6.1", "a.yaml", "--strict", "-", "--cgroup=v1", "--json"])
            .unwrap()
            .unwrap();
    assert_eq!(files, ["a.yaml", "-"]);
    assert_eq!((node.kernel, node.cgroup), (Some((6, 1)), Some(Cgroup::V1)));
    assert!(strict && json);
    assert!(options(&["--help"]).unwrap().is_none());
    for wrong in [&[][..], &["--kernel", "six", "f"], &["--cgroup", "2", "f"], &["--nonsense", "f"]]
    {
        assert_eq!(options(wrong).unwrap_err(), 2, "{wrong:?}");
    }
}
