//! The functions that compiled code calls for a copy, a fill, a comparison and the length of a string.
//! The C library has them too, and start code, tables and alignment with them.
#![allow(unsafe_code)]

/// # Safety
/// As memcpy(3): `to` and `from` are valid for `length` bytes and do not overlap.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller's promise is the one that is needed; the direction flag is clear by the psABI.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rcx") length => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// # Safety
/// As memset(3): `to` is valid for `length` bytes.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    // SAFETY: as for memcpy.
    unsafe {
        core::arch::asm!(
            "rep stosb",
            inout("rdi") to => _,
            in("al") byte as u8,
            inout("rcx") length => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// # Safety
/// As memcpy(3): `to` and `from` are valid for `length` bytes and do not overlap.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    let mut at = 0;
    while at < length {
        // SAFETY: `at` is below `length`.
        unsafe { *to.add(at) = *from.add(at) };
        at += 1;
    }
    to
}

/// # Safety
/// As memset(3): `to` is valid for `length` bytes.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    let mut at = 0;
    while at < length {
        // SAFETY: `at` is below `length`.
        unsafe { *to.add(at) = byte as u8 };
        at += 1;
    }
    to
}

/// # Safety
/// As memcmp(3): `left` and `right` are valid for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    let mut at = 0;
    while at < length {
        // SAFETY: `at` is below `length`.
        let (left, right) = unsafe { (*left.add(at), *right.add(at)) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
        at += 1;
    }
    0
}

/// # Safety
/// As memcmp(3). What compiled code calls where only equality counts.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    // SAFETY: the same promise.
    unsafe { memcmp(left, right, length) }
}

/// # Safety
/// As strlen(3): `string` ends with a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(string: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the bytes up to the zero, and it, are the string's.
    while unsafe { *string.add(length) } != 0 {
        length += 1;
    }
    length
}
