//! The settings that worker and probe share: every kind of value, and what each one means.

use std::collections::HashMap;
use std::ffi::{CStr, CString};

use tickmark::protocol::Encoding;
use tickmark::settings::{DEFAULT_DIR, Settings, Source};

struct Environment(HashMap<&'static str, CString>);

fn environment(variables: &[(&'static str, &str)]) -> Environment {
    let entry =
        |&(name, value): &(&'static str, &str)| (name, CString::new(value).expect("no NUL"));
    Environment(variables.iter().map(entry).collect())
}

impl Environment {
    fn settings(&self) -> Settings<'_> {
        Settings::from_lookup(|name| self.0.get(name).map(CString::as_c_str))
    }
}

#[test]
fn nothing_set_means_the_defaults() {
    let environment = environment(&[]);
    let settings = environment.settings();
    assert_eq!((settings.dir.value, settings.dir.source), (DEFAULT_DIR, Source::DEFAULT));
    assert_eq!(settings.max_age.value.as_secs(), 45);
    assert!(!settings.strict.value);
    assert_eq!(settings.format.value, Encoding::Binary);
    assert_eq!(settings.launch, None);
}

#[test]
fn each_variable_is_taken_and_its_source_named() {
    let environment = environment(&[
        ("TICKMARK_DIR", "/marks"),
        ("TICKMARK_MAX_AGE", " 7 "),
        ("TICKMARK_TOPOLOGY", "strict"),
        ("TICKMARK_FORMAT", "text"),
        ("TICKMARK_LAUNCH", "4f1c"),
    ]);
    let settings = environment.settings();
    assert_eq!(settings.dir.value, c"/marks");
    assert_eq!(settings.dir.source, Source::environment("TICKMARK_DIR"));
    assert_eq!(settings.max_age.value.as_secs(), 7);
    assert_eq!(settings.max_age.source, Source::environment("TICKMARK_MAX_AGE"));
    assert!(settings.strict.value);
    assert_eq!(settings.format.value, Encoding::Text);
    assert_eq!(settings.launch.as_ref().map(|launch| launch.as_str()), Some("4f1c"));
}

#[test]
fn the_gems_names_count_where_ours_are_unset_or_blank() {
    for ours in [None, Some(""), Some("  ")] {
        let mut variables = vec![("KICKS_LIVENESS_DIR", "/gem"), ("KICKS_LIVENESS_MAX_AGE", "90")];
        variables.extend(ours.map(|value| ("TICKMARK_DIR", value)));
        variables.extend(ours.map(|value| ("TICKMARK_MAX_AGE", value)));
        let environment = environment(&variables);
        let settings = environment.settings();
        assert_eq!(settings.dir.value, c"/gem", "{ours:?}");
        assert_eq!(settings.dir.source, Source::environment("KICKS_LIVENESS_DIR"));
        assert_eq!(settings.max_age.value.as_secs(), 90);
    }
    let both = environment(&[("TICKMARK_DIR", "/ours"), ("KICKS_LIVENESS_DIR", "/gem")]);
    assert_eq!(both.settings().dir.value, c"/ours");
}

#[test]
fn an_invalid_value_means_the_default() {
    for text in
        ["", "0", "-1", "+5", "1.5", "abc", "45s", "0x10", "4294967296", "99999999999999999999"]
    {
        let environment = environment(&[("TICKMARK_MAX_AGE", text)]);
        let max_age = environment.settings().max_age;
        assert_eq!((max_age.value.as_secs(), max_age.source), (45, Source::DEFAULT), "{text:?}");
    }
    for text in ["", "Strict", "yes", "1", "strictest"] {
        let environment = environment(&[("TICKMARK_TOPOLOGY", text), ("TICKMARK_FORMAT", text)]);
        let settings = environment.settings();
        assert!(!settings.strict.value, "{text:?}");
        assert_eq!(settings.format.value, Encoding::Binary, "{text:?}");
    }
    let long = "a".repeat(65);
    for text in ["", " ", "a b", "\u{e9}", long.as_str()] {
        let environment = environment(&[("TICKMARK_LAUNCH", text)]);
        assert_eq!(environment.settings().launch, None, "{text:?}");
    }
}

#[test]
fn the_longest_launch_token_is_taken_whole() {
    let token = "a".repeat(64);
    let environment = environment(&[("TICKMARK_LAUNCH", token.as_str())]);
    let launch = environment.settings().launch;
    assert_eq!(launch.as_ref().map(|launch| launch.as_str()), Some(token.as_str()));
}

#[test]
fn a_directory_need_not_be_text() {
    let name = CString::new(vec![b'/', 0xff, b'x']).expect("no NUL");
    let lookup = |variable: &str| -> Option<&CStr> {
        (variable == "TICKMARK_DIR").then_some(name.as_c_str())
    };
    assert_eq!(Settings::from_lookup(lookup).dir.value, name.as_c_str());
}
