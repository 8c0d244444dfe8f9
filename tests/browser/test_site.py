"""The documentation site builds strictly and opens without a network; the web page of a guide completes words."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from service.settings import Settings
from tests.browser.conftest import WAIT_MS, serving_at, serving_files
from tests.system.documentation import ADDRESS, PAGE_OF

ROOT = Path(__file__).parents[2]
AUTOCOMPLETE_GUIDE = ROOT / "docs/guides/autocomplete.md"
EXAMPLE = [ROOT / "examples/web" / name for name in ("index.html", "main.js", "style.css")]


def build(folder, *options, root=ROOT):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
        *options,
    ]
    return subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def open_file(browser, site):
    """Opens a page of the site from its folder, without a network; at the end it must have reported nothing."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    reported = []
    page.on("console", lambda line: line.type in {"error", "warning"} and reported.append(line.text))
    page.on("pageerror", lambda error: reported.append(str(error)))
    page.on(
        "request",
        lambda asked: asked.url.startswith(("file:", "data:", "blob:")) or reported.append(asked.url),
    )

    def run(name):
        page.goto((site / name).as_uri())
        return page

    yield run
    context.close()
    assert reported == []


def test_search_finds_a_page_without_a_network(open_file):
    page = open_file("index.html")
    page.get_by_role("textbox", name="Search").press_sequentially("Kneser")
    expect(page.locator(".md-search-result__list")).to_contain_text("Kneser")


@pytest.mark.parametrize("name", ["concepts/architecture.html", "index.html", "benchmarks.html"])
def test_pictures_are_drawn(name, open_file):
    pictures = open_file(name).locator("article img")
    assert pictures.count()
    for number in range(pictures.count()):
        assert (
            pictures.nth(number).evaluate("picture => picture.decode().then(() => picture.naturalWidth)")
            > 100
        )


def test_no_page_loads_anything_from_elsewhere(site):
    loaded = re.compile(
        r'<(?:script|img|iframe|source)[^>]*\bsrc="?(https?:[^"\s>]+)|<link[^>]*href="?(https?:[^"\s>]+)'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert {
        page.name: found for page in pages if (found := loaded.findall(page.read_text(encoding="utf-8")))
    } == {}


def test_a_dead_link_stops_the_build(tmp_path):
    """The site is built from a copy whose glossary leads nowhere."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Start\n\n[nowhere](missing.md)\n", encoding="utf-8")
    configuration = re.sub(
        r"^(?:hooks|nav):.*?(?=^\w|\Z)", "", (ROOT / "mkdocs.yml").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    (tmp_path / "mkdocs.yml").write_text(configuration, encoding="utf-8")
    built = build(tmp_path / "site", root=tmp_path)
    assert built.returncode != 0
    assert "missing.md" in built.stderr


@pytest.fixture
def other_origin(browser, registry, tmp_path):
    """Opens a page of a folder from another origin than the service's; at the end it must have reported nothing."""
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    reported = []
    page.on("console", lambda line: line.type in {"error", "warning"} and reported.append(line.text))
    page.on("pageerror", lambda error: reported.append(str(error)))
    with serving_files(tmp_path) as origin:
        settings = Settings(registry=registry.root, default_model="words", port=0, cors_origins=(origin,))
        with serving_at(settings) as url:

            def run(texts):
                for name, text in texts.items():
                    (tmp_path / name).write_text(text.replace(ADDRESS, url), encoding="utf-8")
                page.goto(f"{origin}/{next(iter(texts))}")
                return page

            yield run
            context.close()
    assert reported == []


@pytest.mark.parametrize("title", ["page.html", "plain.html"])
def test_a_web_page_of_the_guide_completes_words(other_origin, title):
    (block,) = [one for one in PAGE_OF[AUTOCOMPLETE_GUIDE].blocks if one.title == title]
    page = other_origin({title: block.text})
    field = page.get_by_label("Write a sentence")
    field.press_sequentially("the cat sat on the ma")
    expect(page.get_by_role("status").or_(page.get_by_role("option")).first).to_contain_text("mat")
    page.keyboard.press("Tab")
    expect(field).to_have_value("the cat sat on the mat ")


def test_the_example_completes_words_in_both_fields(other_origin):
    page = other_origin({path.name: path.read_text(encoding="utf-8") for path in EXAMPLE})
    for label in ("Summary", "What happened?"):
        page.get_by_label(label).press_sequentially("the cat sat on the ma")
        expect(page.get_by_role("option")).to_have_text(["mat"])
        page.keyboard.press("Tab")
        expect(page.get_by_label(label)).to_have_value("the cat sat on the mat ")
