//! Reads a built probe back and says everything that is wrong with it. A linker that quietly ignores a
//! flag is found here and not in somebody's scratch image.

use object::elf::{FileHeader64, PF_W, PF_X, PT_DYNAMIC, PT_GNU_STACK, PT_INTERP, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, elf};

/// The budget for one file.
pub(crate) const LIMIT: usize = 31 * 1024;
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

    let sections = header.sections(endian, file)?;
    for section in sections.iter() {
        let name = String::from_utf8_lossy(sections.section_name(endian, section)?);
        if section.sh_type(endian) == elf::SHT_SYMTAB || name.starts_with(".debug") {
            defects.push(format!("not stripped: it has {name}"));
        }
    }
    Ok(defects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::elf::{FileHeader, ProgramHeader, Writer};

    type Segment = (elf::ProgramType, elf::ProgramFlags);

    /// An executable with these segments, each of a type and flags, and a symbol table if wanted.
    fn executable(segments: &[Segment], symbols: bool) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(Endianness::Little, true, &mut file);
        writer.reserve_file_header();
        writer.reserve_program_headers(u32::try_from(segments.len()).unwrap());
        writer.reserve_null_section_index();
        if symbols {
            writer.reserve_null_symbol_index();
            writer.reserve_symtab_section_index();
            writer.reserve_strtab_section_index();
        }
        writer.reserve_shstrtab_section_index();
        writer.reserve_symtab();
        let _reserved = writer.reserve_strtab();
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
            writer.write_program_header(&ProgramHeader {
                p_type,
                p_flags,
                p_offset: 0,
                p_vaddr: 0,
                p_paddr: 0,
                p_filesz: 0,
                p_memsz: 0,
                p_align: 0,
            });
        }
        writer.write_null_symbol();
        writer.write_strtab();
        writer.write_shstrtab();
        writer.write_null_section_header();
        writer.write_symtab_section_header(0);
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
        file
    }

    const R: elf::ProgramFlags = elf::PF_R;
    const RX: elf::ProgramFlags = elf::ProgramFlags(elf::PF_R.0 | PF_X.0);
    const RW: elf::ProgramFlags = elf::ProgramFlags(elf::PF_R.0 | PF_W.0);
    const GOOD: [Segment; 2] = [(PT_LOAD, RX), (PT_GNU_STACK, RW)];

    #[test]
    fn what_a_release_needs_passes() {
        assert_eq!(defects(&executable(&GOOD, false)), Vec::<String>::new());
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
            let defects = defects(&executable(segments, false));
            assert_eq!(defects.len(), 1, "{defects:?}");
            assert!(defects[0].contains(expected), "{defects:?}");
        }
        let defects = defects(&executable(&GOOD, true));
        assert_eq!(defects, ["not stripped: it has .symtab"]);
    }

    #[test]
    fn the_size_is_limited() {
        let mut file = executable(&GOOD, false);
        file.resize(LIMIT, 0);
        assert!(defects(&file).is_empty());
        file.push(0);
        assert_eq!(defects(&file), ["31745 bytes, more than the limit of 31744"]);
    }

    #[test]
    fn what_is_no_executable_never_passes() {
        for file in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 4096]] {
            assert!(defects(file)[0].starts_with("not readable: "));
        }
        let whole = executable(&GOOD, false);
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
