"""In-process work of the command line on published models, without a server."""
