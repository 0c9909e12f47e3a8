//! What the kubelet runs, and whether its answer can be the verdict.

use k8s_openapi::api::core::v1::HTTPGetAction;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Asked, Findings, LIVENESS, Member, READINESS, STARTUP, timing};
use crate::lint_manifest::asking::{Asking, Call};
use crate::lint_manifest::finding::Level;

const COMMAND: &str = r#"`command: ["/tickmark-probe"]`"#;

/// Each probe by itself.
pub(super) fn calls(member: &Member<'_>, findings: &mut Findings<'_>) {
    for asked in &member.probes {
        let at = |field: &str| format!("{}.{field}", asked.field);
        match &asked.asking {
            Asking::Tickmark(call) => {
                call_of(member, asked, call, findings);
                thresholds(member, asked, Some(call), findings);
            }
            Asking::Gem => {
                gem(member, asked, findings);
                thresholds(member, asked, None, findings);
            }
            Asking::OneWord(word) => findings.of(
                (Level::Error, "probe-command"),
                member,
                &at("exec.command"),
                format!("{word:?} is one word, and so the name of a file that is not there: every call fails"),
                format!("one list item for each word, as in {COMMAND}"),
            ),
            Asking::Http(_) | Asking::Tcp | Asking::Grpc | Asking::Other => {}
        }
    }
}

fn call_of(member: &Member<'_>, asked: &Asked<'_>, call: &Call, findings: &mut Findings<'_>) {
    let path = format!("{}.exec.command", asked.field);
    if let Some(through) = &call.through {
        findings.of(
            (Level::Warning, "probe-through"),
            member,
            &path,
            format!(
                "{through} must be in the image, where the probe needs nothing; it starts first at every call, \
                 and what it sets the worker does not see"
            ),
            COMMAND,
        );
    } else if !call.program.starts_with('/') {
        findings.of(
            (Level::Warning, "probe-through"),
            member,
            &path,
            format!(
                "{:?} is looked for in PATH, and the images have it at /tickmark-probe",
                call.program
            ),
            COMMAND,
        );
    }
    if call.hides_status {
        findings.of(
            (Level::Error, "probe-always-green"),
            member,
            &path,
            "the exit status is not the probe's: it is green whatever the marks say",
            COMMAND,
        );
    }
    let flags = match &call.flags {
        Ok(flags) => flags,
        Err(said) => {
            findings.of(
                (Level::Error, "probe-command"),
                member,
                &path,
                format!("the probe exits 2 at every call: {said}"),
                "correct the flag; `tickmark-probe --help` lists them",
            );
            return;
        }
    };
    if !flags.judges {
        findings.of(
            (Level::Error, "probe-always-green"),
            member,
            &path,
            "--help and --version exit 0 and read no mark: it is always green",
            COMMAND,
        );
    }
    if let (Some(flag), Some(dir)) = (&flags.dir, &member.settings.dir.value)
        && flag.trim_end_matches('/') != dir.trim_end_matches('/')
    {
        let expanded =
            if flag.contains('$') { "; no variable is expanded in a probe's command" } else { "" };
        findings.of(
            (Level::Error, "probe-directory"),
            member,
            &path,
            format!(
                "the probe looks into {flag} and the worker marks in {dir} ({}){expanded}: it says `worker has \
                 not started yet` for ever",
                member.settings.dir.by("the default")
            ),
            "drop --dir and set TICKMARK_DIR on the container, which both read",
        );
    }
    if let (Some(flag), Some(max_age)) = (flags.max_age, member.settings.max_age.value)
        && flag != max_age
    {
        let tick = member.settings.tick.value;
        let level = if tick.is_some_and(|tick| tick.saturating_mul(2) > flag) {
            Level::Error
        } else {
            Level::Warning
        };
        findings.of(
            (level, "probe-max-age"),
            member,
            &path,
            format!(
                "the probe calls a mark stale after {flag} s, and the worker keeps its tick below {max_age} s \
                 ({})",
                member.settings.max_age.by("the default")
            ),
            "drop --max-age and set TICKMARK_MAX_AGE on the container, which both read",
        );
    }
}

/// The gem's probe reads text and takes binary for "not started".
fn gem(member: &Member<'_>, asked: &Asked<'_>, findings: &mut Findings<'_>) {
    let is_tickmark = member.environment.has_ours() && !member.environment.is_the_gems();
    if is_tickmark && member.settings.text.value == Some(false) {
        findings.of(
            (Level::Error, "probe-format"),
            member,
            asked.field,
            "kicks-liveness cannot read binary files, and this worker writes them: it says `worker has not \
             started yet` for ever",
            format!("{COMMAND}, or set TICKMARK_FORMAT=text while the gem's probe must judge it"),
        );
    }
}

fn thresholds(
    member: &Member<'_>,
    asked: &Asked<'_>,
    call: Option<&Call>,
    findings: &mut Findings<'_>,
) {
    if asked.field == LIVENESS && asked.failures() == 1 {
        findings.of(
            (Level::Error, "failure-threshold"),
            member,
            &format!("{LIVENESS}.failureThreshold"),
            "one call that fails restarts the container: an exec that the node was too busy to start in time \
             is enough",
            "3, the default",
        );
    }
    let Some(own) = call.and_then(|call| call.flags.as_ref().ok()).map(|flags| flags.timeout)
    else {
        return;
    };
    let given = asked.probe.timeout_seconds;
    let timeout = super::positive(given, 1);
    if timeout <= own {
        let default = if given.is_some() { "" } else { " (the default)" };
        findings.of(
            (Level::Warning, "probe-timeout"),
            member,
            &format!("{}.timeoutSeconds", asked.field),
            format!(
                "the kubelet gives up after {timeout} s{default}, before the probe's own {own} s: a node that is \
                 slow to start the exec counts as a failure, and a probe that hangs is left behind"
            ),
            format!("timeoutSeconds: {} or more, or a lower --timeout", own + 2),
        );
    }
}

/// Whether the two probes that matter ask for the verdict.
pub(super) fn startup_and_liveness(
    member: &Member<'_>,
    from_elsewhere: bool,
    findings: &mut Findings<'_>,
) {
    if from_elsewhere {
        return;
    }
    let Some(liveness) = member.probe(LIVENESS) else {
        let readiness = member.probe(READINESS).is_some_and(Asked::reads_marks);
        let effect = if readiness {
            "the marks decide on traffic alone, of which a worker has none"
        } else {
            "nobody reads the marks"
        };
        findings.of(
            (Level::Error, "no-liveness-probe"),
            member,
            "",
            format!("no livenessProbe: {effect}, and a worker that stalls stays"),
            format!("a livenessProbe and a startupProbe with {COMMAND}"),
        );
        return;
    };
    let asks = asks_for_the_verdict(member, liveness, findings);
    match member.probe(STARTUP) {
        Some(startup) => {
            let startup_asks = asks_for_the_verdict(member, startup, findings);
            if asks == Some(true) && startup_asks == Some(false) {
                findings.of(
                    (Level::Warning, "startup-probe-other"),
                    member,
                    STARTUP,
                    format!(
                        "the startup probe asks something else: when it passes, the worker has {} s left to \
                         subscribe and mark",
                        timing::budget(liveness)
                    ),
                    "the same action as the livenessProbe's",
                );
            }
        }
        None if asks == Some(true) => no_startup_probe(member, liveness, findings),
        None => {}
    }
}

fn no_startup_probe(member: &Member<'_>, liveness: &Asked<'_>, findings: &mut Findings<'_>) {
    let budget = timing::budget(liveness);
    // Who delays the first call knows about slow starts; it costs time at every restart.
    let (level, delayed) = if liveness.delay() > 0 {
        (Level::Warning, ", of which initialDelaySeconds is lost at every restart")
    } else {
        (Level::Error, "")
    };
    findings.of(
        (level, "no-startup-probe"),
        member,
        LIVENESS,
        format!(
            "no startupProbe: the worker has {budget} s{delayed} from its start to its first mark, or is \
             restarted; a broker that is away for longer at that moment makes a loop of it"
        ),
        format!(
            "a startupProbe with {COMMAND}, periodSeconds: 5, failureThreshold: 24 and timeoutSeconds: 5"
        ),
    );
}

/// Whether a probe's answer is the verdict. `None` where that depends on what is unknown, or where it
/// is none and was just said.
fn asks_for_the_verdict(
    member: &Member<'_>,
    asked: &Asked<'_>,
    findings: &mut Findings<'_>,
) -> Option<bool> {
    let serve = &member.settings.serve.value;
    let (action, http) = match &asked.asking {
        Asking::Tickmark(_) | Asking::Gem => return Some(true),
        // Said already.
        Asking::OneWord(_) => return None,
        Asking::Http(http) => ("httpGet", Some(*http)),
        Asking::Tcp => ("tcpSocket", None),
        Asking::Grpc => ("grpc", None),
        Asking::Other => ("exec", None),
    };
    if let (Some(http), Some(address)) = (http, serve) {
        if let Some(address) = address {
            served(member, asked, http, address, findings);
            return Some(true);
        }
    } else if http.is_some() {
        // Whether it serves comes from elsewhere.
        return None;
    }
    if asked.field == STARTUP {
        return Some(false);
    }
    let path = format!("{}.{action}", asked.field);
    let serves = serve.as_ref().is_some_and(Option::is_some);
    let what = match (action, serves) {
        ("tcpSocket", true) => {
            "a port that accepts says nothing: the answer at /livez is the verdict"
        }
        ("exec", _) => {
            "the command is not the probe: nobody reads the marks, and a worker that stalls stays"
        }
        (_, true) => "it does not ask for /livez, where the verdict is served",
        (_, false) => {
            "nothing of tickmark listens, since TICKMARK_SERVE is not set: whatever answers there, the marks \
             are read by nobody, and a worker that stalls stays"
        }
    };
    let fix =
        if serves { "httpGet with path /livez".to_owned() } else { format!("exec with {COMMAND}") };
    findings.of((Level::Error, "probe-action"), member, &path, what, fix);
    None
}

/// An `httpGet` against what TICKMARK_SERVE says.
fn served(
    member: &Member<'_>,
    asked: &Asked<'_>,
    http: &HTTPGetAction,
    address: &str,
    findings: &mut Findings<'_>,
) {
    let path = http.path.as_deref().unwrap_or("/");
    let asked_path = path.split('?').next().unwrap_or(path);
    if asked_path != "/livez" {
        let (effect, rule) = if ["/metrics", "/explain"].contains(&asked_path) {
            ("answers 200 whatever the verdict is", "probe-always-green")
        } else {
            ("is not found, and so always red", "probe-action")
        };
        findings.of(
            (Level::Error, rule),
            member,
            &format!("{}.httpGet.path", asked.field),
            format!("{path} {effect}"),
            "path: /livez",
        );
    }
    let Ok(address) = address.parse::<std::net::SocketAddr>() else {
        return;
    };
    let serve = member.settings.serve.path();
    if address.ip().is_loopback() {
        findings.of(
            (Level::Error, "serve-address"),
            member,
            &serve,
            format!(
                "the kubelet asks at the pod's address, and {address} is reached from inside alone"
            ),
            format!("TICKMARK_SERVE=0.0.0.0:{}", address.port()),
        );
    }
    let ports = member.container.ports.iter().flatten();
    let port = match &http.port {
        IntOrString::Int(port) => Some(*port),
        IntOrString::String(name) => ports
            .into_iter()
            .find(|port| port.name.as_ref() == Some(name))
            .map(|port| port.container_port),
    };
    if port != Some(i32::from(address.port())) {
        let asked_port = match (&http.port, port) {
            (IntOrString::String(name), None) => {
                format!("{name:?}, which the container has no port of")
            }
            (_, Some(port)) => port.to_string(),
            (IntOrString::Int(port), None) => port.to_string(),
        };
        findings.of(
            (Level::Error, "serve-address"),
            member,
            &format!("{}.httpGet.port", asked.field),
            format!("it asks at port {asked_port}, and tickmark serves on {}", address.port()),
            format!("port: {}", address.port()),
        );
    }
}
