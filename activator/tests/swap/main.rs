//! The activator on real processes: builds that serve and builds that fail, clients that connect
//! through the canonical path, an activator that is killed. Without root it runs uncontained; what
//! needs a cgroup of its own says so.
//!
//! This program is also what is staged: a script that runs it with other arguments is a build.

mod adoption;
mod awaits;
mod backend;
mod bad;
mod basics;
mod builds;
mod client;
mod crash;
mod daemon;
mod ending;
mod fallback;
mod foreign;
mod gates;
mod heap;
mod holds;
mod judged;
mod lease;
mod links;
mod live;
mod outside;
mod pace;
mod panics;
mod refusals;
mod rest;
mod revoked;
mod service;
mod sidecars;
mod site;
mod slots;
mod storm;
mod supervision;
mod switch;
mod unsaved;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    tickmark_activator::stub::intercept();
    let verb = std::env::args().nth(1);
    if verb.as_deref() == Some("service") {
        return service::run();
    }
    if std::env::var_os("TICKMARK_TEST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_max_level(tracing::Level::INFO)
            .init();
    }
    if verb.as_deref() == Some("daemon") {
        return daemon::run();
    }
    panics::hide_own();
    let arguments = Arguments::from_args();
    let trials = [
        basics::ALL,
        bad::ALL,
        awaits::ALL,
        panics::ALL,
        links::ALL,
        backend::ALL,
        gates::ALL,
        switch::ALL,
        builds::ALL,
        fallback::ALL,
        holds::ALL,
        unsaved::ALL,
        revoked::ALL,
        judged::ALL,
        live::ALL,
        sidecars::ALL,
        slots::ALL,
        foreign::ALL,
        pace::ALL,
        adoption::ALL,
        ending::ALL,
        supervision::ALL,
        refusals::ALL,
        rest::ALL,
        crash::ALL,
        storm::ALL,
    ]
    .into_iter()
    .flatten()
    .map(|&(name, case)| {
        Trial::test(name, move || {
            site::runtime().block_on(case());
            Ok(())
        })
    })
    .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
