//! C strings that are parts of others. They stay what the kernel passed; nothing is copied.
#![allow(unsafe_code)]

use core::ffi::CStr;

/// What follows the first `from` bytes of `string`; none where it is shorter.
#[inline(never)]
pub(crate) fn tail(string: &CStr, from: usize) -> Option<&CStr> {
    let rest = string.to_bytes_with_nul().get(from..)?;
    if rest.is_empty() {
        return None;
    }
    // Not `from_bytes_with_nul`, which looks for what is known to be there.
    // SAFETY: the end of a C string, not empty, holds its NUL and no other.
    Some(unsafe { CStr::from_bytes_with_nul_unchecked(rest) })
}
