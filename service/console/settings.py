"""What `gramophone serve --settings` prints."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from service.settings import PREFIX, Settings


def show_settings() -> None:
    """Every setting's variable and default, and below them what it means."""
    console = Console()
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None or field.default == () else f"={field.default}"
        console.print(Text.assemble((f"{PREFIX}{name.upper()}", "bold"), default))
        console.print(Padding(Text(field.description or ""), (0, 0, 1, 4)))
