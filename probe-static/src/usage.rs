//! The texts of `--help` and `--version`. They teach: the scratch image this runs in has no manual.

/// Also what a wrong flag gets, after the line that names it.
pub(crate) const HELP: &str = "\
tickmark-probe: is this container's queue worker working?

usage: tickmark-probe [FLAG]...

Reads the worker's marks, prints one line and exits
0 healthy, 1 not healthy, 2 wrong usage. It writes nothing.

  --dir DIR          where the marks are
  --max-age SECONDS  a mark older than this is stale
  --timeout SECONDS  end by SIGALRM if the file system hangs [3]
  --explain          a table: slots, evidence, settings
  --json             the same for programs
  --version, --help

In the environment, for worker and probe alike:
  TICKMARK_DIR       [/opt/app/tmp/health]
  TICKMARK_MAX_AGE   [45]
  TICKMARK_TOPOLOGY  auto or strict [auto]

  livenessProbe: {exec: {command: [/tickmark-probe]}, periodSeconds: 10}
  kubectl exec POD -- /tickmark-probe --explain
";

/// With the version of the package.
pub(crate) const VERSION: &str = concat!("tickmark-probe ", env!("CARGO_PKG_VERSION"), "\n");
