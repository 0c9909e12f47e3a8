//! A command line of settings, each with a variable that can stand for it. A flag wins.

use std::time::Duration;

/// A flag, such as `--slots`, and its variable. A blank variable is as good as unset.
pub type Setting = (&'static str, &'static str);

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Every setting has been given to `set`.
    Settings,
    /// `--help`.
    Help,
    /// A word that is no flag, and what stands behind it.
    Command(String, Vec<String>),
}

/// Gives `set` the flag and the value of each setting, first those of the variables.
///
/// # Errors
/// In words, after the flag or the variable that is wrong: what `set` says, a flag that is none of
/// `settings`, one without its value.
pub fn read(
    arguments: impl IntoIterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
    settings: &[Setting],
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<Asked, String> {
    for (flag, variable) in settings {
        if let Some(value) = environment(variable).filter(|value| !value.trim().is_empty()) {
            set(flag, value.trim()).map_err(|mistake| format!("{variable}: {mistake}"))?;
        }
    }
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "--help" || argument == "-h" {
            return Ok(Asked::Help);
        }
        if !argument.starts_with('-') {
            return Ok(Asked::Command(argument, arguments.collect()));
        }
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        if !settings.iter().any(|(known, _)| *known == flag) {
            return Err(format!("unknown argument {flag}"));
        }
        let value =
            value.or_else(|| arguments.next()).ok_or_else(|| format!("{flag} needs a value"))?;
        set(&flag, &value).map_err(|mistake| format!("{flag}: {mistake}"))?;
    }
    Ok(Asked::Settings)
}

/// A whole number.
///
/// # Errors
/// In words, as those below.
pub fn number(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{value:?} is not a whole number"))
}

/// A whole number from 1.
///
/// # Errors
/// As [`number`].
pub fn positive(value: &str) -> Result<u32, String> {
    match number(value)? {
        0 => Err("must be at least 1".to_owned()),
        number => Ok(number),
    }
}

/// A whole number of milliseconds.
///
/// # Errors
/// As [`number`].
pub fn milliseconds(value: &str) -> Result<Duration, String> {
    Ok(Duration::from_millis(number(value)?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &[Setting] = &[("--slots", "SLOTS"), ("--drain", "DRAIN")];

    type Set = Vec<(String, String)>;

    fn asked(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Asked, Set), String> {
        let environment = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let mut all = Set::new();
        let set = |flag: &str, value: &str| {
            positive(value)?;
            all.push((flag.to_owned(), value.to_owned()));
            Ok(())
        };
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        Ok((read(arguments, environment, SETTINGS, set)?, all))
    }

    #[test]
    fn a_flag_comes_after_its_variable() {
        let (asked, set) =
            asked(&["--drain=7", "--slots", "2"], &[("SLOTS", " 3 "), ("DRAIN", " ")]).unwrap();
        assert_eq!(asked, Asked::Settings);
        let said: Vec<_> = set.iter().map(|(flag, value)| format!("{flag} {value}")).collect();
        assert_eq!(said, ["--slots 3", "--drain 7", "--slots 2"]);
    }

    #[test]
    fn a_word_ends_the_settings() {
        let (command, set) = asked(&["--slots", "2", "switch", "--slots", "x"], &[]).unwrap();
        let rest = vec!["--slots".to_owned(), "x".to_owned()];
        assert_eq!(command, Asked::Command("switch".to_owned(), rest));
        assert_eq!(set.len(), 1);
        assert_eq!(asked(&["-h", "--color"], &[]).unwrap().0, Asked::Help);
    }

    #[test]
    fn mistakes_name_their_flag_or_variable() {
        for (arguments, environment, mistake) in [
            (&["--slots", "0"][..], &[][..], "--slots: must be at least 1"),
            (&["--slots", "x"], &[], "--slots: \"x\" is not a whole number"),
            (&["--slots="], &[], "--slots: \"\" is not a whole number"),
            (&["--drain"], &[], "--drain needs a value"),
            (&["--color"], &[], "unknown argument --color"),
            (&["-"], &[], "unknown argument -"),
            (&[], &[("DRAIN", "-1")], "DRAIN: \"-1\" is not a whole number"),
        ] {
            assert_eq!(asked(arguments, environment).unwrap_err(), mistake);
        }
    }
}
