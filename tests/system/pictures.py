"""Draw the README's picture: what the playground shows of a text that somebody types.

`python -m tests.system.pictures URL` asks the service at URL, which has the default models.
"""

import shutil
import sys

from playwright.sync_api import sync_playwright

from tests.system.documentation import PLAYGROUND_PICTURE

TYPED = "Return the number of items in the list.\nIf the key is not fuond, raise a KeyError.\nReturn the len"
SIZE = {"width": 1000, "height": 520}


def draw(url: str) -> None:
    """Type a text into the page's first view and take its picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"{url}#write")
        editor = page.locator("section:not([hidden]) textarea").first
        editor.fill("")
        editor.press_sequentially(TYPED, delay=50)
        page.get_by_role("listbox", name="Completions").locator(".word").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=PLAYGROUND_PICTURE)
        browser.close()


if __name__ == "__main__":
    draw(sys.argv[1])
