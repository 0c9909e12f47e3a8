//! FORMAT.md and `vectors/` against the code: the same bytes, for the same sources.
//! `TICKMARK_BLESS=1` records the hash and the vectors anew; the examples in FORMAT.md are
//! written by hand.

mod directory;
mod examples;
mod vectors;

use std::fs;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use tickmark_protocol::{
    MarkFile, RECORD_LEN, Record, encode_expected, encode_generation, encode_mark, encode_unsafe,
};

const HOW: &str = "review protocol/FORMAT.md beside the change, then run \
                   TICKMARK_BLESS=1 cargo test -p tickmark-protocol --test format";

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn document() -> String {
    fs::read_to_string(path("FORMAT.md")).expect("FORMAT.md is beside the manifest")
}

fn blessed() -> bool {
    std::env::var_os("TICKMARK_BLESS").is_some_and(|value| value == "1")
}

#[test]
fn the_document_was_reviewed_for_these_sources() {
    const START: &str = "<!-- records.rs + generation.rs + envelope.rs sha256: ";
    let mut hash = Sha256::new();
    for source in ["records.rs", "generation.rs", "envelope.rs"] {
        hash.update(fs::read(path("src").join(source)).expect("a source of this crate"));
    }
    let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let document = document();
    let at = document.find(START).expect("FORMAT.md records a hash") + START.len();
    let end = at + document[at..].find(" -->").expect("the comment ends");
    if blessed() {
        let blessed = format!("{}{hash}{}", &document[..at], &document[end..]);
        fs::write(path("FORMAT.md"), blessed).expect("FORMAT.md can be written");
    } else {
        assert!(document[at..end] == hash, "the sources of the records changed: {HOW}");
    }
}

/// The bytes of a table `| offset | bytes | meaning |`, in which `00` × n stands for padding.
fn table(document: &str, name: &str) -> Vec<u8> {
    let start = format!("<!-- example: {name} -->\n");
    let (_, rest) = document.split_once(&start).expect("FORMAT.md has an example of each record");
    let mut bytes = Vec::new();
    for row in rest.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let offset: usize = cells[1].parse().expect("an offset");
        assert_eq!(offset, bytes.len(), "{name}: {row}");
        let (hex, times) = cells[2].split_once(" × ").unwrap_or((cells[2], "1"));
        let run: Vec<u8> = hex
            .trim_matches('`')
            .split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).expect("two digits"))
            .collect();
        bytes.extend(run.repeat(times.parse().expect("a number")));
    }
    bytes
}

#[test]
fn every_example_in_the_document_is_what_the_code_writes() {
    let document = document();
    let examples: [(&str, [u8; RECORD_LEN]); 6] = [
        ("expected", examples::expected().encode()),
        ("generation", examples::generation().encode()),
        ("mark", MarkFile::encode(&examples::mark())),
        ("attempt", examples::attempt().encode()),
        ("topology-unsafe", examples::topology_unsafe().encode()),
        ("topology-report", examples::topology_report().encode()),
    ];
    for (name, bytes) in examples {
        assert_eq!(table(&document, name), bytes, "{name}: {HOW}");
    }
}

#[test]
fn every_text_in_the_document_is_what_the_code_writes() {
    let document = document();
    let block = |name: &str| {
        let start = format!("<!-- text: {name} -->\n```\n");
        let (_, rest) = document.split_once(&start).expect("FORMAT.md has each text form");
        let (block, _) = rest.split_once("```").expect("the block ends");
        block.to_owned()
    };
    let without_line_end = |text: &str| format!("{text}\n");
    assert_eq!(block("expected"), without_line_end(&encode_expected(&examples::expected())));
    let generation = encode_generation(&examples::generation()).expect("it has both halves");
    assert_eq!(block("generation"), without_line_end(&generation));
    assert_eq!(block("mark"), encode_mark(&examples::mark()).as_str());
    assert_eq!(block("topology-unsafe"), encode_unsafe(&examples::topology_unsafe()).as_str());
}

#[test]
fn the_vectors_are_what_the_code_writes() {
    for (name, vectors) in vectors::all() {
        let file = path("vectors").join(name).with_extension("json");
        let text = format!("{vectors:#}\n");
        if blessed() {
            fs::write(&file, text).expect("vectors can be written");
        } else {
            let stored = fs::read_to_string(&file).unwrap_or_default();
            assert!(stored == text, "{} differs: {HOW}", file.display());
        }
    }
}
