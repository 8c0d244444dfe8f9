"""Code blocks of the README, the site, the examples and the runbook: where they are, and what they should print.

`python -m tests.system.documentation URL` sends the requests of all pages to the service at URL, which has the default
models, and writes its replies into the pages.
"""

import json
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RUNBOOK = ROOT / "deploy/RUNBOOK.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
DOCUMENTS = (README, RUNBOOK, *PAGES, *EXAMPLES)
ADDRESS = "http://127.0.0.1:8000"
FENCED = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)
SERVE = re.compile(r"^(?:[A-Z_]+=\S+ )*gramophone serve\b.*$", re.MULTILINE)
"""A line that serves until it is stopped."""


class Block(NamedTuple):
    """Text between two fences, and the block of output after it.

    Attributes:
        document: file that it is in.
        line: number of its first line.
        language: word after the fence.
        title: name of the file that it shows; empty for a block that is run.
        text: its lines.
        reason: why it is not run; empty if it is.
        language_shown: `json` or `text` if output follows, else empty.
        shown: that output.
    """

    document: Path
    line: int
    language: str
    title: str
    text: str
    reason: str
    language_shown: str = ""
    shown: str = ""

    @property
    def is_request(self) -> bool:
        """Whether it is curl alone."""
        return self.language == "sh" and self.text.startswith("curl ")

    @property
    def serves(self) -> bool:
        """Whether it starts a service that later blocks of the page use."""
        return not self.reason and self.language == "sh" and bool(SERVE.search(self.text))

    def __str__(self) -> str:
        """Page, line and beginning, for names of tests."""
        return f"{self.document.relative_to(ROOT)}:{self.line}: {self.text.splitlines()[0][:50]}"


class Page:
    """A document and its blocks.

    Args:
        document: Markdown file.
    """

    def __init__(self, document: Path) -> None:
        self.document = document
        self.text = document.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        """All blocks except those of output, which belong to the block before them."""
        found: list[Block] = []
        for match in FENCED.finditer(self.text):
            language, title, reason = match["language"], match["title"] or "", match["reason"] or ""
            if language in {"json", "text"} and not title and not reason:
                assert found, f"{self.document}: output without a command"
                found[-1] = found[-1]._replace(language_shown=language, shown=match["text"].strip())
            else:
                line = self.text.count("\n", 0, match.start("text")) + 1
                text = match["text"] if title else match["text"].strip()
                found.append(Block(self.document, line, language, title, text, reason))
        return found

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return FENCED.sub("", self.text)

    def asks_own_service(self, block: Block) -> bool:
        """True if the page has started a service of its own before a block."""
        return any(one.serves for one in self.blocks if one.line < block.line)


PAGE_OF = {document: Page(document) for document in DOCUMENTS}
BLOCKS = [block for page in PAGE_OF.values() for block in page.blocks]


def ask(block: Block, url: str, folder: Path | None = None) -> str:
    """Return the output of a block of curl, run in a folder, sent to another address than the one it names."""
    script = 'curl() { command curl -sS --fail-with-body "$@"; }\n' + block.text.replace(ADDRESS, url)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def pretty(value, indent: int = 0) -> str:
    """Return JSON with short objects and lists on one line, as a person would write it."""
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


def rewrite(page: Page, url: str) -> None:
    """Put a running service's replies into a page."""
    text = page.text
    for block in page.blocks:
        if not block.is_request or block.reason or not block.shown or page.asks_own_service(block):
            continue
        output = ask(block, url)
        if block.language_shown == "json":
            output = pretty(json.loads(output))
        elif block.shown.endswith("…"):
            output = "\n".join(output.splitlines()[: len(block.shown.splitlines()) - 1]) + "\n…"
        elif "…" in block.shown:  # shortened by hand
            continue
        asked = f"{block.text}\n```\n\n```{block.language_shown}\n"
        assert text.count(asked + block.shown) == 1, block
        text = text.replace(asked + block.shown, asked + output)
    page.document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for one in PAGE_OF.values():
        rewrite(one, sys.argv[1])
