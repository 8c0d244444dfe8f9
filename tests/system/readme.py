"""The README's requests and the replies it shows: find them, run them, write real ones.

`python -m tests.system.readme URL` asks the service at URL and puts its replies into the README.
"""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "http://127.0.0.1:8000"


class Example(NamedTuple):
    """A shell block that calls curl, and the block of output after it."""

    command: str
    language: str
    output: str


def examples() -> list[Example]:
    """Every curl block of the README with the block that follows it."""
    blocks = [block.split("\n", 1) for block in README.read_text(encoding="utf-8").split("```")[1::2]]
    return [
        Example(command.strip(), shown[0], shown[1].strip())
        for (language, command), shown in itertools.pairwise(blocks)
        if language == "sh" and command.startswith("curl")
    ]


def run(command: str, url: str) -> str:
    """The output of a curl block, asked of another address than the one it names."""
    command = command.replace(ADDRESS, url).replace("curl ", "curl -sS ", 1)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.strip()


def pretty(value, indent: int = 0) -> str:
    """JSON with short objects and lists on one line, as a person would write it."""
    flat = json.dumps(value, ensure_ascii=False)
    scalars = isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)
    if len(flat) + indent <= 100 or not isinstance(value, dict | list) or scalars:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, list):
        inner = f",\n{pad}".join(pretty(item, indent + 2) for item in value)
        return f"[\n{pad}{inner}\n{' ' * indent}]"
    inner = f",\n{pad}".join(f"{json.dumps(k)}: {pretty(v, indent + 2)}" for k, v in value.items())
    return f"{{\n{pad}{inner}\n{' ' * indent}}}"


def rewrite(url: str) -> None:
    """Put a running service's replies into the README."""
    text = README.read_text(encoding="utf-8")
    for example in examples():
        output = run(example.command, url)
        if example.language == "json":
            output = pretty(json.loads(output))
        if example.language == "text" and example.output.endswith("…"):
            output = "\n".join(output.splitlines()[: len(example.output.splitlines()) - 1]) + "\n…"
        old = f"```{example.language}\n{example.output}\n```"
        assert text.count(f"{example.command}\n```\n\n{old}") == 1, example.command
        text = text.replace(
            f"{example.command}\n```\n\n{old}",
            f"{example.command}\n```\n\n```{example.language}\n{output}\n```",
        )
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite(sys.argv[1])
