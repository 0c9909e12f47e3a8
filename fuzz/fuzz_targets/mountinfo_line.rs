//! One line of `mountinfo`, and the escapes in its mount point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::procfs::{MountInfo, unescape};

fuzz_target!(|bytes: &[u8]| {
    if let Some(mount) = MountInfo::parse(bytes) {
        assert!(!mount.mount_point.contains(&b' '));
        assert!(!mount.fs_type.is_empty());
        assert!(unescape(mount.mount_point).count() <= mount.mount_point.len());
    }
    let plain: Vec<u8> = unescape(bytes).collect();
    assert!(plain.len() <= bytes.len());
    if !bytes.contains(&b'\\') {
        assert_eq!(plain, bytes);
    }
});
