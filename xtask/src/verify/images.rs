//! The images of the scenarios, as archives: each a scratch image with static programs in it, and one
//! of this machine's Ruby with the libraries it needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::containers;
use crate::demo::build_worker;
use crate::image::{Entry, Image, Part, layer_of};
use crate::outcome::{Doing as _, Failure};
use crate::probe::{self, Builder, Target};
use crate::workspace;

/// Whose images these are; never fetched from anywhere.
const REGISTRY: &str = "localhost/tickmark-verify";

/// Writes `NAME.tar` for each image. An image that cannot be made here is left out, with a line that
/// says why: the scenario that needs it is skipped then.
pub(super) fn write_all(directory: &Path) -> Result<(), Failure> {
    let target =
        Target::host().ok_or_else(|| Failure::failed("the images need x86_64 or aarch64"))?;
    let files: BTreeMap<&str, PathBuf> = containers::build()?.into_iter().collect();
    let probe = || program(&files["TICKMARK_PROBE"]);
    let lapin = build(target, "tickmark-lapin-worker", "lapin-worker")?;
    let node = build(target, "tickmark-verify-node", "verify-node")?;

    if directory.exists() {
        fs::remove_dir_all(directory).doing(format_args!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).doing(format_args!("make {}", directory.display()))?;
    let write_as = |name: &str, tags: u32, entries: &[(PathBuf, Entry)], entrypoint: &str| {
        let file = directory.join(format!("{name}.tar"));
        let part = Part { architecture: target.goarch(), entrypoint, layer: layer_of(entries)? };
        let labels = json!({ "org.opencontainers.image.title": name });
        let tags: Vec<String> = (1..=tags).map(|tag| format!("{REGISTRY}/{name}:{tag}")).collect();
        let image = Image::of_parts(vec![part], &tags, &labels);
        fs::write(&file, image.archive()?).doing(format_args!("write {}", file.display()))
    };
    let write = |name: &str, entries: &[(PathBuf, Entry)], entrypoint: &str| {
        write_as(name, 1, entries, entrypoint)
    };
    let lapin = [at("/tickmark-probe", probe()?), at("/worker", program(&lapin)?)];
    write("lapin-worker", &lapin, "/worker")?;
    let demo = [
        at("/tickmark-probe", probe()?),
        at("/tickmark-probe-hide", program(&files["TICKMARK_PROBE_HIDE"])?),
        at("/worker", program(&files["TICKMARK_DEMO_WORKER"])?),
        at("/worker-hide", program(&files["TICKMARK_DEMO_WORKER_HIDE"])?),
    ];
    // A kubelet that finds another name in a running pod starts its container again at once, without
    // the delay that it gives one that failed: a name for each restart of scenario 11, and the first.
    write_as("demo-worker", 11, &demo, "/worker")?;
    write("node", &[at("/node", program(&node)?)], "/node")?;
    match ruby() {
        Ok(mut entries) => {
            entries.push(at("/tickmark-probe", probe()?));
            // What scenario 18 compares with.
            entries.push(at("/empty", program(&crate::bench::empty(target, directory)?)?));
            entries.push(at("/tickmark-verify-node", program(&node)?));
            write("ruby", &entries, "/usr/bin/ruby")?;
        }
        Err(reason) => println!("no image of Ruby: {reason}"),
    }
    Ok(())
}

/// Writes the image of `cargo xtask bench node`: a worker that can be asked in either way, and a program
/// that reads the node's clock. Returns the name by which a cluster knows it.
pub(crate) fn write_for_bench(file: &Path) -> Result<String, Failure> {
    const NAME: &str = "bench-node";
    let target =
        Target::host().ok_or_else(|| Failure::failed("the image needs x86_64 or aarch64"))?;
    for defect in probe::build_for_use(&[target], Builder::Cargo)? {
        println!("  not fit for a release: {defect}");
    }
    let worker = build_worker(target, &[])?;
    let node = build(target, "tickmark-verify-node", "verify-node")?;
    let layer = layer_of(&[
        at("/tickmark-probe", program(&target.file())?),
        at("/worker", program(&worker)?),
        at("/node", program(&node)?),
    ])?;
    let part = Part { architecture: target.goarch(), entrypoint: "/worker", layer };
    let name = format!("{REGISTRY}/{NAME}:1");
    let labels = json!({ "org.opencontainers.image.title": NAME });
    let image = Image::of_parts(vec![part], std::slice::from_ref(&name), &labels);
    fs::write(file, image.archive()?).doing(format_args!("write {}", file.display()))?;
    Ok(name)
}

fn build(target: Target, package: &str, name: &str) -> Result<PathBuf, Failure> {
    println!("building {package} for {}", target.triple());
    let directory = workspace::build_directory(name);
    workspace::run(
        workspace::cargo()
            .current_dir(workspace::root())
            .args(["build", "--quiet", "--release", "--package", package])
            .args(["--target", target.triple(), "--target-dir"])
            .arg(&directory),
    )?;
    Ok(directory.join(target.triple()).join("release").join(package))
}

fn at(path: &str, entry: Entry) -> (PathBuf, Entry) {
    (path.into(), entry)
}

fn program(file: &Path) -> Result<Entry, Failure> {
    let content = fs::read(file).doing(format_args!("read {}", file.display()))?;
    Ok(Entry { mode: 0o755, content })
}

/// This machine's Ruby: its program, the shared libraries that it and its extensions load, and its own
/// library. What the dynamic linker names is what is taken.
fn ruby() -> Result<Vec<(PathBuf, Entry)>, Failure> {
    let ruby = workspace::on_path("ruby").ok_or_else(|| Failure::failed("ruby is not on PATH"))?;
    let ruby = ruby.canonicalize().doing("find ruby")?;
    let said = output(Command::new(&ruby).args([
        "--disable-gems",
        "-rrbconfig",
        "-e",
        "puts RbConfig::CONFIG.values_at('rubylibdir', 'rubyarchdir')",
    ]))?;
    let mut found = BTreeMap::new();
    found.insert(PathBuf::from("/usr/bin/ruby"), program(&ruby)?);
    let mut objects = vec![ruby];
    for directory in said.lines() {
        for file in files_below(Path::new(directory))? {
            if file.extension().is_some_and(|extension| extension == "so") {
                objects.push(file.clone());
            }
            found.insert(file.clone(), program(&file)?);
        }
    }
    for line in output(Command::new("ldd").args(&objects))?.lines() {
        // "libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x…)", and the linker without an arrow.
        let place = line.split("=>").last().unwrap_or(line).trim();
        if let Some(path) = place.split(' ').next().filter(|path| path.starts_with('/')) {
            let path = path.trim_end_matches(':');
            if !objects.iter().any(|object| object == Path::new(path)) {
                found.insert(path.into(), program(Path::new(path))?);
            }
        }
    }
    let script = workspace::root().join("tests/k8s/ruby/worker.rb");
    let content = fs::read(&script).doing(format_args!("read {}", script.display()))?;
    found.insert("/worker.rb".into(), Entry { mode: 0o644, content });
    Ok(found.into_iter().collect())
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).doing(format_args!("list {}", directory.display()))? {
        let path = entry.doing(format_args!("list {}", directory.display()))?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().doing(format_args!("run {command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
