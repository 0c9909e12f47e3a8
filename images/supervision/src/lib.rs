//! What the workers of `images/` share: a supervisor of slots, and how their command line is read.
//! Nothing of tickmark is in here: a supervisor takes no part in liveness.

pub mod command_line;
pub mod supervisor;
