//! Words without `core::fmt`: what the verdict and its parts say, into a sink of bytes. The
//! formatter of `core` costs a static program several kilobytes, which the probe has not got;
//! everyone else uses `Display`, which comes from the same words.

use core::fmt;

use crate::procfs::until_byte;

/// Where words go.
pub trait Sink {
    /// Takes a piece of a text in UTF-8; no character lies across two pieces.
    fn put(&mut self, text: &[u8]);
}

/// Something that can be said.
pub trait Words {
    /// Says it, whole, into `sink`.
    fn say(&self, sink: &mut dyn Sink);
}

impl Words for str {
    fn say(&self, sink: &mut dyn Sink) {
        sink.put(self.as_bytes());
    }
}

impl Words for &str {
    fn say(&self, sink: &mut dyn Sink) {
        sink.put(self.as_bytes());
    }
}

impl Words for u64 {
    #[inline(never)]
    fn say(&self, sink: &mut dyn Sink) {
        let mut digits = [0; 20];
        let mut rest = *self;
        let mut from = digits.len();
        while from > 0 {
            from -= 1;
            digits[from] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        sink.put(&digits[from..]);
    }
}

impl Words for u32 {
    fn say(&self, sink: &mut dyn Sink) {
        u64::from(*self).say(sink);
    }
}

impl Words for bool {
    fn say(&self, sink: &mut dyn Sink) {
        sink.put(if *self { b"true" } else { b"false" });
    }
}

/// One of the words in `list`, which stand one to a line: where something is one of several words, a
/// table of them is a pointer and a length for each.
#[inline(never)]
#[must_use]
pub fn nth(list: &'static str, index: usize) -> &'static [u8] {
    let mut rest = list.as_bytes();
    for _ in 0..index {
        rest = until_byte(rest, b'\n').1;
    }
    until_byte(rest, b'\n').0
}

/// A path or another text of unknown bytes: what is not printable ASCII is shown as `?`, so
/// that a line stays one line and JSON stays JSON.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a [u8]);

impl Words for Shown<'_> {
    fn say(&self, sink: &mut dyn Sink) {
        for &byte in self.0 {
            sink.put(&[if matches!(byte, b' '..=b'~') { byte } else { b'?' }]);
        }
    }
}

/// Says `text` with each `%` replaced by the next of `parts`: one constant, where every piece of a
/// sentence would be one of its own and a place in `parts`. Parts without a `%` are not said.
#[inline(never)]
pub fn say_with(text: &str, parts: &[&dyn Words], sink: &mut dyn Sink) {
    let mut rest = text.as_bytes();
    for part in parts {
        let (piece, after) = until_byte(rest, b'%');
        if piece.len() == rest.len() {
            break;
        }
        sink.put(piece);
        part.say(sink);
        rest = after;
    }
    sink.put(rest);
}

/// A formatter as a sink; remembers whether it failed.
pub(crate) struct Formatted<'a, 'f> {
    pub(crate) formatter: &'a mut fmt::Formatter<'f>,
    pub(crate) result: fmt::Result,
}

impl Sink for Formatted<'_, '_> {
    fn put(&mut self, text: &[u8]) {
        for piece in text.utf8_chunks() {
            if self.result.is_ok() {
                self.result = self.formatter.write_str(piece.valid());
            }
        }
    }
}

/// `Display` from the same words.
macro_rules! display {
    ($($type:ty),+) => {$(
        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut sink = $crate::words::Formatted { formatter: f, result: Ok(()) };
                $crate::words::Words::say(self, &mut sink);
                sink.result
            }
        }
    )+};
}
pub(crate) use display;
