//! Manifests: the one that the documents print, with what a scenario changes laid over it. The rule
//! is that of a strategic merge: mappings member by member, lists of named things by name, null
//! removes, everything else takes the place of what was there.

use serde_json::{Value, json};

use crate::answer::{Doing as _, Stop};
use crate::clock::Pace;

/// As docs/KUBERNETES.md prints them.
pub(crate) const WORKER: &str = include_str!("../manifests/worker.yaml");
const WORKER_HTTP_GET: &str = include_str!("../manifests/worker-http-get.yaml");
const SHORT: &str = include_str!("../manifests/short.yaml");

/// How the kubelet asks: a manifest for each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    manifest: &'static str,
    /// Whether the worker's own process answers it.
    pub(crate) is_served: bool,
}

impl Probe {
    pub(crate) const EXEC: Probe = Probe { name: "exec", manifest: WORKER, is_served: false };
    pub(crate) const HTTP_GET: Probe =
        Probe { name: "http-get", manifest: WORKER_HTTP_GET, is_served: true };
    const ALL: [Probe; 2] = [Probe::EXEC, Probe::HTTP_GET];

    pub(crate) fn names() -> Vec<&'static str> {
        Probe::ALL.iter().map(|probe| probe.name).collect()
    }

    pub(crate) fn named(name: &str) -> Option<Probe> {
        Probe::ALL.into_iter().find(|probe| probe.name == name)
    }
}

impl Default for Probe {
    fn default() -> Probe {
        Probe::EXEC
    }
}

pub(crate) fn parse(yaml: &str) -> Result<Value, Stop> {
    serde_saphyr::from_str(yaml).doing("read a manifest")
}

/// The recommended manifest for a kind of probe, at a pace.
///
/// # Panics
/// Where the repository's own manifests are no YAML: a test reads them.
pub(crate) fn worker(pace: Pace, probe: Probe) -> Value {
    let mut worker = parse(probe.manifest).expect("worker.yaml");
    if pace == Pace::Short {
        merge(&mut worker, &parse(SHORT).expect("short.yaml"));
    }
    worker
}

/// What a pod of a scenario has beside what it is about.
pub(crate) fn pod() -> Result<Value, Stop> {
    parse(include_str!("../manifests/scenario.yaml"))
}

/// Lays `patch` over `base`.
pub(crate) fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, change) in patch {
                if change.is_null() {
                    base.remove(key);
                } else {
                    merge(base.entry(key.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Array(base), Value::Array(patch)) if are_named(base) && are_named(patch) => {
            for change in patch {
                match base.iter_mut().find(|one| one["name"] == change["name"]) {
                    Some(one) => merge(one, change),
                    None => base.push(change.clone()),
                }
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

fn are_named(list: &[Value]) -> bool {
    !list.is_empty() && list.iter().all(|one| one["name"].is_string())
}

/// Gives a deployment a name of its own, and the labels by which it is found and deleted.
pub(crate) fn rename(deployment: &mut Value, app: &str, run: &str) {
    deployment["metadata"]["name"] = json!(app);
    label(&mut deployment["metadata"], app, run);
    deployment["spec"]["selector"]["matchLabels"] = json!({ "app": app });
    label(&mut deployment["spec"]["template"]["metadata"], app, run);
}

/// The label of everything that one run made.
pub(crate) const RUN: &str = "tickmark.verify/run";

/// The label of what one scenario made.
pub(crate) const SCENARIO: &str = "tickmark.verify/scenario";

pub(crate) fn label(metadata: &mut Value, app: &str, run: &str) {
    metadata["labels"] = json!({ "app": app, RUN: run });
    // `s07-…`
    let number: String = app.chars().skip(1).take_while(char::is_ascii_digit).collect();
    if let Ok(number) = number.parse::<u8>() {
        metadata["labels"][SCENARIO] = json!(number.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_print_what_the_scenarios_apply() {
        let document = include_str!("../../../docs/KUBERNETES.md");
        let printed = document.split("```yaml\n").skip(1);
        let mut printed = printed.map(|rest| rest.split("```").next().unwrap());
        for (file, manifest) in [("worker.yaml", WORKER), ("worker-http-get.yaml", WORKER_HTTP_GET)]
        {
            let printed = printed.next().unwrap();
            assert_eq!(
                printed, manifest,
                "docs/KUBERNETES.md and tests/k8s/manifests/{file} differ"
            );
        }
    }

    /// Else what one was watched to do would say nothing of the other.
    #[test]
    fn the_manifests_differ_in_how_the_kubelet_asks() {
        let [mut exec, http_get] =
            [Probe::EXEC, Probe::HTTP_GET].map(|probe| worker(Pace::Full, probe));
        let patch = "spec: {template: {spec: {containers: [{name: worker,
            env: [{name: TICKMARK_SERVE, value: '0.0.0.0:8086'}],
            ports: [{name: livez, containerPort: 8086}],
            startupProbe: {exec: null, httpGet: {path: /livez, port: livez}},
            livenessProbe: {exec: null, httpGet: {path: /livez, port: livez}}}]}}}";
        assert_ne!(exec, http_get);
        merge(&mut exec, &parse(patch).unwrap());
        assert_eq!(exec, http_get);
    }

    /// The README prints a part of it.
    #[test]
    fn the_readme_prints_a_part_of_it() {
        let readme = include_str!("../../../README.md");
        let printed = readme.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let part = parse(printed).unwrap();
        let whole = &worker(Pace::Full, Probe::EXEC)["spec"]["template"]["spec"];
        assert!(is_part(&part, whole), "README.md: {part}\n{whole}");
        assert!(!is_part(&json!({ "containers": [{ "name": "other" }] }), whole));
    }

    fn is_part(part: &Value, whole: &Value) -> bool {
        match (part, whole) {
            (Value::Object(part), Value::Object(whole)) => part
                .iter()
                .all(|(key, value)| whole.get(key).is_some_and(|whole| is_part(value, whole))),
            (Value::Array(part), Value::Array(whole)) => {
                part.iter().all(|one| whole.iter().any(|other| is_part(one, other)))
            }
            (part, whole) => part == whole,
        }
    }

    #[test]
    fn a_patch_changes_named_things_by_name() {
        let mut base =
            parse("{a: 1, list: [{name: one, v: 1}, {name: two, v: 2}], gone: 1}").unwrap();
        let patch =
            parse("{list: [{name: two, v: 3}, {name: six}], gone: null, b: {c: [1]}}").unwrap();
        merge(&mut base, &patch);
        let merged =
            parse("{a: 1, list: [{name: one, v: 1}, {name: two, v: 3}, {name: six}], b: {c: [1]}}");
        assert_eq!(base, merged.unwrap());
    }

    #[test]
    fn a_renamed_deployment_selects_its_own_pods() {
        let mut deployment = worker(Pace::Short, Probe::EXEC);
        rename(&mut deployment, "s01", "r");
        assert_eq!(deployment["spec"]["selector"]["matchLabels"], json!({ "app": "s01" }));
        assert_eq!(deployment["spec"]["template"]["metadata"]["labels"]["app"], "s01");
        assert_eq!(deployment["metadata"]["labels"][SCENARIO], "1");
    }
}
