//! Builds: what is staged in a host's directory of builds, and what is captured of one when an
//! attempt is admitted. Nothing of a build is read again after that.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
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
#[derive(Debug, Clone, Serialize, Deserialize)]
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

/// One build is the same however it was asked for.
impl PartialEq for Staged {
    fn eq(&self, other: &Staged) -> bool {
        let Staged { name, program, digest, tier, live: _ } = self;
        (name, program, digest, tier) == (&other.name, &other.program, &other.digest, &other.tier)
    }
}

impl Eq for Staged {}

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
    let program = program_of(path, found.is_dir(), &manifest)?;
    let stat = executable(&program)?;
    Ok(Staged {
        name: name.clone(),
        digest: digest(&program, &stat)?,
        tier: manifest.tier.map_or(*tier, |tier| tier.limit()),
        program,
        live: false,
    })
}

/// A build that is a link names another one: what runs is what it names now.
fn program_of(build: PathBuf, directory: bool, manifest: &Manifest) -> Result<PathBuf, Error> {
    let program = match &manifest.program {
        Some(program) if directory => build.join(program),
        None if directory => build.join(PROGRAM),
        _ => build,
    };
    fs::canonicalize(&program).doing(|| format!("find the program {}", program.display()))
}

fn executable(program: &Path) -> Result<fs::Metadata, Error> {
    let stat = fs::metadata(program).doing(|| format!("look at {}", program.display()))?;
    if !stat.is_file() || stat.permissions().mode() & 0o111 == 0 {
        return Err(Error::new(
            Kind::Usage,
            format!("{} is not an executable file: chmod +x it", program.display()),
        ));
    }
    Ok(stat)
}

/// What a build needs of a directory of builds, as far as it is there: what its name leads to, and
/// its executable.
#[must_use]
pub fn needs(builds: &Path, name: &BuildName) -> Vec<PathBuf> {
    let path = builds.join(name.as_str());
    let manifest = manifest_of(builds, name, path.is_dir()).unwrap_or_default();
    let program = program_of(path.clone(), path.is_dir(), &manifest);
    [fs::canonicalize(path).ok(), program.ok()].into_iter().flatten().collect()
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
    read_manifest(&path)
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    match open(path).and_then(io::read_to_string) {
        Ok(text) => toml::from_str(&text)
            .map_err(|error| Error::because(Kind::Usage, format!("{}", path.display()), error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Manifest::default()),
        Err(error) => Err(error).doing(|| format!("read {}", path.display())),
    }
}

/// Opens a regular file to read it. Never waits for the other end of a pipe, as open(2) would.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// Which file it was: device, inode, size and modification time.
type FileIdentity = (u64, u64, u64, i64, i64);

/// SHA-256 of a file; of one that has not changed since, from memory.
pub(crate) fn digest(path: &Path, stat: &fs::Metadata) -> Result<String, Error> {
    static KNOWN: OnceLock<Mutex<HashMap<FileIdentity, String>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let identity = (stat.dev(), stat.ino(), stat.size(), stat.mtime(), stat.mtime_nsec());
    if let Some(digest) = known.lock().unwrap_or_else(PoisonError::into_inner).get(&identity) {
        return Ok(digest.clone());
    }
    let doing = || format!("read {}", path.display());
    let mut file = open(path).doing(doing)?;
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

/// Copies `source`, a file or a directory, to the build `name`: whole or not at all, whoever else
/// stages the same name meanwhile. What is there already is never replaced; the same content again
/// is no error. What a crash cut off is removed first: it may be what fills the disk.
///
/// # Errors
/// A build of that name with other content; something that is neither file, directory nor symlink;
/// nothing in it that could be run; or what copying gives.
pub fn stage(builds: &Path, source: &Path, name: &BuildName) -> Result<(), Error> {
    fs::create_dir_all(builds).doing(|| format!("make {}", builds.display()))?;
    remove_cut_off(builds);
    let found = look_at(builds, source)?;
    if is_staged(builds, source, name)? {
        return Ok(());
    }
    let staging = Staging::begin(builds, name)?;
    let fresh = staging.path.join(name.as_str());
    if found.is_dir() {
        copy_tree(source, &fresh)?;
    } else {
        copy(source, &fresh)?;
    }
    // Another may have staged the name since.
    while !move_to(&fresh, &builds.join(name.as_str()))? {
        if is_staged(builds, source, name)? {
            break;
        }
    }
    Ok(())
}

/// A directory beside the builds, for a copy under way. It is locked meanwhile (flock(2), which ends
/// with the process), so that what a crash cut off can be told from what is still written, by
/// whichever activator.
struct Staging {
    path: PathBuf,
    _lock: Option<File>,
}

impl Staging {
    fn begin(builds: &Path, name: &BuildName) -> Result<Staging, Error> {
        loop {
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty())
                .doing(|| "get random bytes".to_owned())?;
            let path = builds.join(format!(".{name}.{:016x}.new", u64::from_ne_bytes(random)));
            let doing = || format!("make {}", path.display());
            DirBuilder::new().mode(0o700).create(&path).doing(doing)?;
            match lock(&path).doing(doing)? {
                Locked::Ours(lock) => return Ok(Staging { path, _lock: Some(lock) }),
                // Taken for one that was cut off, before it was locked.
                Locked::Others => {}
                // Nobody else can lock it, either.
                Locked::Never => return Ok(Staging { path, _lock: None }),
            }
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the next staging removes it");
        }
    }
}

enum Locked {
    Ours(File),
    /// Another has it, or has removed it.
    Others,
    /// This file system has no locks.
    Never,
}

fn lock(path: &Path) -> io::Result<Locked> {
    let gone = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    let directory = match File::open(path) {
        Ok(directory) => directory,
        Err(error) if gone(&error) => return Ok(Locked::Others),
        Err(error) => return Err(error),
    };
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(Locked::Others),
        Err(_) => return Ok(Locked::Never),
    }
    // Whoever had it last may have removed it.
    let here = directory.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (here.dev(), here.ino()) => {
            Ok(Locked::Ours(directory))
        }
        Ok(_) => Ok(Locked::Others),
        Err(error) if gone(&error) => Ok(Locked::Others),
        Err(error) => Err(error),
    }
}

/// Removes the stagings that a crash cut off: those that can be locked.
fn remove_cut_off(builds: &Path) {
    for entry in fs::read_dir(builds).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || !is_staging(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        if let Ok(Locked::Ours(_lock)) = lock(&path)
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::warn!(path = %path.display(), %error, "a staging that was cut off stays");
        }
    }
}

/// Whether this is a name of a [`Staging`], and nobody else's.
fn is_staging(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(".new"));
    name.and_then(|name| name.rsplit_once('.')).is_some_and(|(build, random)| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        random.len() == 16 && random.bytes().all(digit) && BuildName::new(build).is_ok()
    })
}

/// Says whether [`stage`] would take `source` as `name`, and changes nothing.
///
/// # Errors
/// Those of [`stage`], as far as they can be known before.
pub fn rehearse(builds: &Path, source: &Path, name: &BuildName) -> Result<(), Error> {
    look_at(builds, source)?;
    is_staged(builds, source, name).map(|_| ())
}

/// What is to be staged, a link followed. It must be something that can be run: a build of that name would
/// have to have another one once it is put right.
fn look_at(builds: &Path, source: &Path) -> Result<fs::Metadata, Error> {
    let what = || format!("look at what is to be staged, {}", source.display());
    let found = fs::metadata(source).doing(what)?;
    if !found.is_file() && !found.is_dir() {
        return Err(not_to_be_staged(source));
    }
    // A copy within what is copied would have no end.
    let within =
        |builds: PathBuf| fs::canonicalize(source).is_ok_and(|source| builds.starts_with(source));
    if fs::canonicalize(builds).is_ok_and(within) {
        return Err(Error::new(
            Kind::Usage,
            format!("{} has the builds in it: stage another directory", source.display()),
        ));
    }
    let manifest = match found.is_dir() {
        true => read_manifest(&source.join(MANIFEST))?,
        false => Manifest::default(),
    };
    executable(&program_of(source.to_owned(), found.is_dir(), &manifest)?)?;
    Ok(found)
}

fn not_to_be_staged(path: &Path) -> Error {
    Error::new(
        Kind::Usage,
        format!("{} is neither a file, a directory nor a symlink: leave it out", path.display()),
    )
}

/// Whether the same is staged as `name` already.
fn is_staged(builds: &Path, source: &Path, name: &BuildName) -> Result<bool, Error> {
    let target = builds.join(name.as_str());
    match fs::symlink_metadata(&target) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).doing(|| format!("look at {}", target.display())),
    }
    let real = |path: &Path| fs::canonicalize(path).doing(|| format!("find {}", path.display()));
    if same(&real(source)?, &real(&target)?)? {
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

/// Whether two files, directories or symlinks are the same: names, contents, and who may execute.
fn same(one: &Path, other: &Path) -> Result<bool, Error> {
    if one == other {
        return Ok(true);
    }
    let look =
        |path: &Path| fs::symlink_metadata(path).doing(|| format!("look at {}", path.display()));
    let (here, there) = (look(one)?, look(other)?);
    if here.file_type() != there.file_type() {
        return Ok(false);
    }
    if here.is_dir() {
        let names = entries(one)?;
        if names != entries(other)? {
            return Ok(false);
        }
        for name in names {
            if !same(&one.join(&name), &other.join(&name))? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if here.is_symlink() {
        let held = |path: &Path| fs::read_link(path).doing(|| format!("read {}", path.display()));
        return Ok(held(one)? == held(other)?);
    }
    if !here.is_file() {
        return Err(not_to_be_staged(one));
    }
    let executed = |found: &fs::Metadata| found.mode() & 0o111;
    Ok(here.len() == there.len()
        && executed(&here) == executed(&there)
        && digest(one, &here)? == digest(other, &there)?)
}

/// The names in a directory, in order.
fn entries(directory: &Path) -> Result<Vec<OsString>, Error> {
    let doing = || format!("read {}", directory.display());
    let names = fs::read_dir(directory).doing(doing)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>().doing(doing)?;
    names.sort();
    Ok(names)
}

/// Moves a copy to its name, where nothing is there yet; says whether it did.
fn move_to(fresh: &Path, target: &Path) -> Result<bool, Error> {
    /// For a file system that cannot do both in one step (`EINVAL`).
    static STEP_BY_STEP: Mutex<()> = Mutex::new(());
    let doing = || format!("move the copy to {}", target.display());
    match renameat_with(CWD, fresh, CWD, target, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(true),
        Err(Errno::EXIST) => return Ok(false),
        Err(Errno::INVAL | Errno::NOSYS) => {}
        Err(errno) => return Err(errno).doing(doing),
    }
    let _alone = STEP_BY_STEP.lock().unwrap_or_else(PoisonError::into_inner);
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::rename(fresh, target).doing(doing).map(|()| true)
        }
        Err(error) => Err(error).doing(doing),
        Ok(_) => Ok(false),
    }
}

fn copy(source: &Path, target: &Path) -> Result<(), Error> {
    let doing = || format!("copy {} to {}", source.display(), target.display());
    let mut from = open(source).doing(doing)?;
    let mode = from.metadata().doing(doing)?.permissions();
    let mut options = OpenOptions::new();
    let mut to = options.write(true).create_new(true).mode(0o600).open(target).doing(doing)?;
    io::copy(&mut from, &mut to).doing(doing)?;
    to.set_permissions(mode).doing(doing)?;
    to.sync_all().doing(doing)
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
        } else if kind.is_file() {
            copy(&entry.path(), &to)?;
        } else {
            return Err(not_to_be_staged(&entry.path()));
        }
    }
    File::open(target).and_then(|directory| directory.sync_all()).doing(doing)
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

    fn build(name: &str) -> BuildName {
        BuildName::new(name).unwrap()
    }

    /// A tree of some files, so that a copy of it takes a moment.
    fn tree(path: &Path, content: &str) {
        fs::create_dir_all(path.join("lib")).unwrap();
        script(&path.join(PROGRAM), "#!/bin/sh\n");
        for index in 0..20 {
            fs::write(path.join(format!("lib/{index}")), content.repeat(1000)).unwrap();
        }
        std::os::unix::fs::symlink(PROGRAM, path.join("also")).unwrap();
    }

    #[test]
    fn of_many_that_stage_one_name_at_once_each_finds_one_whole_build() {
        let directory = tempfile::tempdir().unwrap();
        let builds = directory.path().join("builds");
        let sources = ["a", "b"].map(|content| {
            let path = directory.path().join(content);
            tree(&path, content);
            path
        });
        let file = directory.path().join("file");
        script(&file, &"#".repeat(1 << 20));
        for round in 0..10 {
            let name = build(&format!("v{round}"));
            let staged = std::thread::scope(|scope| {
                let (name, builds, sources) = (&name, &builds, &sources);
                let all = [0, 0, 1, 1, 0, 1].map(|which| {
                    (which, scope.spawn(move || stage(builds, &sources[which], name)))
                });
                all.map(|(which, one)| (which, one.join().unwrap()))
            });
            let target = builds.join(name.as_str());
            let won = usize::from(same(&sources[1], &target).unwrap());
            assert!(same(&sources[won], &target).unwrap(), "one of both, whole");
            for (which, ended) in staged {
                match ended {
                    Ok(()) => assert_eq!(which, won, "staged, and another is there"),
                    Err(error) => {
                        assert!(which != won && error.is_usage(), "{error}");
                        assert!(error.to_string().contains("other content"), "{error}");
                    }
                }
            }
            // A file: its copies do not share a name, either.
            let name = build(&format!("f{round}"));
            std::thread::scope(|scope| {
                let all = [(); 4].map(|()| scope.spawn(|| stage(&builds, &file, &name)));
                for one in all {
                    one.join().unwrap().unwrap();
                }
            });
            assert!(same(&file, &builds.join(name.as_str())).unwrap());
        }
        let left = fs::read_dir(&builds).unwrap().flatten().count();
        assert_eq!(left, 20, "no copy is left half done");
    }

    #[test]
    fn the_same_directory_again_is_no_error_and_one_that_differs_is() {
        let directory = tempfile::tempdir().unwrap();
        let builds = directory.path().join("builds");
        let source = directory.path().join("source");
        tree(&source, "a");
        let name = build("1");
        stage(&builds, &source, &name).unwrap();
        stage(&builds, &source, &name).unwrap();
        let differs = || {
            let error = stage(&builds, &source, &name).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains("other content"), "{error}");
            assert!(rehearse(&builds, &source, &name).unwrap_err().is_usage());
        };
        fs::write(source.join("lib/more"), "").unwrap();
        differs();
        fs::remove_file(source.join("lib/more")).unwrap();
        stage(&builds, &source, &name).unwrap();
        fs::set_permissions(source.join("lib/1"), fs::Permissions::from_mode(0o755)).unwrap();
        differs();
        fs::set_permissions(source.join("lib/1"), fs::Permissions::from_mode(0o644)).unwrap();
        // Of the same length, and by another file: one that is changed in place within a tick of the
        // clock cannot be told.
        let replace = |content: &str| {
            fs::write(source.join("new"), content.repeat(1000)).unwrap();
            fs::rename(source.join("new"), source.join("lib/1")).unwrap();
        };
        replace("b");
        differs();
        replace("a");
        stage(&builds, &source, &name).unwrap();
        fs::remove_file(source.join("also")).unwrap();
        std::os::unix::fs::symlink("lib/1", source.join("also")).unwrap();
        differs();
    }

    #[test]
    fn what_a_crash_cut_off_is_removed_by_the_next_staging_and_what_is_under_way_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let builds = directory.path().join("builds");
        let source = directory.path().join("source");
        tree(&source, "a");
        let cut_off = builds.join(".1.0123456789abcdef.new");
        fs::create_dir_all(&cut_off).unwrap();
        copy_tree(&source, &cut_off.join("1")).unwrap();
        let under_way = Staging::begin(&builds, &build("1")).unwrap();
        fs::write(under_way.path.join("1"), "half").unwrap();
        let others = [".1.new", ".cache", ".1.0123456789ABCDEF.new", ".1.0123456789abcdef"];
        for name in others {
            fs::create_dir(builds.join(name)).unwrap();
        }
        stage(&builds, &source, &build("2")).unwrap();
        assert!(!cut_off.exists());
        assert_eq!(fs::read(under_way.path.join("1")).unwrap(), b"half", "it is still written");
        assert!(others.iter().all(|name| builds.join(name).exists()), "those are not ours");
        let path = under_way.path.clone();
        drop(under_way);
        assert!(!path.exists(), "a staging that ends leaves nothing");
    }

    #[test]
    fn what_cannot_be_run_is_not_staged_and_keeps_its_name_free() {
        let directory = tempfile::tempdir().unwrap();
        let builds = directory.path().join("builds");
        let file = directory.path().join("file");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        let without = directory.path().join("without");
        fs::create_dir(&without).unwrap();
        let mistaken = directory.path().join("mistaken");
        tree(&mistaken, "a");
        fs::write(mistaken.join(MANIFEST), "teir = {}\n").unwrap();
        for (source, said) in [(&file, "chmod +x"), (&without, "without/run"), (&mistaken, "teir")]
        {
            for tried in [stage, rehearse] {
                let refused = tried(&builds, source, &build("1")).unwrap_err().to_string();
                let source = source.to_str().unwrap();
                assert!(refused.contains(said) && refused.contains(source), "{refused}");
            }
        }
        script(&file, "#!/bin/sh\n");
        stage(&builds, &file, &build("1")).unwrap();
        assert_eq!(fs::read_dir(&builds).unwrap().count(), 1);
    }

    #[test]
    fn what_is_neither_file_directory_nor_symlink_is_not_staged() {
        let directory = tempfile::tempdir().unwrap();
        let builds = directory.path().join("builds");
        let fifo = |path: &Path| {
            let mode = rustix::fs::Mode::from_raw_mode(0o700);
            rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        };
        let pipe = directory.path().join("pipe");
        fifo(&pipe);
        let refused = stage(&builds, &pipe, &build("1")).unwrap_err();
        assert!(refused.is_usage() && refused.to_string().contains("neither a file"), "{refused}");
        let source = directory.path().join("source");
        tree(&source, "a");
        fifo(&source.join("lib/pipe"));
        let refused = stage(&builds, &source, &build("1")).unwrap_err();
        assert!(refused.is_usage() && refused.to_string().contains("lib/pipe"), "{refused}");
        assert_eq!(fs::read_dir(&builds).unwrap().count(), 0, "nothing is left");
        // Nor is one waited for where a manifest belongs.
        fs::remove_file(source.join("lib/pipe")).unwrap();
        fifo(&source.join(MANIFEST));
        let refused = rehearse(&builds, &source, &build("1")).unwrap_err();
        assert!(refused.to_string().contains("no regular file"), "{refused}");
        // A copy within what is copied would have no end.
        let refused = stage(&builds, directory.path(), &build("1")).unwrap_err();
        assert!(refused.is_usage() && refused.to_string().contains("in it"), "{refused}");
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
