//! The cases, by what they are about.

mod chroots;
mod evidence;
mod life;
mod one_sided;
mod restarts;
mod states;
mod strict;

pub(crate) mod old_kernel;

use std::sync::Arc;

use crate::Case;
use crate::site::Site;
use crate::spec::Credentials;

/// Every case that a container of this kernel can be made for.
pub(crate) fn all() -> Vec<Case> {
    [
        life::cases(),
        restarts::cases(),
        states::cases(),
        strict::cases(),
        one_sided::cases(),
        chroots::cases(),
        evidence::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn case(name: &str, hides: bool, run: impl FnOnce(&Arc<Site>) + Send + 'static) -> Case {
    Case { name: name.to_owned(), hides, run: Box::new(run) }
}

/// The same case with each combination of credentials.
fn with_each_credentials(
    name: &str,
    hides: bool,
    run: impl Fn(&Arc<Site>, Credentials) + Clone + Send + 'static,
) -> Vec<Case> {
    Credentials::all()
        .into_iter()
        .map(|credentials| {
            let run = run.clone();
            let name = format!("{name}, {}", credentials.name());
            case(&name, hides, move |site| run(site, credentials))
        })
        .collect()
}
