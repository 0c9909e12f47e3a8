//! What is asked by the bytes of a connection, whole or in part.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tickmark::fuzz_request(bytes));
