//! From a document to the pods that it describes, in Kubernetes' own types.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::finding::{Finding, Level, Place};
use super::source::{Document, is_template};
use super::tree::Tree;

/// A pod as some object of a file describes it.
pub(super) struct Workload<'a> {
    pub(super) file: &'a str,
    pub(super) document: &'a Document,
    /// The object inside the document: empty, or `items[2].` in a list.
    prefix: String,
    pub(super) kind: String,
    pub(super) name: String,
    /// Where the pod's spec is inside the object.
    spec_path: &'static str,
    pub(super) spec: PodSpec,
    /// Volumes that a StatefulSet makes for each pod.
    pub(super) claims: Vec<String>,
}

impl Workload<'_> {
    /// A path inside the pod's spec as one inside the document.
    pub(super) fn path(&self, inside: &str) -> String {
        if inside.is_empty() {
            format!("{}{}", self.prefix, self.spec_path)
        } else {
            format!("{}{}.{inside}", self.prefix, self.spec_path)
        }
    }

    pub(super) fn place(&self, container: Option<&str>, inside: &str) -> Place {
        let path = self.path(inside);
        Place {
            file: self.file.to_owned(),
            document: self.document.number,
            line: self.document.tree.line_of(&path),
            kind: self.kind.clone(),
            name: self.name.clone(),
            container: container.map(str::to_owned),
            path,
        }
    }
}

/// An object that was not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) file: String,
    pub(super) document: usize,
    pub(super) what: String,
    pub(super) why: String,
}

/// What a document came to.
#[derive(Default)]
pub(super) struct Read<'a> {
    pub(super) workloads: Vec<Workload<'a>>,
    pub(super) skipped: Vec<Skipped>,
    /// What the API server will not take.
    pub(super) findings: Vec<Finding>,
}

/// Reads the object of a document, or each of a list's.
///
/// # Errors
/// What is no Kubernetes object at all, and templates: the line, and why.
pub(super) fn read<'a>(file: &'a str, document: &'a Document) -> Result<Read<'a>, (u64, String)> {
    let mut read = Read::default();
    object(file, document, &document.tree, String::new(), &mut read)?;
    Ok(read)
}

fn object<'a>(
    file: &'a str,
    document: &'a Document,
    tree: &'a Tree,
    prefix: String,
    read: &mut Read<'a>,
) -> Result<(), (u64, String)> {
    if !tree.is_mapping() {
        return Err((
            tree.line(),
            "no Kubernetes object: a mapping with `kind` is expected".to_owned(),
        ));
    }
    let text = |key| tree.get(key).and_then(Tree::text).unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    let name = tree.get("metadata").and_then(|metadata| {
        metadata.get("name").or_else(|| metadata.get("generateName")).and_then(Tree::text)
    });
    if let Some(items) = tree.get("items").and_then(Tree::items)
        && (kind.ends_with("List") || kind.is_empty())
    {
        for (index, item) in items.iter().enumerate() {
            // The items of a DeploymentList need not say what they are.
            object(file, document, item, format!("{prefix}items[{index}]."), read)?;
        }
        return Ok(());
    }
    let mut skip = |why: String| {
        let kind = if kind.is_empty() { "an object without a kind" } else { kind };
        let what = name.map_or_else(|| kind.to_owned(), |name| format!("{kind}/{name}"));
        read.skipped.push(Skipped { file: file.to_owned(), document: document.number, what, why });
    };
    let Some((known, parse)) = KINDS.iter().find(|(known, _)| known.1 == kind) else {
        skip("not a kind that this command knows".to_owned());
        return Ok(());
    };
    if known.0 != version {
        skip(format!("its apiVersion is {version:?}; this command knows {}", known.0));
        return Ok(());
    }
    if let Some(template) = tree.find(&is_template) {
        return Err((template.line(), super::source::TEMPLATE.to_owned()));
    }
    let refused = |path: &str, what: String, fix: &str| {
        let path = format!("{prefix}{path}");
        Finding {
            level: Level::Error,
            rule: "schema",
            place: Place {
                file: file.to_owned(),
                document: document.number,
                line: document.tree.line_of(&path),
                kind: kind.to_owned(),
                name: name.unwrap_or_default().to_owned(),
                container: None,
                path,
            },
            what,
            fix: fix.to_owned(),
        }
    };
    match parse(&tree.to_json()) {
        Err(WrongType { path, what }) => {
            // Env values are the usual case: `value: 45`.
            read.findings.push(refused(
                &path,
                format!("the API server refuses it: {what}; nothing else of it was checked"),
                "give the field the type that Kubernetes wants; a number or a yes as an environment's \
                 value needs quotes",
            ));
        }
        Ok(parsed) => {
            for path in &parsed.unknown {
                read.findings.push(Finding {
                    level: Level::Warning,
                    ..refused(
                        path,
                        format!("{kind} has no such field up to Kubernetes 1.37: the API server refuses \
                                 the manifest, or drops the field and all below it"),
                        "correct its name or its indentation",
                    )
                });
            }
            let Some(spec) = parsed.spec else {
                skip("it has no pod in it".to_owned());
                return Ok(());
            };
            read.workloads.push(Workload {
                file,
                document,
                prefix,
                kind: kind.to_owned(),
                name: name.unwrap_or_default().to_owned(),
                spec_path: parsed.spec_path,
                spec,
                claims: parsed.claims,
            });
        }
    }
    Ok(())
}

struct Parsed {
    spec: Option<PodSpec>,
    spec_path: &'static str,
    claims: Vec<String>,
    unknown: Vec<String>,
}

/// A value that is not of its field's type.
struct WrongType {
    path: String,
    what: String,
}

type Parse = fn(&Value) -> Result<Parsed, WrongType>;

const TEMPLATE: &str = "spec.template.spec";

/// The kinds with pods in them: apiVersion, kind, and how one is read.
const KINDS: [((&str, &str), Parse); 7] = [
    (("v1", "Pod"), |value| {
        let (pod, unknown) = typed::<Pod>(value)?;
        Ok(Parsed { spec: pod.spec, spec_path: "spec", claims: Vec::new(), unknown })
    }),
    (("apps/v1", "Deployment"), |value| {
        let (deployment, unknown) = typed::<Deployment>(value)?;
        Ok(templated(Some(deployment.spec.template), unknown))
    }),
    (("apps/v1", "StatefulSet"), |value| {
        let (set, unknown) = typed::<StatefulSet>(value)?;
        let claims = set.spec.volume_claim_templates.iter().flatten();
        let claims = claims.filter_map(|claim| claim.metadata.name.clone()).collect();
        Ok(Parsed { claims, ..templated(Some(set.spec.template), unknown) })
    }),
    (("apps/v1", "DaemonSet"), |value| {
        let (set, unknown) = typed::<DaemonSet>(value)?;
        Ok(templated(Some(set.spec.template), unknown))
    }),
    (("apps/v1", "ReplicaSet"), |value| {
        let (set, unknown) = typed::<ReplicaSet>(value)?;
        Ok(templated(set.spec.template, unknown))
    }),
    (("batch/v1", "Job"), |value| {
        let (job, unknown) = typed::<Job>(value)?;
        Ok(templated(job.spec.map(|spec| spec.template), unknown))
    }),
    (("batch/v1", "CronJob"), |value| {
        let (job, unknown) = typed::<CronJob>(value)?;
        let template = job.spec.job_template.spec.map(|job| job.template);
        let spec_path = "spec.jobTemplate.spec.template.spec";
        Ok(Parsed { spec_path, ..templated(template, unknown) })
    }),
];

fn templated(template: Option<PodTemplateSpec>, unknown: Vec<String>) -> Parsed {
    let spec = template.and_then(|template| template.spec);
    Parsed { spec, spec_path: TEMPLATE, claims: Vec::new(), unknown }
}

/// The value as a `T`, and the paths that `T` does not know.
fn typed<T: DeserializeOwned + Serialize>(value: &Value) -> Result<(T, Vec<String>), WrongType> {
    let object: T = serde_path_to_error::deserialize(value).map_err(|error| WrongType {
        path: error.path().to_string(),
        what: error.inner().to_string(),
    })?;
    let mut unknown = Vec::new();
    // What the type has no field for is not written again.
    if let Ok(known) = serde_json::to_value(&object) {
        compare(value, &known, String::new(), &mut unknown);
    }
    Ok((object, unknown))
}

fn compare(given: &Value, known: &Value, path: String, unknown: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (key, value) in given {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match known.get(key) {
                    Some(known) => compare(value, known, path, unknown),
                    None if value.is_null() => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                compare(given, known, format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}
