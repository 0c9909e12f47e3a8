//! The decoder of `generation`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::Generation;

fuzz_target!(|bytes: &[u8]| tickmark_fuzz::decode::<Generation>(2, bytes));
