//! The texts of `--help` and `--version`. They teach: the scratch image this runs in has no manual.

/// Also what a wrong flag gets, after the line that names it.
pub(crate) const HELP: &str = "\
usage: tickmark-probe [FLAG]...

Is this container's queue worker working? Reads its marks, prints
one line and exits 0 healthy, 1 not healthy, 2 wrong usage.

  --dir DIR          where the marks are [/opt/app/tmp/health]
  --max-age SECONDS  a mark older than this is stale [45]
  --timeout SECONDS  end by SIGALRM if the file system hangs [3]
  --explain, --json  with what it rests on, for people or programs
  --version, --help

Worker and probe read TICKMARK_DIR, TICKMARK_MAX_AGE and
TICKMARK_TOPOLOGY (auto or strict).

  livenessProbe: {exec: {command: [/tickmark-probe]}, periodSeconds: 10}
";

/// With the version of the package.
pub(crate) const VERSION: &str = concat!("tickmark-probe ", env!("CARGO_PKG_VERSION"), "\n");
