"""What the command line prints for people; programs use `--json`."""
