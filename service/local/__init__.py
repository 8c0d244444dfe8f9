"""Work of the command line in this process: published models without a server."""
