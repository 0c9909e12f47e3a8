//! The decoder of `topology-unsafe`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::TopologyUnsafe;

fuzz_target!(|bytes: &[u8]| tickmark_fuzz::decode::<TopologyUnsafe>(5, bytes));
