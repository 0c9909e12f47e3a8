//! The handle: opens the state directory, finds what runs, and takes requests. Whoever holds it
//! may go away: a task of each host owns what was asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tickmark::protocol::MaxAge;
use tokio::sync::broadcast;

use crate::backend::{Backend, SplitBackend};
use crate::cgroup::{Delegation, Setting};
use crate::choices::{Choices, Deploying};
use crate::claims;
use crate::config::{CgroupSetting, Config, HostConfig};
use crate::error::{Error, Kind};
use crate::exec::{ExecBackend, Purge};
use crate::fence::WriteFence;
use crate::gate::Context;
use crate::health::{Launched, MarksRoot};
use crate::host::{Answer, Ask, Host, HostStatus, Restart, Settings, Shared, Step, blocking};
use crate::name::{BuildName, GenerationNumber, HostName};
use crate::route::Route;
use crate::staged::{self, Staged};
use crate::state::{HostDirectory, Lease, Ran};

/// How many steps a slow listener may fall behind before it misses some.
const STEPS: usize = 1024;

/// How a request is made.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How long a start may take until it is ready, from its beginning on; the host's
    /// `start_deadline` without it.
    pub deadline: Option<Duration>,
    /// What the request belongs to: ended, it starts nothing more.
    pub context: Context,
}

/// A build of a host, as it is listed.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Build {
    /// Its name.
    pub name: BuildName,
    /// The live link names it.
    pub live: bool,
    /// A generation of it is not proven gone.
    pub running: bool,
    /// Why its start failed, where it did.
    pub failed: Option<String>,
}

/// An open activator. Its hosts go on running when it is closed or dropped.
pub struct Activator {
    hosts: BTreeMap<HostName, Host>,
    steps: broadcast::Sender<Step>,
    lease: Arc<Lease>,
    choices: Arc<Choices>,
}

impl std::fmt::Debug for Activator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Activator")
            .field("state", &self.lease.path())
            .field("hosts", &self.hosts.keys())
            .finish()
    }
}

/// Puts a backend of another kind around the one that is there.
pub type Wrap = dyn FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend> + Send;

/// What an activator is opened with beside its configuration.
#[derive(Default)]
pub struct Hooks {
    /// Drops stored responses at each switch.
    pub purge: Option<Arc<Purge>>,
    /// Wraps the backend, for one of another kind.
    pub backend: Option<Box<Wrap>>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("purge", &self.purge.is_some()).finish_non_exhaustive()
    }
}

impl Activator {
    /// Takes the lease, finds what an earlier activator left, adopts or removes it. In a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`Error::is_lease_lost`] where another activator has the state directory; a state file that
    /// does not read; a cgroup that was named and is none.
    pub async fn open(config: Config) -> Result<Activator, Error> {
        Activator::open_with(config, Hooks::default()).await
    }

    /// As [`Activator::open`], with hooks.
    ///
    /// # Errors
    /// The same.
    pub async fn open_with(config: Config, hooks: Hooks) -> Result<Activator, Error> {
        let state = config.activator.state.clone();
        let setting = match &config.activator.cgroup {
            CgroupSetting::Auto => Setting::Auto,
            CgroupSetting::None => Setting::None,
            CgroupSetting::Path(path) => Setting::Path(path.clone()),
        };
        let mut settings: Vec<Settings> =
            config.host.iter().map(|(name, host)| settings(name, host)).collect();
        let commands = config.activator.socket();
        let (lease, marks, delegation, settings) = blocking(move || {
            let lease = Lease::take(&state)?;
            let marks = MarksRoot::of(&state)?;
            let delegation = Delegation::find(&setting)?;
            mark_conflicts(&mut settings, &commands);
            forget_old_marks(&marks, &lease, &settings)?;
            Ok((Arc::new(lease), marks, delegation, settings))
        })
        .await?;
        let mut exec = ExecBackend::new(lease.path(), marks, delegation);
        if let Some(purge) = hooks.purge {
            exec = exec.purging(purge);
        }
        let mut backend: Arc<dyn Backend> =
            Arc::new(SplitBackend { exec: Arc::new(exec), unit: None });
        if let Some(wrap) = hooks.backend {
            backend = wrap(backend);
        }
        let (steps, _) = broadcast::channel(STEPS);
        let choices = Arc::<Choices>::default();
        let mut hosts = BTreeMap::new();
        for settings in settings {
            let name = settings.route.host.clone();
            let (backend, lease) = (Arc::clone(&backend), Arc::clone(&lease));
            let host = Host::open(settings, backend, lease, Arc::clone(&choices), steps.clone())?;
            hosts.insert(name, host);
        }
        Ok(Activator { hosts, steps, lease, choices })
    }

    /// The steps of all hosts from now on, as they pass.
    #[must_use]
    pub fn steps(&self) -> broadcast::Receiver<Step> {
        self.steps.subscribe()
    }

    /// The names of the hosts, in order.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.keys()
    }

    /// Stages `path` as a build (by its own file name where none is given), and swaps to it.
    ///
    /// # Errors
    /// Nothing was asked of the host: it is unknown, or the build cannot be staged.
    pub async fn deploy(
        &self,
        host: &HostName,
        path: &Path,
        build: Option<BuildName>,
        options: Options,
    ) -> Result<Answer, Error> {
        let (name, _stays) = self.stage_to_deploy(host, path, build).await?;
        self.swap(host, name, options).await
    }

    /// Stages `path` as a build, and changes nothing else.
    ///
    /// # Errors
    /// The host is unknown, the name cannot be one, or the build cannot be staged.
    pub async fn stage(
        &self,
        host: &HostName,
        path: &Path,
        build: Option<BuildName>,
    ) -> Result<BuildName, Error> {
        self.stage_to_deploy(host, path, build).await.map(|(name, _)| name)
    }

    /// The build stays while what comes with its name does.
    async fn stage_to_deploy(
        &self,
        host: &HostName,
        path: &Path,
        build: Option<BuildName>,
    ) -> Result<(BuildName, Deploying), Error> {
        let builds = self.host(host)?.shared.route().builds.clone();
        let name = named(path, build)?;
        let (path, choices) = (path.to_owned(), Arc::clone(&self.choices));
        blocking(move || {
            let stays = choices.deploy(builds.join(name.as_str()));
            staged::stage(&builds, &path, &name)?;
            Ok((name, stays))
        })
        .await
    }

    /// Says as which build `path` would be staged, and changes nothing.
    ///
    /// # Errors
    /// Those that staging it would give, as far as they can be known before.
    pub async fn would_stage(
        &self,
        host: &HostName,
        path: &Path,
        build: Option<BuildName>,
    ) -> Result<BuildName, Error> {
        let builds = self.host(host)?.shared.route().builds.clone();
        let name = named(path, build)?;
        let (path, staged) = (path.to_owned(), name.clone());
        blocking(move || staged::rehearse(&builds, &path, &staged)).await?;
        Ok(name)
    }

    /// Lets a staged build serve.
    ///
    /// # Errors
    /// Nothing was asked of the host: it is unknown, or the activator is closed.
    pub async fn swap(
        &self,
        host: &HostName,
        build: BuildName,
        options: Options,
    ) -> Result<Answer, Error> {
        self.ask(host, Ask::Swap(build), options).await
    }

    /// Lets the build serve that did before the current one.
    ///
    /// # Errors
    /// As [`Activator::swap`].
    pub async fn rollback(&self, host: &HostName, options: Options) -> Result<Answer, Error> {
        self.ask(host, Ask::Rollback, options).await
    }

    /// A new generation of the build that serves.
    ///
    /// # Errors
    /// As [`Activator::swap`].
    pub async fn restart(&self, host: &HostName, options: Options) -> Result<Answer, Error> {
        self.ask(host, Ask::Restart, options).await
    }

    /// Nothing is to serve.
    ///
    /// # Errors
    /// As [`Activator::swap`].
    pub async fn stop(&self, host: &HostName) -> Result<Answer, Error> {
        self.ask(host, Ask::Stop, Options::default()).await
    }

    /// Starts a host that sleeps: the build it is pinned to, else the live one.
    ///
    /// # Errors
    /// As [`Activator::swap`].
    pub async fn wake(&self, host: &HostName, options: Options) -> Result<Answer, Error> {
        self.ask(host, Ask::Wake, options).await
    }

    /// Lets a staged build serve, and pins the host to it once it does.
    ///
    /// # Errors
    /// As [`Activator::swap`].
    pub async fn hold(
        &self,
        host: &HostName,
        build: BuildName,
        options: Options,
    ) -> Result<Answer, Error> {
        self.ask(host, Ask::Hold(build), options).await
    }

    /// Pins a host to no build any more, and gives the one that it was pinned to. What serves serves
    /// on.
    ///
    /// # Errors
    /// The host is unknown, or that could not be made durable.
    pub async fn release(&self, host: &HostName) -> Result<Option<BuildName>, Error> {
        self.host(host)?.release().await
    }

    /// Allows no launch for a host, and says why; `None` lifts the fence. What runs goes on.
    ///
    /// # Errors
    /// The host is unknown, or the fence could not be made durable.
    pub async fn fence(&self, host: &HostName, reason: Option<String>) -> Result<(), Error> {
        self.host(host)?.fence(reason).await
    }

    /// The builds that are staged for a host.
    ///
    /// # Errors
    /// The host is unknown, or its builds cannot be listed.
    pub async fn builds(&self, host: &HostName) -> Result<Vec<Build>, Error> {
        let shared = Arc::clone(&self.host(host)?.shared);
        blocking(move || {
            let live = shared.directory.live_build()?;
            let names = staged::list(&shared.route().builds)?;
            let store = shared.store();
            Ok(names
                .into_iter()
                .map(|name| Build {
                    live: live.as_ref() == Some(&name),
                    running: in_use(&store, &name),
                    failed: store.failed.get(&name).cloned(),
                    name,
                })
                .collect())
        })
        .await
    }

    /// Removes staged builds but the newest `keep` by name, and never one that any host needs: that
    /// runs or is about to, is being deployed, was healthy last, is live, is held or served before.
    /// What such a build links to is needed too. Gives the names. What is asked for meanwhile is
    /// found before it is removed, or not at all.
    ///
    /// # Errors
    /// As [`Activator::builds`], or a build that cannot be removed.
    pub async fn prune(&self, host: &HostName, keep: usize) -> Result<Vec<BuildName>, Error> {
        let shared = &self.host(host)?.shared;
        loop {
            let chosen = self.choices.chosen();
            // Hosts may share a directory of builds.
            let mut hosts = Vec::new();
            for host in self.hosts.values() {
                hosts.push((Arc::clone(&host.shared), host.captured().await?));
            }
            let (shared, choices) = (Arc::clone(shared), Arc::clone(&self.choices));
            let removed = blocking(move || {
                let remove =
                    |deploying| remove_all_but(&shared.route().builds, keep, &hosts, deploying);
                choices.unless_chosen_since(chosen, remove).transpose()
            });
            if let Some(removed) = removed.await? {
                return Ok(removed);
            }
        }
    }

    /// What a host is.
    ///
    /// # Errors
    /// The host is unknown, or the activator is closed.
    pub async fn status(&self, host: &HostName) -> Result<HostStatus, Error> {
        self.host(host)?.status().await
    }

    /// Where a host's processes write to.
    ///
    /// # Errors
    /// The host is unknown.
    pub fn log(&self, host: &HostName) -> Result<std::path::PathBuf, Error> {
        Ok(self.host(host)?.shared.directory.log())
    }

    /// The write fence of all hosts: a write runs only while its generation is the current one,
    /// and no switch happens meanwhile.
    #[must_use]
    pub fn write_fence(&self) -> WriteFence {
        let hosts = self.hosts.clone();
        WriteFence::new(move |host, number: GenerationNumber, write| {
            hosts.get(host).is_some_and(|host| host.write(number, write))
        })
    }

    /// Revokes what has not started yet, lets the hosts run on, and gives up the lease. Dropping it
    /// does the same, and tells nobody when it is done.
    pub async fn close(self) {
        for host in self.hosts.values() {
            host.close().await;
        }
        self.lease.give_up();
    }

    async fn ask(&self, host: &HostName, ask: Ask, options: Options) -> Result<Answer, Error> {
        self.host(host)?.ask(ask, options.deadline, options.context).await
    }

    fn host(&self, name: &HostName) -> Result<&Host, Error> {
        self.hosts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.hosts.keys().map(HostName::as_str).collect();
            Error::new(
                Kind::Unknown,
                format!("there is no host {name}: the configuration has {}", known.join(", ")),
            )
        })
    }
}

/// The name of a build, by default that of its file.
fn named(path: &Path, build: Option<BuildName>) -> Result<BuildName, Error> {
    build.map_or_else(
        || {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            BuildName::new(name).map_err(|error| {
                Error::because(Kind::Usage, "give the build a name (--build)", error)
            })
        },
        Ok,
    )
}

impl Drop for Activator {
    fn drop(&mut self) {
        for host in self.hosts.values() {
            host.let_go();
        }
    }
}

fn in_use(store: &crate::state::HostState, name: &BuildName) -> bool {
    store.ran.values().any(|ran| ran.generation.build.as_ref() == Some(name))
}

/// See [`Activator::prune`].
fn remove_all_but(
    builds: &Path,
    keep: usize,
    hosts: &[(Arc<Shared>, Vec<Staged>)],
    deploying: Vec<PathBuf>,
) -> Result<Vec<BuildName>, Error> {
    let real: Vec<PathBuf> = deploying.iter().flat_map(std::fs::canonicalize).collect();
    let mut needed = [deploying, real].concat();
    for (host, captured) in hosts {
        needed.extend(needs(host, captured)?);
    }
    let mut removed = Vec::new();
    for name in staged::list(builds)?.iter().rev().skip(keep) {
        let path = builds.join(name.as_str());
        let real = std::fs::canonicalize(&path);
        // A link that leads nowhere is only a name.
        let leads_to = |needed: &PathBuf| {
            *needed == path || real.as_ref().is_ok_and(|real| needed.starts_with(real))
        };
        if !needed.iter().any(leads_to) {
            staged::remove(builds, name)?;
            removed.push(name.clone());
        }
    }
    Ok(removed)
}

/// What a host needs of its builds: their names' paths, what those lead to, and the executables.
fn needs(shared: &Shared, captured: &[Staged]) -> Result<Vec<PathBuf>, Error> {
    let builds = &shared.route().builds;
    let live = shared.directory.live_build()?;
    let store = shared.store().clone();
    let mut needed: Vec<PathBuf> = captured.iter().map(|build| build.program.clone()).collect();
    needed.extend(store.ran.values().filter_map(|ran| ran.generation.staged.clone()));
    let ran = store.ran.values().filter_map(|ran| ran.generation.build.as_ref());
    let names = captured.iter().map(|build| &build.name).chain(ran).chain(&store.hold);
    for name in names.chain(store.before(live.as_ref())).chain(&live) {
        needed.push(builds.join(name.as_str()));
        needed.extend(staged::needs(builds, name));
    }
    Ok(needed)
}

fn settings(name: &HostName, host: &HostConfig) -> Settings {
    // As its worker reads it: the first that is set decides, whether it says an age or not.
    let max_age = ["TICKMARK_MAX_AGE", "KICKS_LIVENESS_MAX_AGE"]
        .iter()
        .filter_map(|variable| host.env.get(*variable))
        .map(|text| text.trim())
        .find(|text| !text.is_empty())
        .and_then(|text| tickmark::settings::parse_max_age(text.as_bytes()));
    Settings {
        route: host.route(name),
        start_deadline: host.start_deadline.0,
        settle: host.settle.0,
        drain: host.drain.0,
        restart: Restart {
            red: host.restart.red.max(1),
            check: host.restart.check.0,
            min: host.restart.min.0,
            max: host.restart.max.0,
            reset: host.restart.reset.0,
        },
        max_age: max_age.unwrap_or(MaxAge::DEFAULT),
    }
}

fn mark_conflicts(settings: &mut [Settings], commands: &Path) {
    let routes: Vec<&Route> = settings.iter().map(|settings| &settings.route).collect();
    let found: Vec<(HostName, String)> = claims::conflicts(&routes, commands)
        .into_iter()
        .map(|(route, reason)| (route.host.clone(), reason))
        .collect();
    for settings in settings {
        let conflict = found.iter().find(|(host, _)| *host == settings.route.host);
        settings.route.conflict = conflict.map(|(_, reason)| reason.clone());
    }
}

/// Removes marks of launches that no state file names any more, whether its host is still
/// configured or not. One that is not, and may still run, is said.
fn forget_old_marks(
    marks: &MarksRoot,
    lease: &Lease,
    configured: &[Settings],
) -> Result<(), Error> {
    let mut kept: Vec<Launched> = Vec::new();
    for host in HostDirectory::list(lease.path())? {
        let state = HostDirectory::open(lease.path(), &host)?.load()?;
        let ran = state.ran.into_values().flat_map(|ran| ran.slots);
        let ran: Vec<Ran> = ran.chain(state.sidecar.map(|(_, ran)| ran)).collect();
        let is_configured = configured.iter().any(|one| one.route.host == host);
        if !is_configured && !ran.is_empty() {
            tracing::warn!(
                %host,
                "it is not in the configuration any more, and what runs of it runs on, neither judged \
                 nor restarted: to end it, put it back and stop it first"
            );
        }
        kept.extend(ran.into_iter().map(|ran| ran.launched));
    }
    marks.retain(&kept.iter().collect::<Vec<_>>());
    Ok(())
}
