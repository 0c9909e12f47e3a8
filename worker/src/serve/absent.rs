//! What stands in for the server where the feature `serve` is off: one that says so.

use std::fmt;
use std::net::SocketAddr;

use tickmark_protocol::Encoding;

use crate::environment::Environment;
use crate::log::SlotLog;
use crate::procfs::Inspection;

pub(crate) struct Port;

impl Port {
    #[expect(clippy::needless_pass_by_value, reason = "as the real one takes it")]
    pub(crate) fn new(
        _address: Option<SocketAddr>,
        environment: Environment,
        _inspection: &Inspection,
        _encoding: Encoding,
        log: &SlotLog<impl fmt::Display>,
    ) -> Port {
        if environment.asks_to_serve() {
            log.warn(
                "TICKMARK_SERVE is set, and this worker was built without tickmark's feature \
                 `serve`: nothing is served",
            );
        }
        Port
    }

    #[expect(clippy::unused_self, reason = "as the real one")]
    pub(crate) fn tick(&mut self) {}
}
