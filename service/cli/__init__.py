"""The command line, a file a group of commands; the one place that knows both `service` and `training`."""

from service.cli.program import app, main

__all__ = ["app", "main"]
