//! From the text of a file to its YAML documents, each with its number and the lines of its nodes.

use std::fmt;

use super::tree::Tree;

/// One document of a file. Empty ones count and are not here.
#[derive(Debug)]
pub(super) struct Document {
    /// From 1.
    pub(super) number: usize,
    pub(super) tree: Tree,
}

/// Why a text is not YAML, and where: from 1, both.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) line: u64,
    pub(super) column: u64,
    pub(super) why: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.why)
    }
}

/// What to do about a template, said wherever one is met.
pub(super) const TEMPLATE: &str = "this is a template, not a manifest: render it first, as in \
    `helm template CHART | cargo xtask lint-manifest -`";

/// Reads every document.
///
/// # Errors
/// What is not YAML, with the position; an alias that would grow without bound is one of these.
pub(super) fn documents(text: &str) -> Result<Vec<Document>, Broken> {
    let mut bytes = text.as_bytes();
    // A manifest is hundreds of nodes; one that grows to more than this is an attack, or a mistake.
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 };
    let options = serde_saphyr::options! { with_snippet: false, alias_limits: alias_limits };
    let mut documents = Vec::new();
    for tree in serde_saphyr::read_with_options::<_, Tree>(&mut bytes, options) {
        let tree = tree.map_err(|error| broken(&error, text))?;
        // A document of comments alone is a null to some and nothing to others.
        if !tree.is_null() {
            documents.push(Document { number: number(text, tree.line()), tree });
        }
    }
    Ok(documents)
}

fn broken(error: &serde_saphyr::Error, text: &str) -> Broken {
    let (line, column) =
        error.location().map_or((1, 1), |location| (location.line(), location.column()));
    let said = error.to_string();
    let said = said.split(" at line ").next().unwrap_or(&said);
    let why = if is_template(text) {
        TEMPLATE.to_owned()
    } else {
        // The library's hint is for who calls it.
        said.split(", set DuplicateKeyPolicy").next().unwrap_or(said).to_owned()
    };
    Broken { line, column, why }
}

/// The number of the document that a line is in: a `---` at the beginning of a line is a marker wherever
/// it stands (YAML 1.2, production 206), so they can be counted without a parser.
fn number(text: &str, line: u64) -> usize {
    let mut markers = 0;
    let mut before_the_first = false;
    for here in text.lines().take(usize::try_from(line).unwrap_or(usize::MAX)) {
        let rest = here.trim_start_matches('\u{feff}').strip_prefix("---");
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t'])) {
            markers += 1;
        } else if markers == 0 {
            let content = here.trim();
            before_the_first |= !content.is_empty() && !content.starts_with(['#', '%']);
        }
    }
    markers + usize::from(before_the_first)
}

/// Whether a text holds what Helm puts between its braces.
pub(super) fn is_template(text: &str) -> bool {
    text.split("{{").skip(1).any(|inside| {
        let inside = inside.trim_start_matches(['-', ' ']);
        [
            ".Values",
            ".Release",
            ".Chart",
            ".Capabilities",
            ".Files",
            ".Template",
            "include ",
            "template ",
            "tpl ",
            "if ",
            "else",
            "end",
            "with ",
            "range ",
            "define ",
            "toYaml ",
        ]
        .iter()
        .any(|word| inside.starts_with(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Vec<(usize, u64)> {
        let documents = documents(text).unwrap();
        documents.iter().map(|document| (document.number, document.tree.line())).collect()
    }

    #[test]
    fn documents_are_counted_as_people_count_them() {
        assert_eq!(numbers(""), []);
        assert_eq!(numbers("---\n---\n# only this\n"), []);
        assert_eq!(numbers("a: 1\n"), [(1, 1)]);
        assert_eq!(numbers("# first\n---\na: 1\n"), [(1, 3)]);
        assert_eq!(numbers("a: 1\n---\nb: 1\n---\n---\nc: 1\n"), [(1, 1), (2, 3), (4, 6)]);
        assert_eq!(numbers("a: |\n  ---\n---\nb: 1\n"), [(1, 1), (2, 4)]);
    }

    #[test]
    fn windows_line_ends_are_line_ends() {
        assert_eq!(numbers("a: 1\r\n---\r\nb:\r\n  - c\r\n"), [(1, 1), (2, 3)]);
        let documents = documents("a: b\r\n").unwrap();
        assert_eq!(documents[0].tree.to_json(), serde_json::json!({ "a": "b" }));
    }

    #[test]
    fn anchors_aliases_and_merges_are_followed() {
        let text = "base: &base\n  a: x\n  b: w\none: *base\ntwo:\n  <<: *base\n  b: z\n";
        let documents = documents(text).unwrap();
        let tree = &documents[0].tree;
        assert_eq!(tree.to_json()["one"], serde_json::json!({ "a": "x", "b": "w" }));
        assert_eq!(tree.to_json()["two"], serde_json::json!({ "a": "x", "b": "z" }));
        assert_eq!((tree.line_of("two.b"), tree.line_of("two.a")), (7, 2));
    }

    #[test]
    fn scalars_are_what_the_api_server_takes_them_for() {
        let documents = documents("a: yes\nb: '45'\nc: 45\nd: off\ne: 1Mi\n").unwrap();
        assert_eq!(
            documents[0].tree.to_json(),
            serde_json::json!({ "a": true, "b": "45", "c": 45, "d": false, "e": "1Mi" })
        );
    }

    #[test]
    fn what_is_not_yaml_is_said_with_its_place() {
        for (text, place, why) in [
            ("a: 1\nb: c: d\n", (2, 5), "mapping values are not allowed"),
            ("a:\n\t- b\n", (2, 2), "tabs"),
            ("a: 1\na: 2\n", (2, 1), "duplicate mapping key: a"),
            ("a: *nowhere\n", (1, 4), "unknown anchor"),
            ("a: 1\n---\nb: [1\n", (3, 4), "unclosed"),
        ] {
            let broken = documents(text).unwrap_err();
            assert_eq!((broken.line, broken.column), place, "{text:?}: {broken}");
            assert!(broken.why.contains(why), "{text:?}: {broken}");
            assert!(!broken.why.contains("Policy"), "{broken}");
        }
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (next, last) in "bcdefghi".chars().zip("abcdefgh".chars()) {
            let aliases = vec![format!("*{last}"); 10].join(", ");
            text += &format!("{next}: &{next} [{aliases}]\n");
        }
        documents(&text).unwrap_err();
    }

    #[test]
    fn a_template_is_called_one() {
        for text in [
            "a: {{ .Values.image }}\n",
            "{{- if .Values.worker }}\na: 1\n{{- end }}\n",
            "a:\n  {{- toYaml .Values.env | nindent 2 }}\n",
        ] {
            assert!(documents(text).unwrap_err().why.contains("helm template"), "{text:?}");
        }
        assert!(is_template("\"{{ .Values.image }}\""));
        // Prometheus writes braces too.
        assert!(!is_template("queue {{ $labels.queue }} is empty"));
    }
}
