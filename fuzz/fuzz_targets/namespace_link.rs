//! The inode in a namespace link.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::procfs::namespace_inode;

fuzz_target!(|bytes: &[u8]| {
    for kind in ["mnt", "time", "pid", "cgroup"] {
        if let Some(inode) = namespace_inode(bytes, kind) {
            let link = format!("{kind}:[{inode}]");
            assert_eq!(namespace_inode(link.as_bytes(), kind), Some(inode));
        }
    }
});
