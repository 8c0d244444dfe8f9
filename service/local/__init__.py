"""A published model asked, and a registry looked into, in this process: what the command line does without a server."""
