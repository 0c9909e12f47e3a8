//! The system calls that rustix does not have for a program without a C library. Nothing here
//! decides anything.
#![allow(unsafe_code)]

/// A system call with up to four arguments. Returns what the kernel does: below zero is `-errno`.
///
/// # Safety
/// As the call with this `number` on this architecture asks: pointers among `arguments` must be
/// valid for what it reads and writes.
///
/// # References
/// syscall(2), "Architecture calling conventions".
#[inline(always)]
pub unsafe fn call(number: usize, arguments: [usize; 4]) -> isize {
    let [first, second, third, fourth] = arguments;
    let answer: isize;
    // SAFETY: the registers are those of the kernel's convention; it changes no other than the ones
    // named here, and memory only as the caller has promised.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => answer,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            options(nostack),
        );
    }
    answer
}
