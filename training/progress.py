"""How long work reports how far it is; who shows it, and how, is not its concern."""

from typing import Protocol


class Progress(Protocol):
    """Receives progress; the command line draws a bar from it or writes log lines."""

    def start(self, description: str, total: float | None) -> None:
        """A stage begins; `total` units of work lie ahead, None if nobody knows."""
        ...

    def advance(self, amount: float = 1, note: str = "") -> None:
        """So many units are done; `note` replaces the stage's remark, such as the current loss."""
        ...

    def finish(self) -> None:
        """The stage is over."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, description: str, total: float | None) -> None:
        """Ignore it."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Ignore it."""

    def finish(self) -> None:
        """Ignore it."""


SILENT: Progress = Silent()
"""For callers who do not want to know."""
