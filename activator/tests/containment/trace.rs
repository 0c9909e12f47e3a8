//! A program whose first instruction already leaves a trace: no C library, no loader, nothing
//! that runs before. It makes the file that its first argument names, and exits.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes the program to `path`.
pub(crate) fn write_program(path: &Path) {
    fs::write(path, program()).expect("the program is written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is executable");
}

#[cfg(target_arch = "x86_64")]
fn program() -> Vec<u8> {
    #[rustfmt::skip]
    let code: [u8; 35] = [
        0x48, 0x8b, 0x7c, 0x24, 0x10,             // mov rdi, [rsp+16]   argv[1]
        0xbe, 0x41, 0x00, 0x00, 0x00,             // mov esi, O_WRONLY|O_CREAT
        0xba, 0xa4, 0x01, 0x00, 0x00,             // mov edx, 0644
        0xb8, 0x02, 0x00, 0x00, 0x00,             // mov eax, open
        0x0f, 0x05,                               // syscall
        0x31, 0xff,                               // xor edi, edi
        0xb8, 0xe7, 0x00, 0x00, 0x00,             // mov eax, exit_group
        0x0f, 0x05,                               // syscall
        0x0f, 0x0b, 0x0f, 0x0b,                   // ud2
    ];
    elf(62, &code)
}

#[cfg(target_arch = "aarch64")]
fn program() -> Vec<u8> {
    let code: Vec<u8> = [
        0x9280_0c60_u32, // mov x0, AT_FDCWD
        0xf940_0be1,     // ldr x1, [sp, #16]   argv[1]
        0xd280_0822,     // mov x2, O_WRONLY|O_CREAT
        0xd280_3483,     // mov x3, 0644
        0xd280_0708,     // mov x8, openat
        0xd400_0001,     // svc 0
        0xd280_0000,     // mov x0, 0
        0xd280_0bc8,     // mov x8, exit_group
        0xd400_0001,     // svc 0
    ]
    .into_iter()
    .flat_map(u32::to_le_bytes)
    .collect();
    elf(183, &code)
}

/// One segment, readable and executable, header and all.
fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u16 = 64 + 56;
    let length = u64::from(HEADERS) + code.len() as u64;
    let mut file = Vec::new();
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(2_u16.to_le_bytes()); // an executable
    file.extend(machine.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    file.extend((BASE + u64::from(HEADERS)).to_le_bytes()); // its entry
    file.extend(64_u64.to_le_bytes()); // program headers
    file.extend(0_u64.to_le_bytes()); // no sections
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes()); // loaded
    file.extend(5_u32.to_le_bytes()); // read, execute
    for word in [0, BASE, BASE, length, length, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    assert_eq!(file.len(), usize::from(HEADERS));
    file.extend(code);
    file
}
