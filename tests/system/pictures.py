"""Draw the pictures of the documentation: the playground while somebody types, a training report, a tuning report.

`python -m tests.system.pictures URL TRAINING.html TUNING.html` needs a service with the default models and two reports:
`report.html` of a trained network, and that of `gramophone tune --report`.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.system.documentation import ROOT

ASSETS = ROOT / "docs/assets"
TYPED = "Return the number of items in the list.\nIf the key is not fuond, raise a KeyError.\nReturn the len"
SIZE, REPORT_SIZE = {"width": 1000, "height": 520}, {"width": 1000, "height": 860}


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
        draw_report(page, Path(training), "Training", "training-report.png")
        draw_report(page, Path(tuning), "train.nbest", "tuning-report.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
