//! `check F`: reads a configuration, and says what it means on this machine. Changes nothing.

use std::path::Path;

use tickmark_activator::config::{CgroupSetting, Config};
use tickmark_activator::layout::{self, Layout};
use tickmark_activator::{Route, claims, staged};

use crate::command::{USAGE, print};
use crate::daemon::Failure;

/// Prints what the file says.
///
/// # Errors
/// A mistake in it, or hosts that can never start.
pub(crate) fn check(file: &Path) -> Result<u8, Failure> {
    let config = Config::read(file).map_err(|error| (USAGE, error.to_string()))?;
    let commands = config.activator.socket();
    let mut lines = vec![
        format!("state    {}", config.activator.state.display()),
        format!("socket   {}", commands.display()),
        format!(
            "cgroup   {}",
            match &config.activator.cgroup {
                CgroupSetting::Auto => "auto: what the daemon finds delegated to it".to_owned(),
                CgroupSetting::None =>
                    "none: a leader's exit is the only proof, and there are no limits".to_owned(),
                CgroupSetting::Path(path) => path.display().to_string(),
            }
        ),
    ];
    let routes: Vec<Route> = config.host.iter().map(|(name, host)| host.route(name)).collect();
    let conflicts = claims::conflicts(&routes.iter().collect::<Vec<_>>(), &commands);
    for route in &routes {
        let found = layout::for_generations(layout::classify(route, None), route);
        let builds = staged::list(&route.builds).map_err(|error| (USAGE, error.to_string()))?;
        let socket = match &route.socket {
            None => "no socket".to_owned(),
            // Nobody but the service's own setup makes it.
            Some(socket) if !socket.parent().is_some_and(Path::is_dir) => {
                format!("{}, in a directory that is not there", socket.display())
            }
            Some(socket) => socket.display().to_string(),
        };
        let swap = match (found, route.overlap) {
            (Layout::Foreign, _) => {
                "too long for a socket of each generation, so it stops, then starts"
            }
            (_, true) => "overlaps",
            (_, false) => "stops, then starts",
        };
        lines.push(format!(
            "host     {}: {socket}; {swap}; {} in {}",
            route.host,
            match builds.len() {
                0 => "no build yet".to_owned(),
                1 => "1 build".to_owned(),
                number => format!("{number} builds"),
            },
            route.builds.display()
        ));
    }
    lines.push(String::new());
    print(&lines.join("\n"))?;
    if conflicts.is_empty() {
        return Ok(0);
    }
    let reasons: Vec<String> =
        conflicts.iter().map(|(route, reason)| format!("{}: {reason}", route.host)).collect();
    Err((USAGE, reasons.join("; ")))
}
