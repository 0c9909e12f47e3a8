//! The boot id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::procfs::boot_id;

fuzz_target!(|bytes: &[u8]| {
    if let Some(id) = boot_id(bytes) {
        let plain: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(boot_id(plain.as_bytes()), Some(id));
    }
});
