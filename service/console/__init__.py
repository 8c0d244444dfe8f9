"""Output of the command line for people; programs use `--json`."""
