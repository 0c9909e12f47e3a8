//! An image as it lies in an OCI layout: its configuration, and the files of all its layers.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

#[derive(Debug)]
pub(crate) struct Image {
    /// What runtimes read, and the architecture it is for.
    pub(crate) config: Value,
    pub(crate) architecture: String,
    pub(crate) files: BTreeMap<String, File>,
}

/// A file of an image. Its content's digest is enough to compare it, and to say how it differs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) digest: String,
    kind: Kind,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Directory,
    Link(String),
    Regular(Vec<u8>),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory => f.write_str("directory"),
            Self::Link(to) => write!(f, "link to {to}"),
            Self::Regular(content) => write!(f, "{} bytes", content.len()),
        }
    }
}

impl Image {
    /// The image for `architecture` of a layout that holds one, or an index with one for each.
    pub(crate) fn of_layout(layout: &Path, architecture: &str) -> Self {
        let json = |path: &Path| -> Value {
            serde_json::from_slice(
                &fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
            )
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().expect("a digest");
            layout.join("blobs").join(digest.replace(':', "/"))
        };
        let mut manifest = json(&layout.join("index.json"));
        while let Some(manifests) = manifest["manifests"].as_array() {
            let chosen = manifests
                .iter()
                .find(|descriptor| descriptor["platform"]["architecture"] == architecture)
                .or_else(|| manifests.first().filter(|_| manifests.len() == 1))
                .unwrap_or_else(|| panic!("nothing for {architecture} in {manifests:?}"));
            manifest = json(&blob(chosen));
        }
        let config = json(&blob(&manifest["config"]));
        let mut files = BTreeMap::new();
        for layer in manifest["layers"].as_array().expect("layers") {
            let kind = layer["mediaType"].as_str().unwrap_or_default();
            let file = fs::File::open(blob(layer)).expect("a layer");
            match kind.rsplit('.').next() {
                Some("tar") => add_layer(&mut files, file),
                Some("tar+gzip") => add_layer(&mut files, GzDecoder::new(file)),
                _ => panic!("a layer of the type {kind}"),
            }
        }
        Self {
            architecture: config["architecture"].as_str().unwrap_or_default().to_owned(),
            config: config["config"].clone(),
            files,
        }
    }

    /// Writes the files below `root`, which runs as any uid only if their modes say so.
    pub(crate) fn unpack(&self, root: &Path) {
        for (name, file) in &self.files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            match &file.kind {
                Kind::Directory => fs::create_dir_all(&path).expect("a directory"),
                Kind::Link(to) => symlink(to, &path).expect("a link"),
                Kind::Regular(content) => fs::write(&path, content).expect("a file"),
            }
            if !matches!(file.kind, Kind::Link(_)) {
                fs::set_permissions(&path, fs::Permissions::from_mode(file.mode)).expect("a mode");
            }
        }
    }

    /// What starts, as words.
    pub(crate) fn entrypoint(&self) -> Vec<String> {
        let words = self.config["Entrypoint"].as_array().into_iter().flatten();
        words.map(|word| word.as_str().expect("a word").to_owned()).collect()
    }
}

fn add_layer(files: &mut BTreeMap<String, File>, layer: impl Read) {
    for entry in tar::Archive::new(layer).entries().expect("a layer") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let path = path.trim_start_matches("./").trim_matches('/').to_owned();
        if path.is_empty() {
            continue;
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("a content");
        let header = entry.header();
        let kind = match header.entry_type() {
            tar::EntryType::Directory => Kind::Directory,
            tar::EntryType::Symlink => {
                let to = entry.link_name().expect("a link").expect("a target");
                Kind::Link(to.display().to_string())
            }
            tar::EntryType::Regular => Kind::Regular(content.clone()),
            other => panic!("{path} is a {other:?}"),
        };
        let file = File {
            mode: header.mode().expect("a mode") & 0o7777,
            owner: (header.uid().expect("a uid"), header.gid().expect("a gid")),
            digest: Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect(),
            kind,
        };
        files.insert(path, file);
    }
}
