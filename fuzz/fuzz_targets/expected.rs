//! The decoder of `expected`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::Expected;

fuzz_target!(|bytes: &[u8]| tickmark_fuzz::decode::<Expected>(1, bytes));
