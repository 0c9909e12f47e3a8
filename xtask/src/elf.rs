//! Cuts a built probe to what is loaded, reads it back and says everything that is wrong with it. A
//! linker that quietly ignores a flag is found here and not in somebody's scratch image.

use object::Endianness;
use object::elf::{FileHeader64, PF_W, PF_X, PT_DYNAMIC, PT_GNU_STACK, PT_INTERP, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

/// The budget for one file.
pub(crate) const LIMIT: usize = 24 * 1024;
/// What the size should be near to.
pub(crate) const AIM: usize = 16 * 1024;

/// Every rule that `file` breaks; none is what a release needs.
pub(crate) fn defects(file: &[u8]) -> Vec<String> {
    let mut defects =
        structure(file).unwrap_or_else(|error| vec![format!("not readable: {error}")]);
    if file.len() > LIMIT {
        defects.push(format!("{} bytes, more than the limit of {LIMIT}", file.len()));
    }
    defects
}

/// Where the last segment ends in the file.
fn loaded(file: &[u8]) -> object::Result<usize> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let ends = header.program_headers(endian, file)?.iter().map(|segment| {
        let end = segment.p_offset(endian).saturating_add(segment.p_filesz(endian));
        usize::try_from(end).unwrap_or(usize::MAX)
    });
    Ok(ends.max().unwrap_or_default())
}

/// Cuts off what lies behind the last segment, which is the table of sections and what it names: the
/// kernel loads segments. The header then says that there are no sections.
pub(crate) fn trim(file: &mut Vec<u8>) -> object::Result<()> {
    /// `e_shoff`, and `e_shentsize`, `e_shnum` and `e_shstrndx`, in the header of a 64-bit file.
    const SECTIONS: [std::ops::Range<usize>; 2] = [0x28..0x30, 0x3A..0x40];

    let loaded = loaded(file)?.max(size_of::<FileHeader64<Endianness>>());
    file.truncate(loaded);
    for place in SECTIONS {
        file[place].fill(0);
    }
    Ok(())
}

fn structure(file: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let mut defects = Vec::new();

    let mut stack = None;
    for segment in header.program_headers(endian, file)? {
        let flags = segment.p_flags(endian);
        match segment.p_type(endian) {
            PT_INTERP => defects.push("not static: it asks for an interpreter".to_owned()),
            PT_DYNAMIC => defects.push("not static: it has a dynamic section".to_owned()),
            PT_GNU_STACK => stack = Some(flags),
            PT_LOAD if flags & (PF_W | PF_X) == (PF_W | PF_X) => {
                defects.push("a segment is both writable and executable".to_owned());
            }
            _ => {}
        }
    }
    match stack {
        None => defects.push("no PT_GNU_STACK: the stack would be executable".to_owned()),
        Some(flags) if flags & PF_X == PF_X => defects.push("the stack is executable".to_owned()),
        Some(_) => {}
    }

    let loaded = loaded(file)?;
    if file.len() < loaded {
        defects.push(format!("cut short: its segments need {loaded} bytes"));
    }
    if file.len() > loaded || header.e_shnum.get(endian) > 0 {
        defects.push(format!("not stripped: it has more than the {loaded} bytes that are loaded"));
    }
    Ok(defects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf;
    use object::write::elf::{FileHeader, ProgramHeader, Writer};

    type Segment = (elf::ProgramType, elf::ProgramFlags);

    /// An executable with these segments, each of a type and flags, that loads `length` bytes and has
    /// sections.
    fn linked(segments: &[Segment], length: u64) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(Endianness::Little, true, &mut file);
        writer.reserve_file_header();
        writer.reserve_program_headers(u32::try_from(segments.len()).unwrap());
        let code = length - writer.reserved_len();
        let _reserved = writer.reserve(code, 1);
        writer.reserve_null_section_index();
        writer.reserve_shstrtab_section_index();
        let _reserved = writer.reserve_shstrtab();
        writer.reserve_section_headers();
        writer
            .write_file_header(&FileHeader {
                os_abi: elf::OsAbi(0),
                abi_version: 0,
                e_type: elf::ET_EXEC,
                e_machine: elf::EM_X86_64,
                e_entry: 0,
                e_flags: elf::FileFlags(0),
            })
            .unwrap();
        writer.write_align_program_headers();
        for &(p_type, p_flags) in segments {
            let p_filesz = if p_type == PT_LOAD { length } else { 0 };
            writer.write_program_header(&ProgramHeader {
                p_type,
                p_flags,
                p_offset: 0,
                p_vaddr: 0,
                p_paddr: 0,
                p_filesz,
                p_memsz: p_filesz,
                p_align: 0,
            });
        }
        writer.write(&vec![0x90; usize::try_from(code).unwrap()]);
        writer.write_shstrtab();
        writer.write_null_section_header();
        writer.write_shstrtab_section_header();
        file
    }

    fn trimmed(segments: &[Segment], length: u64) -> Vec<u8> {
        let mut file = linked(segments, length);
        trim(&mut file).unwrap();
        file
    }

    const R: elf::ProgramFlags = elf::PF_R;
    const RX: elf::ProgramFlags = elf::ProgramFlags(elf::PF_R.0 | PF_X.0);
    const RW: elf::ProgramFlags = elf::ProgramFlags(elf::PF_R.0 | PF_W.0);
    const GOOD: [Segment; 2] = [(PT_LOAD, RX), (PT_GNU_STACK, RW)];

    #[test]
    fn what_a_release_needs_passes() {
        let file = trimmed(&GOOD, 1000);
        assert_eq!(file.len(), 1000);
        assert_eq!(defects(&file), Vec::<String>::new());
        let mut again = file.clone();
        trim(&mut again).unwrap();
        assert_eq!(again, file);
    }

    #[test]
    fn each_rule_is_named_when_it_is_broken() {
        let cases: [(&[Segment], &str); 5] = [
            (&[GOOD[0], GOOD[1], (PT_INTERP, R)], "interpreter"),
            (&[GOOD[0], GOOD[1], (PT_DYNAMIC, R)], "dynamic section"),
            (&[GOOD[1], (PT_LOAD, R | PF_W | PF_X)], "both writable and executable"),
            (&[GOOD[0]], "no PT_GNU_STACK"),
            (&[GOOD[0], (PT_GNU_STACK, R | PF_W | PF_X)], "stack is executable"),
        ];
        for (segments, expected) in cases {
            let defects = defects(&trimmed(segments, 1000));
            assert_eq!(defects.len(), 1, "{defects:?}");
            assert!(defects[0].contains(expected), "{defects:?}");
        }
        let untrimmed = "not stripped: it has more than the 1000 bytes that are loaded";
        assert_eq!(defects(&linked(&GOOD, 1000)), [untrimmed]);
        let mut longer = trimmed(&GOOD, 1000);
        longer.push(0);
        assert_eq!(defects(&longer), [untrimmed]);
    }

    #[test]
    fn the_size_is_limited() {
        assert!(defects(&trimmed(&GOOD, LIMIT as u64)).is_empty());
        let over = "24577 bytes, more than the limit of 24576";
        assert_eq!(defects(&trimmed(&GOOD, LIMIT as u64 + 1)), [over]);
    }

    #[test]
    fn what_is_no_executable_never_passes() {
        for file in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 4096]] {
            assert!(defects(file)[0].starts_with("not readable: "));
        }
        let whole = trimmed(&GOOD, 1000);
        for length in 0..whole.len() {
            assert!(!defects(&whole[..length]).is_empty(), "cut to {length}");
        }
    }

    #[test]
    fn an_ordinary_program_does_not_pass() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let defects = defects(&this).join("; ");
        assert!(defects.contains("interpreter"), "{defects}");
        assert!(defects.contains("not stripped"), "{defects}");
        assert!(defects.contains("more than the limit"), "{defects}");
    }
}
