//! Whom a probe asks: the static probe, the gem's, an endpoint, or something that is not ours.

use std::ffi::{CStr, CString};

use k8s_openapi::api::core::v1::{HTTPGetAction, Probe};
use tickmark_probe::arguments::{self, Mode};
use tickmark_protocol::{Sink, Words};

/// What a probe does.
pub(super) enum Asking<'a> {
    Tickmark(Call),
    /// `kicks-liveness`, which reads text alone.
    Gem,
    /// An `exec` of a file whose name is a whole command line.
    OneWord(&'a str),
    Http(&'a HTTPGetAction),
    Tcp,
    Grpc,
    Other,
}

/// A call of the static probe.
pub(super) struct Call {
    /// The word that names the probe.
    pub(super) program: String,
    /// A shell or another program in front of it.
    pub(super) through: Option<String>,
    /// `… || true` and its like: the exit status is not the probe's.
    pub(super) hides_status: bool,
    pub(super) flags: Result<Flags, String>,
}

/// The flags, as the probe itself reads them.
pub(super) struct Flags {
    pub(super) dir: Option<String>,
    pub(super) max_age: Option<u64>,
    pub(super) timeout: u64,
    /// `--help` and `--version` judge nothing.
    pub(super) judges: bool,
}

const PROGRAM: &str = "tickmark-probe";
const SHELLS: [&str; 7] = ["sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"];

impl<'a> Asking<'a> {
    pub(super) fn of(probe: &'a Probe) -> Self {
        if let Some(http) = &probe.http_get {
            return Self::Http(http);
        }
        if probe.tcp_socket.is_some() {
            return Self::Tcp;
        }
        if probe.grpc.is_some() {
            return Self::Grpc;
        }
        let command = probe.exec.as_ref().and_then(|exec| exec.command.as_deref());
        Self::of_command(command.unwrap_or_default())
    }

    fn of_command(command: &'a [String]) -> Self {
        let Some(first) = command.first() else {
            return Self::Other;
        };
        if command
            .iter()
            .any(|word| word.contains("kicks-liveness") || word.contains("kicks_liveness"))
        {
            return Self::Gem;
        }
        if file_name(first).split_whitespace().next() == Some(PROGRAM) && first.contains(' ') {
            return Self::OneWord(first);
        }
        if let Some(at) = command.iter().position(|word| file_name(word) == PROGRAM) {
            let through = (at > 0).then(|| first.clone());
            let arguments = command.get(at + 1..).unwrap_or_default();
            return Self::Tickmark(Call {
                program: command.get(at).cloned().unwrap_or_default(),
                through,
                hides_status: false,
                flags: Flags::read(arguments.iter().map(String::as_str)),
            });
        }
        if SHELLS.contains(&file_name(first))
            && let Some(script) = command.iter().find(|word| word.contains(PROGRAM))
        {
            return Self::Tickmark(Call::of_script(first, script));
        }
        Self::Other
    }
}

impl Call {
    fn of_script(shell: &str, script: &str) -> Self {
        // What ends a command in a shell stands alone then.
        let spaced = [";", "&", "|", ">", "<", "\n"]
            .iter()
            .fold(script.to_owned(), |script, end| script.replace(end, &format!(" {end} ")));
        let mut words = spaced.split([' ', '\t']).filter(|word| !word.is_empty());
        let program = words.find(|word| file_name(word) == PROGRAM);
        let arguments = words
            .take_while(|word| ![";", "&", "|", ">", "<", "\n", "\\"].contains(word))
            .map(|word| word.trim_matches(['"', '\'']));
        let after = script.replace(char::is_whitespace, "");
        Self {
            program: program.unwrap_or(PROGRAM).to_owned(),
            through: Some(shell.to_owned()),
            hides_status: ["||true", "||:", "||exit0", ";true", ";exit0", ";:"]
                .iter()
                .any(|ending| after.contains(ending)),
            flags: Flags::read(arguments),
        }
    }
}

impl Flags {
    /// What the probe would make of these arguments, by its own code; what it would say is the error.
    fn read<'w>(words: impl Iterator<Item = &'w str>) -> Result<Self, String> {
        let words: Vec<CString> =
            words.map(CString::new).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let parsed =
            arguments::parse(&mut words.iter().map(CString::as_c_str)).map_err(|error| {
                let mut said = Said(Vec::new());
                error.say(&mut said);
                String::from_utf8_lossy(&said.0).into_owned()
            })?;
        Ok(Self {
            dir: parsed.dir.map(CStr::to_string_lossy).map(std::borrow::Cow::into_owned),
            max_age: parsed.max_age.map(|seconds| u64::from(seconds.get())),
            timeout: parsed.timeout.get().into(),
            judges: !matches!(parsed.mode, Mode::Help | Mode::Version),
        })
    }
}

struct Said(Vec<u8>);

impl Sink for Said {
    fn put(&mut self, text: &[u8]) {
        self.0.extend_from_slice(text);
    }
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}
