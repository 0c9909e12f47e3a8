//! The text encoding: byte for byte what `kicks_liveness` 0.1.4 writes, and a reader that
//! takes nothing else.

use core::fmt::Write;

use heapless::String;

use crate::decode::Decode as _;
use crate::{Expected, Generation, MAX_FILE_LEN, Mark, TopologyUnsafe, UNSUPPORTED_TOPOLOGY};

/// Room for the longest text record.
pub const TEXT_MAX: usize = 384;

/// What a text mark says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextMark {
    /// Year, month, day, hour, minute and second in UTC. Only for people, so that nothing is reckoned
    /// from them before somebody asks.
    civil: [u16; 6],
    /// The writer's process id.
    pub pid: u32,
    /// The slot.
    pub slot: u32,
    /// Mount namespace inode and PID 1 start time; text carries no other evidence.
    pub generation: Option<Generation>,
}

impl TextMark {
    /// What a line is read into.
    #[inline(never)]
    pub(crate) fn blank() -> TextMark {
        TextMark { civil: [0; 6], pid: 0, slot: 0, generation: None }
    }

    /// Seconds since 1970, for people.
    #[must_use]
    pub fn wall_s(&self) -> u64 {
        let [year, month, day, hour, minute, second] = self.civil.map(u64::from);
        // Days from a civil date, counting years from 1 March so that the leap day comes last.
        let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
        let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
        (days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second
    }
}

/// `expected`: the number alone, without a line end.
#[must_use]
pub fn encode_expected(expected: &Expected) -> String<TEXT_MAX> {
    let mut text = String::new();
    let _fits = write!(text, "{}", expected.processes);
    text
}

/// `generation`: `mnt:[4026532616]:12345`, without a line end; `None` where the evidence has
/// no such pair.
#[must_use]
pub fn encode_generation(generation: &Generation) -> Option<String<TEXT_MAX>> {
    let (inode, start) = generation.formula()?;
    let mut text = String::new();
    write!(text, "mnt:[{inode}]:{start}").ok()?;
    Some(text)
}

/// `worker-<slot>`: one line.
#[must_use]
pub fn encode_mark(mark: &Mark) -> String<TEXT_MAX> {
    let (year, month, day, hour, minute, second) = civil(mark.wall_ms / 1000);
    let mut text = String::new();
    let _fits = write!(
        text,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z pid={} slot={}",
        mark.pid, mark.slot
    );
    if let Some(generation) = mark.generation.as_ref().and_then(encode_generation) {
        let _fits = write!(text, " generation={generation}");
    }
    let _fits = text.push('\n');
    text
}

/// `topology-unsafe`: the verdict, then what proved it.
#[must_use]
pub fn encode_unsafe(record: &TopologyUnsafe) -> String<TEXT_MAX> {
    let mut text = String::new();
    let _fits = writeln!(text, "{UNSUPPORTED_TOPOLOGY}");
    if !record.detail.is_empty() {
        let _fits = writeln!(text, "{}", record.detail);
    }
    text
}

/// Decimal with an optional sign and white space around it. What is below zero reads as 0,
/// what is too large for the field as its maximum: both are refused by the verdict.
pub(crate) fn parse_expected(bytes: &[u8]) -> Option<u32> {
    // What follows in a longer file may be more digits.
    if bytes.len() >= MAX_FILE_LEN {
        return None;
    }
    let text = bytes.trim_ascii();
    let (negative, digits) = match text {
        [sign @ (b'-' | b'+'), digits @ ..] => (*sign == b'-', digits),
        digits => (false, digits),
    };
    let mut processes = 0u32;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        processes = processes.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
    }
    (!digits.is_empty()).then_some(if negative { 0 } else { processes })
}

#[inline(never)]
pub(crate) fn parse_formula(bytes: &[u8]) -> Option<(u64, u64)> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let rest = bytes.strip_prefix(b"mnt:[")?;
    let (inode, rest) = rest.split_at_checked(rest.iter().position(|&b| b == b']')?)?;
    let inode = decimal(inode)?;
    let start = decimal(rest.strip_prefix(b"]:")?)?;
    Some((inode, start))
}

pub(crate) fn parse_unsafe(bytes: &[u8]) -> Option<TopologyUnsafe> {
    let text = core::str::from_utf8(bytes).ok()?;
    let detail = text.lines().nth(1).unwrap_or_default();
    Some(TopologyUnsafe { detail: String::try_from(detail).ok()? })
}

/// `2026-11-29T18:00:00Z pid=7 slot=0[ generation=mnt:[…]:…]\n`. The line end is required: it
/// is the only sign that the line is whole.
pub(crate) fn parse_mark(bytes: &[u8], mark: &mut TextMark) -> Option<()> {
    let line = bytes.strip_suffix(b"\n")?;
    let (time, line) = line.split_at_checked(20)?;
    parse_time(time, &mut mark.civil)?;
    let line = number_after(line, b" pid=", &mut mark.pid)?;
    let line = number_after(line, b" slot=", &mut mark.slot)?;
    if !line.is_empty() {
        let generation = line.strip_prefix(b" generation=")?;
        // A generation of its own file may end its line; here the line has ended.
        if generation.ends_with(b"\n") {
            return None;
        }
        mark.generation.insert(Generation::empty()).parse(generation)?;
    }
    Some(())
}

/// Reads the number behind `label`, and gives what follows it.
fn number_after<'a>(line: &'a [u8], label: &[u8], number: &mut u32) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(label)?;
    let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
    let (digits, rest) = rest.split_at_checked(end)?;
    *number = u32::try_from(decimal(digits)?).ok()?;
    Some(rest)
}

/// Digits alone: no sign, no separators, no overflow.
#[inline(never)]
#[must_use]
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &byte in bytes {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    Some(value)
}

fn parse_time(text: &[u8], civil: &mut [u16; 6]) -> Option<()> {
    /// Where each number begins, what ends it, and its least and greatest value.
    const PARTS: [(u8, u8, u8, u16, u16); 6] = [
        (0, 4, b'-', 1970, 9999),
        (5, 7, b'-', 1, 12),
        (8, 10, b'T', 1, 31),
        (11, 13, b':', 0, 23),
        (14, 16, b':', 0, 59),
        (17, 19, b'Z', 0, 60),
    ];
    for ((from, to, end, least, most), place) in PARTS.iter().zip(civil) {
        let number = decimal(text.get(usize::from(*from)..usize::from(*to))?)? as u16;
        if text.get(usize::from(*to)) != Some(end) || number < *least || number > *most {
            return None;
        }
        *place = number;
    }
    Some(())
}

/// Year, month, day, hour, minute and second of a UTC time, the inverse of [`TextMark::wall_s`].
fn civil(unix_s: u64) -> (u64, u64, u64, u64, u64, u64) {
    let (days, rest) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60)
}
