//! The mount ids of a `mountinfo` that is read in pieces; the first byte is their length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::procfs::MountIds;

fuzz_target!(|bytes: &[u8]| {
    let [length, text @ ..] = bytes else { return };
    let mut whole = Vec::new();
    MountIds::default().feed(text, |id| whole.push(id));
    let (mut pieces, mut found) = (MountIds::default(), Vec::new());
    for piece in text.chunks(usize::from(*length).max(1)) {
        pieces.feed(piece, |id| found.push(id));
    }
    assert_eq!(found, whole);
    assert!(whole.len() <= text.split(|&byte| byte == b'\n').count());
});
