//! The decoder of `topology-report`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::TopologyReport;

fuzz_target!(|bytes: &[u8]| tickmark_fuzz::decode::<TopologyReport>(6, bytes));
