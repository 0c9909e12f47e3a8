//! From the bytes of a request to what is asked. The parser is `httparse`'s; a body is not read, and
//! after one answer the connection ends.

use httparse::{EMPTY_HEADER, Request, Status};

/// The longest request that is read, its headers included.
pub(super) const LONGEST: usize = 8 * 1024;
/// A service mesh adds some of its own.
const MOST_HEADERS: usize = 64;

/// What a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Page {
        page: Page,
        /// HEAD: all but the body.
        head_only: bool,
    },
    Nothing(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Livez,
    Explain,
    Metrics,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    NotHttp,
    NoSuchPath,
    OtherMethod,
    TooLong,
}

/// Reads a request; `None` while it is not whole.
pub(super) fn read(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut request = Request::new(&mut headers);
    let refusal = match request.parse(bytes) {
        Ok(Status::Complete(_)) => return Some(ask(&request)),
        Ok(Status::Partial) if bytes.len() < LONGEST => return None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => Refusal::TooLong,
        Err(_) => Refusal::NotHttp,
    };
    Some(Asked::Nothing(refusal))
}

/// Whether `bytes`, of which those before `seen` were none, may be a whole request: parsing at every
/// byte of a slow one is work for nothing.
pub(super) fn may_be_whole(bytes: &[u8], seen: usize) -> bool {
    let new = bytes.get(seen.saturating_sub(2)..).unwrap_or_default();
    let blank_line = |three: &[u8]| three == b"\n\r\n" || three.ends_with(b"\n\n");
    seen == 0 || bytes.len() >= LONGEST || new.windows(3).any(blank_line)
}

fn ask(request: &Request<'_, '_>) -> Asked {
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Asked::Nothing(Refusal::NotHttp);
    };
    let page = match path(target) {
        "/livez" => Page::Livez,
        "/explain" => Page::Explain,
        "/metrics" => Page::Metrics,
        _ => return Asked::Nothing(Refusal::NoSuchPath),
    };
    match method {
        "GET" => Asked::Page { page, head_only: false },
        "HEAD" => Asked::Page { page, head_only: true },
        _ => Asked::Nothing(Refusal::OtherMethod),
    }
}

/// The path of a request's target, which a proxy may send with the host before it.
/// Source: RFC 9112, section 3.2.
fn path(target: &str) -> &str {
    let origin = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("", |slash| &rest[slash..]),
        None => target,
    };
    origin.split_once(['?', '#']).map_or(origin, |(path, _)| path)
}

/// What a fuzzer calls.
///
/// # Panics
/// Where a request that comes byte by byte is not found to ask what it asks as a whole.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let whole = read(bytes);
    let trickled = (1..=bytes.len()).find_map(|end| {
        let so_far = bytes.get(..end).unwrap_or_default();
        if may_be_whole(so_far, end - 1) { read(so_far) } else { None }
    });
    if matches!(whole, Some(Asked::Page { .. })) {
        assert_eq!(trickled, whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;
    use std::vec;

    const LIVEZ: Asked = Asked::Page { page: Page::Livez, head_only: false };

    #[test]
    fn the_three_pages_by_get_and_head() {
        for (page, name) in
            [(Page::Livez, "livez"), (Page::Explain, "explain"), (Page::Metrics, "metrics")]
        {
            for (method, head_only) in [("GET", false), ("HEAD", true)] {
                for version in ["1.0", "1.1"] {
                    let request = format!("{method} /{name} HTTP/{version}\r\nHost: x\r\n\r\n");
                    assert_eq!(read(request.as_bytes()), Some(Asked::Page { page, head_only }));
                }
            }
        }
    }

    #[test]
    fn a_query_and_a_host_do_not_change_the_path() {
        for target in
            ["/livez?verbose", "http://pod:8086/livez", "http://pod/livez?a=/b", "/livez#x"]
        {
            let request = format!("GET {target} HTTP/1.1\r\n\r\n");
            assert_eq!(read(request.as_bytes()), Some(LIVEZ), "{target}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let cases = [
            ("GET / HTTP/1.1", Refusal::NoSuchPath),
            ("GET /livez/ HTTP/1.1", Refusal::NoSuchPath),
            ("GET //livez HTTP/1.1", Refusal::NoSuchPath),
            ("GET /LIVEZ HTTP/1.1", Refusal::NoSuchPath),
            ("GET /../livez HTTP/1.1", Refusal::NoSuchPath),
            ("GET http://livez HTTP/1.1", Refusal::NoSuchPath),
            ("OPTIONS * HTTP/1.1", Refusal::NoSuchPath),
            ("POST /livez HTTP/1.1", Refusal::OtherMethod),
            ("DELETE /metrics HTTP/1.1", Refusal::OtherMethod),
            ("get /livez HTTP/1.1", Refusal::OtherMethod),
            ("GET /livez", Refusal::NotHttp),
            ("GET /livez HTTP/2.0", Refusal::NotHttp),
            ("PRI * HTTP/2.0", Refusal::NotHttp),
            ("\u{16}\u{3}\u{1}", Refusal::NotHttp),
        ];
        for (line, refusal) in cases {
            let request = format!("{line}\r\n\r\n");
            assert_eq!(read(request.as_bytes()), Some(Asked::Nothing(refusal)), "{line:?}");
        }
    }

    #[test]
    fn a_request_has_an_end_and_a_limit() {
        let request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
        for cut in 0..request.len() {
            assert_eq!(read(&request[..cut]), None, "{cut}");
            assert!(!may_be_whole(&request[..cut], cut.saturating_sub(1).max(1)));
            assert!(may_be_whole(request, cut), "{cut}");
        }
        assert!(may_be_whole(b"GET /livez HTTP/1.1\n\nbody", 20));
        let many: String = (0..65).map(|n| format!("A{n}: b\r\n")).collect();
        let many = format!("GET /livez HTTP/1.1\r\n{many}\r\n");
        assert_eq!(read(many.as_bytes()), Some(Asked::Nothing(Refusal::TooLong)));
        let mut long = b"GET /livez HTTP/1.1\r\nA: ".to_vec();
        long.extend(vec![b'a'; LONGEST - long.len()]);
        assert_eq!(read(&long[..LONGEST - 1]), None);
        assert_eq!(read(&long), Some(Asked::Nothing(Refusal::TooLong)));
    }
}
