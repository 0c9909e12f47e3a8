//! Field 22 of `/proc/<pid>/stat`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::procfs::stat_start_time;

fuzz_target!(|bytes: &[u8]| {
    if let Some(start) = stat_start_time(bytes) {
        // Whatever the command is, it ends before the fields: one more must change nothing.
        let longer = [b"1 (x) ", bytes].concat();
        assert_eq!(stat_start_time(&longer), Some(start));
    }
});
