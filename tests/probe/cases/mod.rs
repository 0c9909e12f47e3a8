//! Every case, by what is odd about it.

mod calls;
mod command_line;
mod damage;
mod environment;
mod hang;
mod header;
mod marks;
mod report;
mod started;
mod text;

use crate::Case;

pub(crate) fn all() -> Vec<Case> {
    [
        // The long one first, so that the others run beside it.
        damage::CASES,
        hang::CASES,
        header::CASES,
        marks::CASES,
        text::CASES,
        environment::CASES,
        command_line::CASES,
        started::CASES,
        calls::CASES,
        report::CASES,
    ]
    .into_iter()
    .flat_map(|cases| cases.iter().copied())
    .collect()
}
