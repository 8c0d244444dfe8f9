"""The README's blocks: find them, and put a running service's replies into those that show replies.

`python -m tests.system.readme URL` asks the service at URL and writes its replies into the README.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RUNBOOK = ROOT / "deploy" / "RUNBOOK.md"
PICTURE = ROOT / "tests/system/playground.png"
ADDRESS = "http://127.0.0.1:8000"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """What stands between two fences, and the block of output after it, if it shows any.

    Attributes:
        line: number of its first line.
        language: the word after the fence.
        text: its lines.
        language_shown: `json` or `text` where output follows, else empty.
        shown: that output.
    """

    line: int
    language: str
    text: str
    language_shown: str = ""
    shown: str = ""

    @property
    def is_request(self) -> bool:
        """Whether it is curl alone, which any service with the default models can answer."""
        return self.language == "sh" and self.text.startswith("curl ")

    def __str__(self) -> str:
        """Where it is and how it begins, for names of tests."""
        return f"{self.line}: {self.text.splitlines()[0][:60]}"


def blocks(document: Path = README) -> list[Block]:
    """All blocks but those of output, which are told with what they are the output of."""
    text = document.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in FENCED.finditer(text):
        language, content = match.groups()
        if language in {"json", "text"}:
            found[-1] = found[-1]._replace(language_shown=language, shown=content.strip())
        else:
            line = text.count("\n", 0, match.start()) + 2
            found.append(Block(line, language, content.strip()))
    return found


def ask(block: Block, url: str) -> str:
    """The output of a block of curl, asked of another address than the one it names."""
    script = 'curl() { command curl -sS --fail-with-body "$@"; }\n' + block.text.replace(ADDRESS, url)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


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
    for block in blocks():
        if not block.is_request:
            continue
        output = ask(block, url)
        if block.language_shown == "json":
            output = pretty(json.loads(output))
        elif block.shown.endswith("…"):
            output = "\n".join(output.splitlines()[: len(block.shown.splitlines()) - 1]) + "\n…"
        asked = f"{block.text}\n```\n\n```{block.language_shown}\n"
        assert text.count(asked + block.shown) == 1, block.text
        text = text.replace(asked + block.shown, asked + output)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite(sys.argv[1])
