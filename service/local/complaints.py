"""What is wrong with single lines of a file, told on standard error while the others go on."""

import typer

MOST = 20
"""Complaints told one by one; of more their number is told."""


class Complaints:
    """Counts them, and tells the first ones.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0

    def warn(self, message: str) -> None:
        """Tell one more, unless there were too many."""
        self.count += 1
        if self.count <= MOST:
            typer.echo(f"gramophone: {message}", err=True)

    def warn_rest(self, file: str, what: str) -> None:
        """Tell how many were not told, such as `more bad lines` of a file."""
        if self.count > MOST:
            typer.echo(f"gramophone: {file}: {self.count - MOST:,} {what}", err=True)
