//! The decoder of `worker-<slot>`, in both encodings.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tickmark_fuzz::decode_mark(bytes));
