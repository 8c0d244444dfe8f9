"""The README's table of settings is the one the settings give."""

from pathlib import Path

from service.settings import settings_table

README = Path(__file__).parents[2] / "README.md"
START, END = "<!-- settings -->\n", "<!-- /settings -->"


def test_the_readme_documents_every_setting():
    text = README.read_text(encoding="utf-8")
    assert text[text.index(START) + len(START) : text.index(END)].strip() == settings_table().strip()
