//! The worker's own variables, those the probe does not share: the tick, the shutdown grace,
//! the slot and the number of processes. A variable that is blank or invalid means the
//! default, except the slot: a silent slot 0 would let a healthy process hide a stalled one.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::string::String;
use std::time::Duration;

use tickmark_protocol::{Slot, SlotCount};

use crate::settings::Settings;

/// The variables of tickmark and of the gem, read once.
#[derive(Debug, Clone)]
pub(crate) struct Environment(BTreeMap<String, CString>);

/// A value and the variable it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given<'a, T> {
    pub(crate) value: T,
    pub(crate) variable: &'a str,
}

impl Environment {
    pub(crate) fn of_process() -> Environment {
        Environment::from_variables(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_vec()))),
        )
    }

    pub(crate) fn from_variables(
        variables: impl IntoIterator<Item = (String, impl Into<std::vec::Vec<u8>>)>,
    ) -> Environment {
        Environment(
            variables
                .into_iter()
                .filter(|(name, _)| {
                    name.starts_with("TICKMARK_") || name.starts_with("KICKS_LIVENESS_")
                })
                .filter_map(|(name, value)| Some((name, CString::new(value).ok()?)))
                .collect(),
        )
    }

    /// What the worker shares with the probe.
    pub(crate) fn shared(&self) -> Settings<'_> {
        Settings::from_lookup(|name| self.0.get(name).map(CString::as_c_str))
    }

    /// The first of `names` that is not blank, without the white space around it.
    fn text<'a>(&'a self, names: &[&'a str]) -> Option<Given<'a, &'a [u8]>> {
        names.iter().find_map(|&variable| {
            let value = self.0.get(variable).map(|value| CStr::to_bytes(value).trim_ascii())?;
            (!value.is_empty()).then_some(Given { value, variable })
        })
    }

    fn seconds<'a>(&'a self, names: &[&'a str]) -> Option<Given<'a, Duration>> {
        let Given { value, variable } = self.text(names)?;
        // What the clock cannot hold in nanoseconds is not a number of seconds to it.
        let seconds = number(value).filter(|&n| n > 0 && n.checked_mul(1_000_000_000).is_some())?;
        Some(Given { value: Duration::from_secs(seconds), variable })
    }

    pub(crate) fn tick(&self) -> Option<Given<'_, Duration>> {
        self.seconds(&["TICKMARK_TICK", "KICKS_LIVENESS_TICK"])
    }

    pub(crate) fn shutdown_grace(&self) -> Option<Duration> {
        self.seconds(&["TICKMARK_SHUTDOWN_GRACE", "KICKS_LIVENESS_SHUTDOWN_GRACE"])
            .map(|given| given.value)
    }

    pub(crate) fn processes(&self) -> Option<SlotCount> {
        let value = self.text(&["TICKMARK_PROCESSES"])?.value;
        SlotCount::new(u32::try_from(number(value)?).ok()?).ok()
    }

    /// Where the verdict is to be served; the text itself where it is no address with a port.
    #[cfg(feature = "serve")]
    pub(crate) fn serve(&self) -> Option<Result<std::net::SocketAddr, String>> {
        let text = String::from_utf8_lossy(self.text(&["TICKMARK_SERVE"])?.value);
        let address = text.parse().ok().filter(|address: &std::net::SocketAddr| address.port() > 0);
        Some(address.ok_or_else(|| text.into_owned()))
    }

    /// Whether somebody expects the verdict to be served.
    #[cfg(not(feature = "serve"))]
    pub(crate) fn asks_to_serve(&self) -> bool {
        self.text(&["TICKMARK_SERVE"]).is_some()
    }

    /// `None` where it is not said; the text itself where it is not a slot.
    pub(crate) fn slot(&self) -> Option<Result<Slot, String>> {
        let value = self.text(&["TICKMARK_SLOT"])?.value;
        let slot = number(value)
            .and_then(|n| u32::try_from(n).ok())
            .and_then(|n| Slot::new(n).ok())
            .ok_or_else(|| String::from_utf8_lossy(value).into_owned());
        Some(slot)
    }
}

/// Digits alone: `parse` would take a sign.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
