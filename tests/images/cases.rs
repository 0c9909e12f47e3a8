//! What holds of the images.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::Case;
use crate::archive::{Containerd, taken_by_skopeo};
use crate::commands::Places;
use crate::container::{Container, Running};
use crate::documents;
use crate::engine::run;
use crate::image::Image;
use crate::site::Site;

pub(crate) const ALL: &[Case] = &[
    ("with_an_engine_and_without_it_is_one_image", with_an_engine_and_without),
    ("any_uid_runs_the_probe", any_uid),
    ("any_uid_runs_a_worker_beside_it", any_uid_beside_a_worker),
    ("somebody_elses_image_stays_as_it_is", somebody_elses_image),
    ("skopeo_reads_the_layout_and_both_kinds_of_archive", skopeo),
    ("containerd_imports_the_archive", containerd),
    ("every_containerfile_that_is_printed_builds", printed_containerfiles),
    ("every_command_that_is_printed_runs_in_its_image", printed_commands),
];

const PROBE: &str = "images/Containerfile.probe";
const COPY_FROM: &str = "images/Containerfile.copy-from";
const DEMO: &str = "images/demo-worker/Containerfile";
const LAPIN: &str = "images/lapin-worker/Containerfile";

/// Uids that images know, that none knows, and one that nobody chose.
fn uids() -> [u32; 4] {
    let random = std::process::id().wrapping_mul(2_654_435_761) % 1_000_000_000 + 100_000;
    [0, 1000, 65534, random]
}

#[track_caller]
fn assert_same(ours: &Image, theirs: &Image, by: &str) {
    assert_eq!(ours.files, theirs.files, "{by}");
    assert_eq!(ours.architecture, theirs.architecture, "{by}");
    // Not `Env`: engines add a PATH to it, which an image of one file has no use for.
    for field in ["Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "ExposedPorts"] {
        let [one, other] = [ours, theirs].map(|image| given(&image.config[field]));
        assert_eq!(one, other, "{by}: {field}");
    }
    assert_eq!(ours.config["Labels"], theirs.config["Labels"], "{by}");
}

/// An empty field is an absent one.
fn given(field: &Value) -> Value {
    match field {
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Object(members) if members.is_empty() => Value::Null,
        Value::String(text) if text.is_empty() => Value::Null,
        field => field.clone(),
    }
}

fn with_an_engine_and_without(site: &Arc<Site>) {
    for (architecture, goarch) in [("x86_64", "amd64"), ("aarch64", "arm64")] {
        let ours = Image::of_layout(&site.layout, goarch);
        let arguments = ["--arch", goarch, "--build-arg", &format!("ARCH={architecture}")];
        let built = site.engine().build(Path::new(PROBE), &arguments);
        assert_same(&ours, &built, goarch);
        let names: Vec<_> = ours.files.keys().collect();
        assert_eq!(names, ["tickmark-probe"]);
        let probe = &ours.files["tickmark-probe"];
        assert_eq!((probe.mode, probe.owner), (0o755, (0, 0)));
    }
    // Every label is one that OCI names.
    let labels = site.probe_image().config["Labels"].clone();
    let known = ["title", "description", "source", "licenses", "version"];
    let names: Vec<_> = labels.as_object().expect("labels").keys().collect();
    assert_eq!(names.len(), known.len(), "{names:?}");
    for name in known {
        let label = &labels[format!("org.opencontainers.image.{name}")];
        assert!(label.as_str().is_some_and(|label| !label.is_empty()), "{name}: {labels}");
    }
}

fn any_uid(site: &Arc<Site>) {
    let image = site.probe_image();
    for uid in uids() {
        let answer = Container::once(site, &image, Running::as_uid(uid), &image.entrypoint());
        assert_eq!(answer.status, Some(1), "uid {uid}: {answer:?}");
        assert!(answer.said.starts_with("no /run/tickmark/expected: "), "uid {uid}: {answer:?}");
    }
}

fn any_uid_beside_a_worker(site: &Arc<Site>) {
    let image = site.engine().build(Path::new(DEMO), &[]);
    assert_eq!(image.config["User"], "1000");
    let names: Vec<_> = image.files.keys().collect();
    assert_eq!(names, ["tickmark-probe", "worker"]);
    let probe = ["/tickmark-probe".to_owned()];
    for uid in uids() {
        let worker = Container::start(site, &image, Running::as_uid(uid), &image.entrypoint());
        let answer = worker.exec_until_success(&probe);
        assert_eq!(answer.said, "1 process(es) healthy\n", "uid {uid}: {}", worker.log());
    }
}

fn somebody_elses_image(site: &Arc<Site>) {
    let theirs = site.engine().base();
    let image = with_their_base(site);
    let mut with_ours = image.files;
    let probe = with_ours.remove("tickmark-probe").expect("the probe");
    assert_eq!((probe.mode, probe.owner), (0o755, (0, 0)));
    assert_eq!(probe.digest, site.probe_image().files["tickmark-probe"].digest);
    assert_eq!(with_ours, theirs.files);
    assert_eq!(image.config["Labels"]["theirs"], "kept");
    assert_eq!(image.config["Env"], theirs.config["Env"]);
    assert_eq!(given(&image.config["Entrypoint"]), Value::Null, "their entrypoint is theirs");
}

fn with_their_base(site: &Site) -> Image {
    let base = format!("BASE={}", crate::engine::BASE);
    site.engine().build(Path::new(COPY_FROM), &["--build-arg", &base])
}

fn skopeo(site: &Arc<Site>) {
    let tag = env!("CARGO_PKG_VERSION");
    for architecture in ["amd64", "arm64"] {
        let ours = Image::of_layout(&site.layout, architecture);
        let layout = format!("oci:{}:{tag}", site.layout.display());
        let archive = format!("oci-archive:{}:{tag}", site.archive.display());
        for source in [layout, archive] {
            assert_same(&ours, &taken_by_skopeo(site, &source, architecture), &source);
        }
    }
    // Docker's own format has one architecture, this machine's.
    let archive = format!("docker-archive:{}", site.archive.display());
    let taken = taken_by_skopeo(site, &archive, crate::site::goarch());
    assert_same(&site.probe_image(), &taken, &archive);
}

fn containerd(site: &Arc<Site>) {
    let containerd = Containerd::start(site);
    run(containerd
        .ctr()
        .args(["images", "import", "--all-platforms", "--snapshotter", "native"])
        .arg(&site.archive));
    let name = format!("docker.io/library/tickmark-probe:{}", env!("CARGO_PKG_VERSION"));
    let listed = run(containerd.ctr().args(["images", "ls"]));
    let line = listed.lines().find(|line| line.starts_with(&name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{listed}"));
    assert!(line.contains("linux/amd64,linux/arm64"), "{line}");
    // What it keeps is what was given: the index's digest is in the layout too.
    let digest =
        line.split_whitespace().find(|word| word.starts_with("sha256:")).expect("a digest");
    assert!(site.layout.join("blobs").join(digest.replace(':', "/")).is_file(), "{line}");
    let checked = run(containerd.ctr().args(["images", "check", "--snapshotter", "native"]));
    assert!(checked.contains("complete"), "{checked}");
}

fn printed_containerfiles(site: &Arc<Site>) {
    let printed = documents::containerfiles();
    assert!(printed.len() >= 4, "{printed:?}");
    let (_, directory) = site.new_directory("printed");
    for (index, (place, text)) in printed.iter().enumerate() {
        // A fragment goes into somebody's image.
        let from = if text.contains("FROM ") { "" } else { "FROM your-base-image\n" };
        let file = directory.join(format!("printed-{index}"));
        fs::write(&file, format!("# {place}\n{from}{text}")).expect("a file");
        let image = site.engine().build(&file, &[]);
        let probe =
            image.files.get("tickmark-probe").unwrap_or_else(|| panic!("{place}: no probe"));
        assert_eq!(probe.mode, 0o755, "{place}");
        assert_eq!(probe.digest, site.probe_image().files["tickmark-probe"].digest, "{place}");
    }
}

fn printed_commands(site: &Arc<Site>) {
    let commands = documents::commands();
    assert!(commands.len() >= 20, "only {} are left", commands.len());
    let engine = site.engine();
    let demo = engine.build(Path::new(DEMO), &[]);
    let lapin = engine.build(Path::new(LAPIN), &[]);
    let (_, directory) = site.new_directory("theirs");
    let file = directory.join("theirs");
    fs::write(
        &file,
        "FROM your-base-image\nCOPY --from=tickmark-probe:0.1.0 /tickmark-probe /tickmark-probe\n\
         COPY --from=tickmark-probe:0.1.0 /tickmark-probe /bin/tickmark-probe\n\
         COPY --chmod=0755 your-static-worker /bin/your-worker\n"
            .replace("0.1.0", env!("CARGO_PKG_VERSION")),
    )
    .expect("a file");
    let theirs = engine.build(&file, &[]);
    let places = Places::open(site, &demo, theirs, &lapin);
    let wrong: Vec<_> = commands
        .iter()
        .filter_map(|printed| {
            let why = places.check(printed).err()?;
            Some(format!("{}: {:?}: {why}", printed.place, printed.command))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for wrong in [
        "frobnicate the-worker",
        "kubectl exec POD -- /bin/frobnicate",
        "kubectl exec POD -- /tickmark-probe --dri /marks",
        "kubectl exec POD -- /tickmark-probe --dir /elsewhere",
        "kubectl exec POD -- /worker switch frobnicate",
        "kubectl exec POD -- kill -TERM 4000",
        "cargo xtask frobnicate",
        "cargo xtask image --frobnicate",
        "cargo run --package frobnicate",
    ] {
        let command = documents::Command::Line(wrong.to_owned());
        let printed = documents::Printed { place: "here".to_owned(), command };
        assert!(places.check(&printed).is_err(), "{wrong} passes");
    }
    // The list is worth reading where something seems to be missing from it.
    if std::env::var_os("TICKMARK_SHOW_COMMANDS").is_some() {
        for printed in &commands {
            eprintln!("{}: {:?}", printed.place, printed.command);
        }
    }
}
