//! A mark with every bit flipped, cut at every length, or too long: never healthy, always named.

use std::thread;

use crate::answer::{DAMAGED, ONE_HEALTHY, answers};
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("damage::every_bit_flipped", Need::Nothing, every_bit),
    case("damage::cut_at_every_length", Need::Nothing, every_length),
    case("damage::longer_than_a_record", Need::Nothing, longer),
];

/// Each variant stands where slot 0's mark should be, in a directory of the thread's own.
fn each(site: &Site, variants: usize, make: impl Fn(&[u8], usize) -> (Vec<u8>, String) + Sync) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let make = &make;
    thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                let marks = Marks::healthy(site, 1);
                let whole = marks.read("worker-0");
                assert_eq!(whole.len(), 512);
                for variant in (first..variants).step_by(threads) {
                    let (bytes, line) = make(&whole, variant);
                    marks.write("worker-0", bytes);
                    answers(site, &marks, 1, line);
                }
            });
        }
    });
}

fn every_bit(site: &Site) {
    each(site, 512 * 8, |whole, bit| {
        let mut bytes = whole.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // The version's byte: every value above the reader's is a later format.
        let line = match (bit / 8, bytes[3]) {
            (3, version @ 2..) => {
                format!("worker-0 written by a newer tickmark (format {version})")
            }
            _ => DAMAGED.to_owned(),
        };
        (bytes, line)
    });
}

fn every_length(site: &Site) {
    each(site, 512, |whole, length| (whole[..length].to_vec(), DAMAGED.to_owned()));
}

fn longer(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let whole = marks.read("worker-0");
    for length in [513, 4095, 4096, 4097, 8192] {
        for padding in [0, whole[511], b'\n'] {
            let mut bytes = whole.clone();
            bytes.resize(length, padding);
            marks.write("worker-0", bytes);
            answers(site, &marks, 1, DAMAGED);
        }
    }
    marks.write("worker-0", whole);
    answers(site, &marks, 0, ONE_HEALTHY);
}
