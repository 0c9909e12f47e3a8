//! `/proc/<pid>/cgroup` of two processes, divided by the first NUL.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::procfs::{at_cgroup_root, pid1_cgroup_outside};

fuzz_target!(|bytes: &[u8]| {
    let middle = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (own, pid1) = (&bytes[..middle], &bytes[(middle + 1).min(bytes.len())..]);
    let _ = at_cgroup_root(own);
    // What shows from inside a namespace shows without one too.
    assert!(!pid1_cgroup_outside(own, pid1, false) || pid1_cgroup_outside(own, pid1, true));
    // The same on both sides is a witness only where it says `/..` itself.
    let unlike = own.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
    if unlike <= 1 {
        assert_eq!(pid1_cgroup_outside(own, own, true), pid1_cgroup_outside(own, own, false));
    }
});
