//! Builds: what is staged in a host's directory of builds, and what is captured of one when an
//! attempt is admitted. Nothing of a build is read again after that.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cgroup::Limit;
use crate::config::Tier;
use crate::error::{Doing as _, Error, Kind};
use crate::name::BuildName;

/// The executable of a build that is a directory, where its manifest names no other.
const PROGRAM: &str = "run";

/// The manifest in a build that is a directory; beside one that is a file, its name and `.toml`.
const MANIFEST: &str = "tickmark.toml";

/// A build as it was captured.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Staged {
    /// Its name, which is its version.
    pub name: BuildName,
    /// The executable, absolute, no link.
    pub program: PathBuf,
    /// SHA-256 of the executable, in hexadecimal.
    pub digest: String,
    /// What one process of it may use: its manifest's, else the host's.
    pub tier: Limit,
    /// It is what the live link named, so that the live-link gate is asked.
    pub live: bool,
}

/// What a build says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    program: Option<PathBuf>,
    tier: Option<Tier>,
}

/// Captures `name` from the directory `builds`; `tier` is the host's own.
///
/// # Errors
/// There is no such build, it cannot run, or its manifest is wrong; each names the path.
pub fn capture(builds: &Path, name: &BuildName, tier: &Limit) -> Result<Staged, Error> {
    let path = builds.join(name.as_str());
    let found = match fs::metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::new(
                Kind::Unknown,
                format!("there is no build {}: deploy it, or see `builds`", path.display()),
            ));
        }
        Err(error) => return Err(error).doing(|| format!("look at {}", path.display())),
    };
    let manifest = manifest_of(builds, name, found.is_dir())?;
    let program = match &manifest.program {
        Some(program) if found.is_dir() => path.join(program),
        None if found.is_dir() => path.join(PROGRAM),
        _ => path,
    };
    // A build that is a link names another one: what runs is what it names now.
    let program = fs::canonicalize(&program).doing(|| format!("find {}", program.display()))?;
    let stat = fs::metadata(&program).doing(|| format!("look at {}", program.display()))?;
    if !stat.is_file() || stat.permissions().mode() & 0o111 == 0 {
        return Err(Error::new(
            Kind::Usage,
            format!("{} is not an executable file: chmod +x it", program.display()),
        ));
    }
    Ok(Staged {
        name: name.clone(),
        digest: digest(&program, &stat)?,
        tier: manifest.tier.map_or(*tier, |tier| tier.limit()),
        program,
        live: false,
    })
}

/// A build's own tier, from its manifest; `tier` where that says nothing.
///
/// # Errors
/// The manifest is wrong.
pub fn tier(builds: &Path, name: &BuildName, tier: &Limit) -> Result<Limit, Error> {
    let manifest = manifest_of(builds, name, builds.join(name.as_str()).is_dir())?;
    Ok(manifest.tier.map_or(*tier, |tier| tier.limit()))
}

fn manifest_of(builds: &Path, name: &BuildName, directory: bool) -> Result<Manifest, Error> {
    let path = if directory {
        builds.join(name.as_str()).join(MANIFEST)
    } else {
        builds.join(format!("{name}.toml"))
    };
    let path = &*path;
    match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text)
            .map_err(|error| Error::because(Kind::Usage, format!("{}", path.display()), error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Manifest::default()),
        Err(error) => Err(error).doing(|| format!("read {}", path.display())),
    }
}

/// Which file it was: device, inode, size and modification time.
type FileIdentity = (u64, u64, u64, i64, i64);

/// SHA-256 of a file; of one that has not changed since, from memory.
fn digest(path: &Path, stat: &fs::Metadata) -> Result<String, Error> {
    static KNOWN: OnceLock<Mutex<HashMap<FileIdentity, String>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let identity = (stat.dev(), stat.ino(), stat.size(), stat.mtime(), stat.mtime_nsec());
    if let Some(digest) = known.lock().unwrap_or_else(PoisonError::into_inner).get(&identity) {
        return Ok(digest.clone());
    }
    let doing = || format!("read {}", path.display());
    let mut file = File::open(path).doing(doing)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).doing(doing)? {
            0 => break,
            length => hash.update(&buffer[..length]),
        }
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= 1024 {
        known.clear();
    }
    known.insert(identity, digest.clone());
    Ok(digest)
}

/// Copies `source`, a file or a directory, to the build `name`: whole or not at all. The same
/// content again is no error.
///
/// # Errors
/// A build of that name with other content, or what copying gives.
pub fn stage(builds: &Path, source: &Path, name: &BuildName) -> Result<(), Error> {
    fs::create_dir_all(builds).doing(|| format!("make {}", builds.display()))?;
    let target = builds.join(name.as_str());
    let found = fs::metadata(source)
        .doing(|| format!("look at what is to be staged, {}", source.display()))?;
    if is_staged(builds, source, &found, name)? {
        return Ok(());
    }
    let fresh = builds.join(format!(".{name}.{}.new", std::process::id()));
    let copied = if found.is_dir() { copy_tree(source, &fresh) } else { copy(source, &fresh) };
    copied
        .and_then(|()| {
            fs::rename(&fresh, &target).doing(|| format!("move the copy to {}", target.display()))
        })
        .inspect_err(|_| {
            let _left = fs::remove_dir_all(&fresh).or_else(|_| fs::remove_file(&fresh));
        })
}

/// Says whether [`stage`] would take `source` as `name`, and changes nothing.
///
/// # Errors
/// Those of [`stage`], and those of [`capture`] as far as they can be known before.
pub fn rehearse(builds: &Path, source: &Path, name: &BuildName) -> Result<(), Error> {
    let found = fs::metadata(source)
        .doing(|| format!("look at what is to be staged, {}", source.display()))?;
    let as_build = source.parent().zip(source.file_name().and_then(|name| name.to_str()));
    if let Some((parent, file)) = as_build
        && let Ok(file) = BuildName::new(file)
    {
        capture(parent, &file, &Limit::default())?;
    }
    is_staged(builds, source, &found, name).map(|_| ())
}

/// Whether the same is staged as `name` already.
fn is_staged(
    builds: &Path,
    source: &Path,
    found: &fs::Metadata,
    name: &BuildName,
) -> Result<bool, Error> {
    let target = builds.join(name.as_str());
    if let (Ok(source), Ok(target)) = (fs::canonicalize(source), fs::canonicalize(&target))
        && source == target
    {
        return Ok(true);
    }
    if !target.exists() {
        return Ok(false);
    }
    let there = fs::metadata(&target).doing(|| format!("look at {}", target.display()))?;
    if found.is_file() && there.is_file() && digest(source, found)? == digest(&target, &there)? {
        return Ok(true);
    }
    Err(Error::new(
        Kind::Usage,
        format!(
            "{} is there already with other content: give this one another name (--build)",
            target.display()
        ),
    ))
}

fn copy(source: &Path, target: &Path) -> Result<(), Error> {
    let doing = || format!("copy {} to {}", source.display(), target.display());
    fs::copy(source, target).doing(doing)?;
    File::open(target).and_then(|file| file.sync_all()).doing(doing)
}

fn copy_tree(source: &Path, target: &Path) -> Result<(), Error> {
    let doing = || format!("copy {} to {}", source.display(), target.display());
    fs::create_dir(target).doing(doing)?;
    for entry in fs::read_dir(source).doing(doing)? {
        let entry = entry.doing(doing)?;
        let to = target.join(entry.file_name());
        let kind = entry.file_type().doing(doing)?;
        if kind.is_dir() {
            copy_tree(&entry.path(), &to)?;
        } else if kind.is_symlink() {
            let held = fs::read_link(entry.path()).doing(doing)?;
            std::os::unix::fs::symlink(held, to).doing(doing)?;
        } else {
            copy(&entry.path(), &to)?;
        }
    }
    Ok(())
}

/// The builds that are staged, by name.
///
/// # Errors
/// The directory cannot be read; one that is absent has none.
pub fn list(builds: &Path) -> Result<Vec<BuildName>, Error> {
    let entries = match fs::read_dir(builds) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing(|| format!("read {}", builds.display())),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.doing(|| format!("read {}", builds.display()))?;
        let name = entry.file_name();
        let manifest = Path::new(&name).extension().is_some_and(|extension| extension == "toml");
        if !manifest && let Some(name) = name.to_str().and_then(|name| BuildName::new(name).ok()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes a build and its manifest.
///
/// # Errors
/// Names the path.
pub fn remove(builds: &Path, name: &BuildName) -> Result<(), Error> {
    let path = builds.join(name.as_str());
    let doing = || format!("remove {}", path.display());
    let found = fs::symlink_metadata(&path).doing(doing)?;
    if found.is_dir() {
        return fs::remove_dir_all(&path).doing(doing);
    }
    fs::remove_file(&path).doing(doing)?;
    match fs::remove_file(builds.join(format!("{name}.toml"))) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).doing(doing),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn script(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_build_is_a_file_or_a_directory_and_its_manifest_gives_its_tier() {
        let directory = tempfile::tempdir().unwrap();
        let builds = directory.path().join("builds");
        let name = |name| BuildName::new(name).unwrap();
        let source = directory.path().join("source");
        script(&source, "#!/bin/sh\n");
        stage(&builds, &source, &name("1")).unwrap();
        let host = Limit { pids: NonZeroU32::new(7), ..Limit::default() };
        let one = capture(&builds, &name("1"), &host).unwrap();
        assert_eq!(one.tier, host);
        assert_eq!(one.digest.len(), 64);

        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("bin")).unwrap();
        script(&tree.join("bin/it"), "#!/bin/sh\nexit 1\n");
        fs::write(tree.join(MANIFEST), "program = \"bin/it\"\ntier = { pids = 3 }\n").unwrap();
        stage(&builds, &tree, &name("2")).unwrap();
        let two = capture(&builds, &name("2"), &host).unwrap();
        assert_eq!(two.tier.pids, NonZeroU32::new(3));
        assert!(two.program.ends_with("2/bin/it"));
        assert_ne!(one.digest, two.digest);

        assert_eq!(list(&builds).unwrap(), [name("1"), name("2")]);
        // The same again is no error, other content is.
        stage(&builds, &source, &name("1")).unwrap();
        script(&source, "#!/bin/sh\nexit 2\n");
        assert!(stage(&builds, &source, &name("1")).unwrap_err().is_usage());
        remove(&builds, &name("2")).unwrap();
        assert!(capture(&builds, &name("2"), &host).unwrap_err().is_unknown());
        fs::write(builds.join("1.toml"), "teir = {}\n").unwrap();
        let mistake = capture(&builds, &name("1"), &host).unwrap_err();
        assert!(mistake.to_string().contains("teir"), "{mistake}");
    }
}
