//! `cargo xtask image`: the probe's image as an OCI layout and as an archive, made by hand and byte for
//! byte the same each time. `FROM scratch` has nothing to run, so a container engine has nothing to do.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::outcome::{Doing as _, Failure};
use crate::probe::{self, Builder, Target, hex};
use crate::workspace::dist;

const HELP: &str = "\
cargo xtask image [FLAG]...

Writes the probe's image, for linux/amd64 and linux/arm64, without a container engine:
  dist/image/                    an OCI layout
  dist/tickmark-probe-image.tar  the same for `docker load -i`, `podman load -i` and
                                 `ctr images import --all-platforms`
Two runs over the same probes write the same bytes.

  --tag NAME:TAG  [tickmark-probe:<version>]
  --no-build      take the probes that are in dist/ already
";

const ENTRYPOINT: &str = "/tickmark-probe";
const EPOCH: &str = "1970-01-01T00:00:00Z";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let mut tag = default_tag();
    let mut build = true;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("tag") => {
                tag = arguments.value()?.string()?;
                if tag.split('/').next_back().is_none_or(|name| !name.contains(':')) {
                    return Err(Failure::usage(format!("--tag {tag}: expected NAME:TAG")));
                }
            }
            Long("no-build") => build = false,
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    if build {
        probe::build_all(&Target::ALL, Builder::auto())?;
    }
    let layout = write(&tag)?;
    println!("{tag} for {} architectures:", Target::ALL.len());
    println!("  {}", layout.display());
    println!("  {}", archive_file().display());
    Ok(())
}

/// As the command without a flag, from whatever probes build; returns the layout's directory.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    for defect in probe::build_for_use(&Target::ALL, Builder::Cargo)? {
        println!("  not fit for a release: {defect}");
    }
    write(&default_tag())
}

fn default_tag() -> String {
    format!("tickmark-probe:{}", env!("CARGO_PKG_VERSION"))
}

fn archive_file() -> PathBuf {
    dist().join("tickmark-probe-image.tar")
}

/// Writes the image of the probes that are in `dist/`, both ways.
fn write(tag: &str) -> Result<PathBuf, Failure> {
    let mut probes = Vec::new();
    for target in Target::ALL {
        let file = target.file();
        let reading = format!("read {} (made by `cargo xtask probe`)", file.display());
        probes.push((target, fs::read(&file).doing(reading)?));
    }
    let image = Image::of(&probes, tag)?;
    let (layout, archive) = (dist().join("image"), archive_file());
    image.write_layout(&layout)?;
    fs::write(&archive, image.archive()?).doing(format_args!("write {}", archive.display()))?;
    Ok(layout)
}

/// One architecture's part of an image.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    /// As OCI names it.
    pub(crate) architecture: &'a str,
    pub(crate) entrypoint: &'a str,
    pub(crate) layer: Vec<u8>,
}

/// An image as the files of its layout, in the order of their names.
#[derive(Debug)]
pub(crate) struct Image {
    /// What an OCI layout consists of.
    files: Vec<(String, Vec<u8>)>,
    /// `manifest.json`, which only the archive has: what `docker load` without containerd's image
    /// store reads. It holds one architecture, the host's.
    docker: Vec<u8>,
}

impl Image {
    fn of(probes: &[(Target, Vec<u8>)], tag: &str) -> Result<Self, Failure> {
        let parts = probes
            .iter()
            .map(|(target, probe)| {
                let layer = layer(probe)?;
                Ok(Part { architecture: target.goarch(), entrypoint: ENTRYPOINT, layer })
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        Ok(Self::of_parts(parts, &[tag.to_owned()], &labels()))
    }

    /// An image of one layer for each architecture, under each of the names.
    pub(crate) fn of_parts(parts: Vec<Part<'_>>, tags: &[String], labels: &Value) -> Self {
        let host = Target::host().map(Target::goarch);
        let mut files = Vec::new();
        let mut manifests = Vec::new();
        let mut docker = Vec::new();
        for Part { architecture, entrypoint, layer } in parts {
            let diff_id = digest(&layer);
            let config = bytes(&json!({
                "created": EPOCH,
                "architecture": architecture,
                "os": "linux",
                "config": { "Entrypoint": [entrypoint], "Labels": labels },
                "rootfs": { "type": "layers", "diff_ids": [diff_id] },
                "history": [{ "created": EPOCH, "created_by": "cargo xtask image" }],
            }));
            let manifest = bytes(&json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": descriptor(CONFIG, &config),
                "layers": [descriptor(LAYER, &layer)],
                "annotations": labels,
            }));
            let mut described = descriptor(MANIFEST, &manifest);
            described["platform"] = json!({ "architecture": architecture, "os": "linux" });
            manifests.push(described);
            if docker.is_empty() || host == Some(architecture) {
                docker = vec![json!({
                    "Config": blob(&config),
                    "RepoTags": tags,
                    "Layers": [blob(&layer)],
                })];
            }
            for content in [layer, config, manifest] {
                files.push((blob(&content), content));
            }
        }
        let index = bytes(&json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": labels,
        }));
        // containerd takes the whole name from its own annotation, the others the tag from OCI's.
        let described: Vec<Value> = tags
            .iter()
            .map(|tag| {
                let mut described = descriptor(INDEX, &index);
                described["annotations"] = json!({
                    "io.containerd.image.name": qualified(tag),
                    "org.opencontainers.image.ref.name": tag.rsplit(':').next(),
                });
                described
            })
            .collect();
        files.push((blob(&index), index));
        files.push((
            "index.json".to_owned(),
            bytes(&json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": described })),
        ));
        files.push(("oci-layout".to_owned(), bytes(&json!({ "imageLayoutVersion": "1.0.0" }))));
        files.sort();
        // Two architectures with the same content would share a blob; so would a test's.
        files.dedup();
        Self { files, docker: bytes(&Value::from(docker)) }
    }

    fn write_layout(&self, directory: &Path) -> Result<(), Failure> {
        if directory.exists() {
            fs::remove_dir_all(directory).doing(format_args!("remove {}", directory.display()))?;
        }
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs).doing(format_args!("make {}", blobs.display()))?;
        for (name, content) in &self.files {
            let path = directory.join(name);
            fs::write(&path, content).doing(format_args!("write {}", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn archive(&self) -> Result<Vec<u8>, Failure> {
        let mut files: Vec<_> =
            self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
        files.push(("manifest.json", &self.docker));
        files.sort_unstable();
        let mut archive = tar::Builder::new(Vec::new());
        for directory in ["blobs/", "blobs/sha256/"] {
            let mut header = header(0o755, 0);
            header.set_entry_type(tar::EntryType::Directory);
            archive
                .append_data(&mut header, directory, std::io::empty())
                .doing("write the archive")?;
        }
        for (name, content) in files {
            archive
                .append_data(&mut header(0o644, content.len()), name, content)
                .doing("write the archive")?;
        }
        archive.into_inner().doing("write the archive")
    }
}

/// The annotations that registries and scanners read, the same on the index, the manifests and, as
/// labels, in the configurations.
fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "tickmark-probe",
        "org.opencontainers.image.description":
            "A tiny static probe that reads a queue worker's marks and exits 0 or 1",
        "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
    })
}

/// The one layer: the probe, root's, executable by every uid.
fn layer(probe: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut layer = tar::Builder::new(Vec::new());
    layer
        .append_data(&mut header(0o755, probe.len()), ENTRYPOINT.trim_start_matches('/'), probe)
        .doing("write the layer")?;
    layer.into_inner().doing("write the layer")
}

/// A layer of files by their paths, root's; the directories above them are made.
pub(crate) fn layer_of(entries: &[(PathBuf, Entry)]) -> Result<Vec<u8>, Failure> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut made = std::collections::BTreeSet::new();
    for (path, entry) in entries {
        let path = path.strip_prefix("/").unwrap_or(path);
        let above: Vec<&Path> =
            path.ancestors().skip(1).filter(|it| *it != Path::new("")).collect();
        for directory in above.into_iter().rev() {
            if made.insert(directory.to_owned()) {
                let mut header = header(0o755, 0);
                header.set_entry_type(tar::EntryType::Directory);
                let empty = std::io::empty();
                layer.append_data(&mut header, directory, empty).doing("write the layer")?;
            }
        }
        let mut header = header(entry.mode, entry.content.len());
        layer.append_data(&mut header, path, entry.content.as_slice()).doing("write the layer")?;
    }
    layer.into_inner().doing("write the layer")
}

/// A file of a layer.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

/// A header that says nothing about when and by whom this was built.
fn header(mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size as u64);
    header
}

/// JSON with its keys in order, which serde_json's map keeps.
fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

fn blob(content: &[u8]) -> String {
    format!("blobs/sha256/{}", hex(&Sha256::digest(content)))
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

/// The name as the kubelet and containerd spell it out: a name without a registry is Docker's.
fn qualified(tag: &str) -> String {
    match tag.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => tag.to_owned(),
        Some(_) => format!("docker.io/{tag}"),
        None => format!("docker.io/library/{tag}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read as _;

    fn image() -> Image {
        let probes = [(Target::X86_64, b"one".to_vec()), (Target::Aarch64, b"two".to_vec())];
        Image::of(&probes, "tickmark-probe:9").unwrap()
    }

    fn archived(image: &Image) -> BTreeMap<String, Vec<u8>> {
        let archive = image.archive().unwrap();
        tar::Archive::new(archive.as_slice())
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                assert_eq!(entry.header().mtime().unwrap(), 0);
                assert_eq!(entry.header().uid().unwrap(), 0);
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                (entry.path().unwrap().display().to_string(), content)
            })
            .collect()
    }

    #[test]
    fn the_same_probes_make_the_same_bytes() {
        assert_eq!(image().archive().unwrap(), image().archive().unwrap());
    }

    #[test]
    fn every_descriptor_leads_to_content_of_its_size_and_digest() {
        let files = archived(&image());
        let mut open = vec![serde_json::from_slice::<Value>(&files["index.json"]).unwrap()];
        let mut seen = 0;
        while let Some(value) = open.pop() {
            if let (Some(digest), Some(size)) = (value["digest"].as_str(), value["size"].as_u64()) {
                let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
                assert_eq!(super::digest(content), digest);
                assert_eq!(content.len() as u64, size);
                seen += 1;
                if value["mediaType"] != LAYER {
                    open.push(serde_json::from_slice(content).unwrap());
                }
            }
            match value {
                Value::Array(values) => open.extend(values),
                Value::Object(members) => open.extend(members.into_iter().map(|(_, value)| value)),
                _ => {}
            }
        }
        assert_eq!(seen, 1 + 2 * 3);
    }

    #[test]
    fn the_layer_holds_the_probe_and_nothing_else() {
        let layer = layer(b"probe").unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                (
                    entry.path().unwrap().display().to_string(),
                    header.mode().unwrap(),
                    header.uid().unwrap(),
                    header.size().unwrap(),
                )
            })
            .collect();
        assert_eq!(entries, [("tickmark-probe".to_owned(), 0o755, 0, 5)]);
    }

    #[test]
    fn docker_finds_its_blobs() {
        let files = archived(&image());
        let docker: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(docker[0]["RepoTags"][0], "tickmark-probe:9");
        assert!(files.contains_key(docker[0]["Config"].as_str().unwrap()));
        assert!(files.contains_key(docker[0]["Layers"][0].as_str().unwrap()));
    }

    #[test]
    fn a_name_is_spelled_out() {
        assert_eq!(qualified("a:1"), "docker.io/library/a:1");
        assert_eq!(qualified("b/a:1"), "docker.io/b/a:1");
        assert_eq!(qualified("localhost:5000/a:1"), "localhost:5000/a:1");
        assert_eq!(qualified("ghcr.io/b/a:1"), "ghcr.io/b/a:1");
    }
}
