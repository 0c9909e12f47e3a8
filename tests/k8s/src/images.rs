//! The image archives that `cargo xtask verify` made, and the name that each goes by in the cluster.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::answer::{Doing as _, Stop};

/// By the archive's name without `.tar`; an image may go by several names.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) archives: BTreeMap<String, (PathBuf, Vec<String>)>,
}

impl Images {
    pub(crate) fn open(directory: &Path) -> Result<Images, Stop> {
        let mut archives = BTreeMap::new();
        let listed = fs::read_dir(directory);
        for entry in listed.doing(format_args!("list {}", directory.display()))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "tar") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let references = references(&path)?;
                archives.insert(name, (path, references));
            }
        }
        Ok(Images { archives })
    }

    pub(crate) fn reference(&self, name: &str) -> Result<&str, Stop> {
        Ok(&self.references(name)?[0])
    }

    /// At least one.
    pub(crate) fn references(&self, name: &str) -> Result<&[String], Stop> {
        let found = self.archives.get(name);
        found.map(|(_, references)| references.as_slice()).ok_or_else(|| {
            Stop::Skipped(format!("there is no image {name}: cargo xtask verify could not make it"))
        })
    }
}

/// What containerd calls the image of an archive.
fn references(archive: &Path) -> Result<Vec<String>, Stop> {
    let reading = || format!("read {}", archive.display());
    let file = File::open(archive).doing(reading())?;
    for entry in tar::Archive::new(file).entries().doing(reading())? {
        let mut entry = entry.doing(reading())?;
        if entry.path().doing(reading())? == Path::new("index.json") {
            let mut text = String::new();
            entry.read_to_string(&mut text).doing(reading())?;
            let index: Value = serde_json::from_str(&text).doing(reading())?;
            let manifests = index["manifests"].as_array();
            let names: Vec<String> = manifests
                .into_iter()
                .flatten()
                .filter_map(|one| one["annotations"]["io.containerd.image.name"].as_str())
                .map(str::to_owned)
                .collect();
            if names.is_empty() {
                let archive = archive.display();
                return Err(Stop::Failed(format!("{archive}: the image has no name")));
            }
            return Ok(names);
        }
    }
    Err(Stop::Failed(format!("{} is no OCI archive", archive.display())))
}
