"""Draw the pictures of the documentation: the playground and the example's form while somebody types, two reports.

`python -m tests.system.pictures URL TRAINING.html TUNING.html` needs a service with the default models, started with
`GRAMOPHONE_CORS_ORIGINS=*`, and two reports: `report.html` of a trained network, and that of
`gramophone tune --report`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import serving_files
from tests.system.documentation import ADDRESS, ROOT

ASSETS = ROOT / "docs/assets"
EXAMPLE = ROOT / "examples/web"
TYPED = "Return the number of items in the list.\nIf the key is not fuond, raise a KeyError.\nReturn the len"
SIZE, REPORT_SIZE = {"width": 1000, "height": 520}, {"width": 1000, "height": 860}
FORM_SIZE = {"width": 760, "height": 540}


def draw_playground(page: Page, url: str) -> None:
    """Type a text into the first view of the playground and take its picture."""
    page.set_viewport_size(SIZE)
    page.goto(f"{url}#write")
    editor = page.locator("section:not([hidden]) textarea").first
    editor.fill("")
    editor.press_sequentially(TYPED, delay=50)
    page.get_by_role("listbox", name="Completions").locator(".word").first.wait_for()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=ASSETS / "playground.png")


def draw_example(page: Page, url: str) -> None:
    """Type a text into the example's form, served from another origin, and take its picture."""
    with tempfile.TemporaryDirectory() as name, serving_files(Path(name)) as origin:
        for file in (EXAMPLE / part for part in ("index.html", "main.js", "style.css")):
            Path(name, file.name).write_text(file.read_text(encoding="utf-8").replace(ADDRESS, url))
        page.set_viewport_size(FORM_SIZE)
        page.goto(origin)
        page.get_by_label("Summary").fill("KeyError in a dictionary view")
        page.get_by_label("What happened?").press_sequentially("Return the len", delay=50)
        page.get_by_role("option").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.screenshot(path=EXAMPLE / "screenshot.png")


def draw_report(page: Page, report: Path, heading: str, picture: str) -> None:
    """Take a picture of a report, from a heading on."""
    page.set_viewport_size(REPORT_SIZE)
    page.goto(report.resolve().as_uri())
    page.get_by_role("heading", name=heading).first.evaluate("heading => heading.scrollIntoView()")
    page.screenshot(path=ASSETS / picture)


def main(url: str, training: str, tuning: str) -> None:
    """Draw all pictures."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        draw_playground(page, url)
        draw_example(page, url)
        draw_report(page, Path(training), "Training", "training-report.png")
        draw_report(page, Path(tuning), "train.nbest", "tuning-report.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
