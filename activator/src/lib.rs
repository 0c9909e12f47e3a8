//! Starts worker processes in slots, judges them by their marks, restarts them when the verdict is
//! red, and replaces a build by the next one without a refused connection.
