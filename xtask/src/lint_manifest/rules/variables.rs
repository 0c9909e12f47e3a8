//! The variables: names that nothing reads, values that mean the default, and what the manifest does
//! not say.

use super::{Findings, Member};
use crate::lint_manifest::environment::{KNOWN, Setting};
use crate::lint_manifest::finding::Level;

/// What both sides read: set in a wrapper script, the probe does not see it.
const SHARED: [&str; 6] = [
    "TICKMARK_DIR",
    "TICKMARK_MAX_AGE",
    "TICKMARK_TOPOLOGY",
    "TICKMARK_FORMAT",
    "KICKS_LIVENESS_DIR",
    "KICKS_LIVENESS_MAX_AGE",
];

pub(super) fn check(member: &Member<'_>, findings: &mut Findings<'_>) {
    names(member, findings);
    values(member, findings);
    both_names(member, findings);
    launch(member, findings);
    wrapper(member, findings);
    slots(member, findings);
    unknown(member, findings);
}

fn names(member: &Member<'_>, findings: &mut Findings<'_>) {
    for variable in member.environment.ours() {
        let name = variable.name.as_str();
        if KNOWN.contains(&name) {
            continue;
        }
        let own = name.strip_prefix("KICKS_LIVENESS_").map(|rest| format!("TICKMARK_{rest}"));
        let fix = match own.filter(|own| KNOWN.contains(&own.as_str())) {
            Some(own) => format!("the gem has no such setting; tickmark's is {own}"),
            None => format!("one of {}", KNOWN.join(", ")),
        };
        findings.of(
            (Level::Warning, "unknown-variable"),
            member,
            &format!("env[{}].name", variable.index),
            format!("nothing reads {name}: the default counts"),
            fix,
        );
    }
}

fn values(member: &Member<'_>, findings: &mut Findings<'_>) {
    let settings = &member.settings;
    let seconds = "a whole number of seconds from 1, without a unit";
    let mut invalid = |found: Option<(&str, String, String)>, default: &str, expected: &str| {
        let Some((name, path, text)) = found else {
            return;
        };
        findings.of(
            (Level::Error, "bad-value"),
            member,
            &format!("{path}.value"),
            format!("{text:?} is no value for {name}, and without a word {default}"),
            expected.to_owned(),
        );
    };
    invalid(given(&settings.max_age), "the default of 45 s counts", seconds);
    invalid(given(&settings.tick), "the default of 10 s counts", seconds);
    invalid(given(&settings.shutdown_grace), "the default of 60 s counts", seconds);
    invalid(given(&settings.processes), "1 process counts", "a whole number from 1 to 4096");
    invalid(given(&settings.text), "binary counts", "binary or text");
    invalid(given(&settings.strict), "auto counts", "auto or strict");
    if let Some((name, path, text)) = given(&settings.slot) {
        findings.of(
            (Level::Error, "bad-value"),
            member,
            &format!("{path}.value"),
            format!(
                "{text:?} is no value for {name}: the worker logs an ERROR and publishes nothing"
            ),
            "a whole number from 0 to 4095",
        );
    }
}

/// The variable, where it is and its text, of a setting whose text is none.
fn given<T>(setting: &Setting<T>) -> Option<(&str, String, String)> {
    let text = setting.invalid.clone()?;
    Some((setting.by(""), setting.path(), text))
}

/// While one side may be the gem and the other tickmark, each reads its own name.
fn both_names(member: &Member<'_>, findings: &mut Findings<'_>) {
    for own in KNOWN.iter().filter_map(|name| name.strip_prefix("KICKS_LIVENESS_")) {
        let (gems, ours) = (format!("KICKS_LIVENESS_{own}"), format!("TICKMARK_{own}"));
        let listed = |name: &str| {
            let variable = member.environment.listed(name)?;
            let value = variable.value.as_deref().filter(|value| !value.trim().is_empty())?;
            Some((value, variable.index))
        };
        if let (Some((gems_value, index)), Some((value, _))) = (listed(&gems), listed(&ours))
            && gems_value.trim() != value.trim()
        {
            findings.of(
                (Level::Warning, "two-names"),
                member,
                &format!("env[{index}].value"),
                format!(
                    "tickmark takes {value:?} from {ours}, and whatever of the gem is still there takes \
                     {gems_value:?} from {gems}"
                ),
                format!("the same value for both, or only {ours} where nothing of the gem is left"),
            );
        }
    }
}

fn launch(member: &Member<'_>, findings: &mut Findings<'_>) {
    if let Some(variable) = member.environment.listed("TICKMARK_LAUNCH") {
        findings.of(
            (Level::Error, "launch-token"),
            member,
            &format!("env[{}]", variable.index),
            "a token from the manifest is the same after every restart of the container, and it decides alone: \
             a restarted container takes over the marks of the one before, and its startup probe passes early",
            "remove it; a container of its own needs none",
        );
    }
}

fn wrapper(member: &Member<'_>, findings: &mut Findings<'_>) {
    for (field, words) in [("command", &member.container.command), ("args", &member.container.args)]
    {
        for (index, word) in words.iter().flatten().enumerate() {
            let Some(name) = SHARED.iter().find(|name| word.contains(&format!("{name}="))) else {
                continue;
            };
            findings.of(
                (Level::Error, "set-in-wrapper"),
                member,
                &format!("{field}[{index}]"),
                format!(
                    "{name} is set for the worker alone: an exec probe gets the container's environment, so \
                     the two sides differ"
                ),
                format!("set {name} under env"),
            );
        }
    }
}

fn slots(member: &Member<'_>, findings: &mut Findings<'_>) {
    let settings = &member.settings;
    let (Some(processes), Some(Some(slot))) = (settings.processes.value, settings.slot.value)
    else {
        return;
    };
    let path = settings.slot.path();
    if slot >= processes {
        findings.of(
            (Level::Error, "slots"),
            member,
            &path,
            format!(
                "slot {slot} is not below the {processes} process(es) of {}: the worker logs an ERROR and \
                 publishes nothing",
                settings.processes.by("the default")
            ),
            "slots count from 0; in containers of their own, leave both unset",
        );
    } else if processes > 1 {
        findings.of(
            (Level::Warning, "slots"),
            member,
            &path,
            format!(
                "the manifest gives every process of the container slot {slot}: unless the supervisor sets \
                 another for each, only the first publishes and the probe names the other {} as missing for \
                 ever",
                processes - 1
            ),
            "leave TICKMARK_SLOT to the supervisor; where there is none, set neither and run one process",
        );
    }
}

fn unknown(member: &Member<'_>, findings: &mut Findings<'_>) {
    for variable in member.environment.ours() {
        if variable.value.is_none() && variable.name != "TICKMARK_LAUNCH" {
            findings.of(
                (Level::Note, "unknown-value"),
                member,
                &format!("env[{}]", variable.index),
                format!(
                    "{} comes from elsewhere: what depends on it was not checked",
                    variable.name
                ),
                "check it where it is set, or write the value here",
            );
        }
    }
    if member.environment.may_come_from_elsewhere("TICKMARK_DIR")
        || member.environment.may_come_from_elsewhere("TICKMARK_MAX_AGE")
    {
        findings.of(
            (Level::Note, "unknown-value"),
            member,
            "envFrom",
            "variables that are not listed under env may be set here: what depends on them was not checked",
            "check them where they are set, or list them under env, which wins",
        );
    }
}
