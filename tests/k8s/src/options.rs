//! The command line. A cluster is used only if it was named here.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::clock::Pace;
use crate::manifest::Probe;

pub(crate) const USAGE: &str = "\
cargo xtask verify --context NAME --namespace NAMESPACE [FLAG]... [SCENARIO]...
cargo xtask verify --kind [FLAG]... [SCENARIO]...

Runs the scenarios of VERIFYING.md, 1 to 17 or those of these numbers, on a real Kubernetes, and
prints what was expected and what was observed. 18 measures the node and runs only by its number. Exit 0: none failed; 1: one did; 2: wrong usage.

  --context NAME    a context of the kubeconfig, of a cluster that can be thrown away
  --namespace NS    where everything goes: a namespace that is not there yet (it is made, and deleted
                    at the end), or one with the label tickmark.verify=true
  --load COMMAND    how an image archive gets into the cluster; {} stands for the file. For example
                    'minikube image load {}', 'k3s ctr images import {}'. Without it the images are
                    taken to be there
  --kind            instead: a cluster of its own, made with kind and deleted at the end
  --kind-image IMG  the node image, for another version of Kubernetes [kind's default]

  --full            the times that the documents recommend, in place of seconds
  --probe KIND      how the kubelet asks: exec or http-get [exec]
  --host ADDRESS    this machine as pods reach it, for the brokers that run here [found out]
  --jobs N          scenarios at once [4; 18 alone]. With more than one, what came late is
                    played once more, alone
  --json            the table as JSON, on stdout
  --record          write what was measured to VERIFYING.md
  --render          only make the document's tables anew from tests/k8s/recorded
  --kernels         only run what needs no cluster, in containers that runc makes, here and under
                    Linux 6.1 (TICKMARK_UML), and record the table of kernels
  --images DIR      archives that are there already, in place of building them
  --list            the scenarios, and nothing else

Progress is on stderr. Ctrl-C ends it, and what was made is deleted all the same.
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Help,
    List,
    /// Only the document.
    Render,
    /// Record the rows in what the container tests printed: a file.
    Kernels(PathBuf),
    /// Only whether the command line is understood: before anything is built.
    Check,
    Run(Options),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) target: Target,
    pub(crate) scenarios: Vec<u8>,
    pub(crate) pace: Pace,
    pub(crate) probe: Probe,
    pub(crate) host: Option<IpAddr>,
    pub(crate) jobs: Option<usize>,
    pub(crate) json: bool,
    pub(crate) record: bool,
    pub(crate) images: PathBuf,
}

/// Which cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Existing { context: String, namespace: String, load: Option<String> },
    Kind { image: Option<String> },
}

pub(crate) fn parse(mut arguments: lexopt::Parser) -> Result<Request, String> {
    use lexopt::prelude::*;
    let wrong = |error: lexopt::Error| error.to_string();
    let (mut context, mut namespace, mut load) = (None, None, None);
    let (mut kind, mut kind_image, mut host, mut jobs) = (false, None, None, None);
    let (mut pace, mut json, mut record, mut check) = (Pace::Short, false, false, false);
    let (mut images, mut scenarios, mut probe) = (None, Vec::new(), Probe::default());
    while let Some(argument) = arguments.next().map_err(wrong)? {
        match argument {
            Long("context") => context = Some(text(&mut arguments, "--context")?),
            Long("namespace") => namespace = Some(text(&mut arguments, "--namespace")?),
            Long("load") => load = Some(text(&mut arguments, "--load")?),
            Long("kind") => kind = true,
            Long("kind-image") => kind_image = Some(text(&mut arguments, "--kind-image")?),
            Long("full") => pace = Pace::Full,
            Long("probe") => {
                let name = text(&mut arguments, "--probe")?;
                probe = Probe::named(&name).ok_or_else(|| {
                    format!("--probe {name}: expected {}", Probe::names().join(" or "))
                })?;
            }
            Long("host") => {
                let address = text(&mut arguments, "--host")?;
                host = Some(address.parse().map_err(|_| format!("--host {address}: no address"))?);
            }
            Long("jobs") => {
                let number = text(&mut arguments, "--jobs")?;
                let parsed = number.parse().ok().filter(|&jobs| jobs > 0);
                jobs = Some(parsed.ok_or_else(|| format!("--jobs {number}: expected a number"))?);
            }
            Long("json") => json = true,
            Long("record") => record = true,
            Long("images") => images = Some(PathBuf::from(text(&mut arguments, "--images")?)),
            Long("render") => return Ok(Request::Render),
            Long("record-kernels") => {
                return Ok(Request::Kernels(text(&mut arguments, "--record-kernels")?.into()));
            }
            Long("check") => check = true,
            Long("list") => return Ok(Request::List),
            Long("help") | Short('h') => return Ok(Request::Help),
            Value(number) => {
                let number = number.to_string_lossy().into_owned();
                let parsed = number.parse().ok().filter(|number| (1..=18).contains(number));
                scenarios.push(parsed.ok_or_else(|| format!("{number}: there are 1 to 18"))?);
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    let target = match (kind, context, namespace) {
        (true, None, None) if load.is_none() => Target::Kind { image: kind_image },
        (true, ..) => {
            return Err(
                "--kind makes a cluster of its own: leave --context, --namespace and --load out"
                    .into(),
            );
        }
        (false, ..) if kind_image.is_some() => return Err("--kind-image needs --kind".into()),
        (false, Some(context), Some(namespace)) => {
            if namespace == "default" || namespace.starts_with("kube-") {
                return Err(format!("--namespace {namespace}: a namespace of its own is needed"));
            }
            Target::Existing { context, namespace, load }
        }
        (false, Some(_), None) => return Err("--context needs --namespace".into()),
        (false, None, _) => {
            return Err(
                "name the cluster with --context, or make one with --kind; whatever context \
                        is current is not used"
                    .into(),
            );
        }
    };
    let images = images.ok_or("--images is missing: cargo xtask verify gives it")?;
    if check {
        return Ok(Request::Check);
    }
    Ok(Request::Run(Options { target, scenarios, pace, probe, host, jobs, json, record, images }))
}

/// The value of a flag.
fn text(arguments: &mut lexopt::Parser, flag: &str) -> Result<String, String> {
    let value = arguments.value().map_err(|error| error.to_string())?;
    value.into_string().map_err(|value| format!("{flag} {}: not text", value.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(lexopt::Parser::from_args(line.split_whitespace()))
    }

    #[test]
    fn a_context_that_was_not_named_is_not_used() {
        for line in ["--images i", "--images i --namespace n", "--images i 1 2"] {
            let refused = parsed(line).unwrap_err();
            assert!(refused.contains("--context"), "{line}: {refused}");
        }
    }

    #[test]
    fn a_namespace_of_its_own_is_needed() {
        for namespace in ["default", "kube-system"] {
            let line = format!("--images i --context c --namespace {namespace}");
            assert!(parsed(&line).unwrap_err().contains("of its own"));
        }
        assert!(parsed("--images i --context c").unwrap_err().contains("--namespace"));
    }

    #[test]
    fn kind_is_a_cluster_of_its_own() {
        for line in ["--kind --context c", "--kind --namespace n", "--kind --load x"] {
            assert!(parsed(line).unwrap_err().contains("leave"), "{line}");
        }
        assert!(parsed("--kind-image x --context c --namespace n").is_err());
    }

    #[test]
    fn scenarios_are_numbers() {
        let Ok(Request::Run(options)) = parsed("--images i --context c --namespace n 3 17") else {
            panic!("refused");
        };
        assert_eq!(options.scenarios, [3, 17]);
        assert!(parsed("--images i --context c --namespace n 19").is_err());
    }
}
