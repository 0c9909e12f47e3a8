//! What an activator's daemon does about its hosts when it starts: it finds the delegated cgroup,
//! adopts what runs, starts what does not, and says that it is ready. Only so much, and with the
//! very parts that the daemon is made of.

use std::env;
use std::fs::{self, OpenOptions};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tickmark_activator::cgroup::{Delegation, Limit, Setting};
use tickmark_activator::process::{Identity, Process};
use tickmark_activator::stub::{self, Launch};
use tickmark_activator::{GenerationNumber, HostName, LeafName};

/// The directory of the state, where this program was started as the daemon.
pub(crate) fn asked_for() -> Option<PathBuf> {
    let mut arguments = env::args_os().skip(1);
    (arguments.next()? == "daemon").then(|| arguments.next().map(PathBuf::from))?
}

pub(crate) fn run(state: &Path) -> ExitCode {
    let deadline = Instant::now() + Duration::from_secs(60);
    let delegation = Delegation::find(&Setting::Auto)
        .expect("the delegation is looked for")
        .expect("the unit beside this one has it");
    let host = delegation.host(&HostName::new("orders").unwrap()).expect("a host");
    let name = LeafName::Generation(GenerationNumber::FIRST, 0);
    let record = state.join("identity");
    let recorded: Option<Identity> =
        fs::read(&record).ok().map(|text| serde_json::from_slice(&text).expect("the record reads"));
    let found = recorded.and_then(|identity| Process::adopt(&identity).expect("asked"));
    let process = match found {
        Some(process) => {
            let leaf = host.open_leaf(name).expect("opened").expect("its leaf is there");
            assert_eq!(process.identity().cgroup_id, Some(leaf.id()), "in the same cgroup");
            process
        }
        None => {
            let tier = Limit { pids: std::num::NonZeroU32::new(8), ..Limit::UNLIMITED };
            host.limit(&tier).expect("the controllers are delegated");
            let leaf = host.fresh_leaf(name).expect("a leaf");
            let log = OpenOptions::new().append(true).create(true).open(state.join("log")).unwrap();
            let launch = Launch {
                program: "/bin/sleep".into(),
                arguments: vec!["1000".into()],
                environment: Vec::new(),
                directory: "/".into(),
                output: log.into(),
            };
            let waiting = stub::spawn(&launch, Some(&leaf), deadline).expect("a stub");
            fs::write(&record, serde_json::to_vec(waiting.identity()).unwrap()).unwrap();
            waiting.go(deadline).expect("it runs")
        }
    };
    assert_eq!(process.exited().unwrap(), None);
    fs::write(state.join("serving"), process.pid().to_string()).unwrap();
    let socket = env::var_os("NOTIFY_SOCKET").expect("Type=notify");
    UnixDatagram::unbound().unwrap().send_to(b"READY=1", &socket).unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
