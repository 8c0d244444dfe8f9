"""The README's Python that needs no service runs as it stands."""

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_ngram_example_runs(capsys):
    blocks = [
        block.removeprefix("python\n")
        for block in README.read_text().split("```")
        if block.startswith("python\n")
    ]
    (example,) = [block for block in blocks if "estimate(" in block]
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - our own text
    total, *best, _ = capsys.readouterr().out.splitlines()
    assert abs(float(total) - 1) < 1e-5
    assert best[0].split()[0] == "cat"
