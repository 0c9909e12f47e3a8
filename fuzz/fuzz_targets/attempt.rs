//! The decoder of `attempt`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::Attempt;

fuzz_target!(|bytes: &[u8]| tickmark_fuzz::decode::<Attempt>(4, bytes));
