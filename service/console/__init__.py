"""Human-readable output of the command line; programs use `--json`."""
