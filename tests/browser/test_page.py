"""The page as a whole: every tab is quiet, fits a phone, follows the system's colours and the keyboard."""

import pytest
from playwright.sync_api import Error, expect

from tests.browser.conftest import PHONE, TABS, WIDE, editor

FULL = "[document.documentElement.scrollWidth, innerWidth]"
VIOLATIONS = """window.violations = [];
addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective));"""


def settled(page):
    """Wait until the view has built itself and nothing is asked any more."""
    expect(page.locator("main section:not([hidden]) > *").locator("visible=true").first).to_be_visible()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide", "phone"])
def test_every_tab_is_quiet_and_as_wide_as_the_window(open_page, tab, size, scheme):
    """That nothing is said on the console is what `open_page` asks at the end of each test."""
    page = open_page(f"#{tab}", size=size, scheme=scheme)
    settled(page)
    for summary in page.locator("main details > summary").all():
        if summary.is_visible():
            summary.click()
    page.wait_for_load_state("networkidle")
    full, window = page.evaluate(FULL)
    assert full <= window


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_page_follows_the_colours_of_the_system(open_page, scheme, is_dark):
    page = open_page(scheme=scheme)
    red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(red) < 60) == is_dark


def test_the_policy_is_kept(open_page, url):
    """That nothing comes from elsewhere `open_page` asks at the end, too."""
    page = open_page()
    page.add_init_script(VIOLATIONS)
    for tab in TABS:
        page.goto(f"{url}/?{tab}#{tab}")
        settled(page)
        assert page.evaluate("violations") == [], tab


@pytest.mark.parametrize(
    "script",
    ["document.body.innerHTML = '<b>x</b>'", "document.createElement('script').text = 'x'"],
)
def test_the_policy_forbids_text_that_becomes_markup_or_code(open_page, script):
    page = open_page(allowed="Trusted")
    with pytest.raises(Error, match="Trusted"):
        page.evaluate(f"() => {{ {script} }}")


def test_tabs_are_gone_through_with_the_keyboard(open_page):
    page = open_page("#write")
    page.get_by_role("tab", name="Write").focus()
    for name in ("Generate", "Re-rank", "Check", "Models", "API"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Write")).to_be_focused()


def test_a_text_is_written_generated_and_copied_with_the_keyboard_alone(open_page):
    page = open_page("#write")
    expect(editor(page)).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("return the nu")
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("return the number ")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Copy as curl").locator("visible=true").first).to_be_focused()
    page.get_by_role("tab", name="Write").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Generate")).to_be_visible()
    prompt = page.get_by_label("Prompt")
    for _ in range(3):  # past the model, too
        page.keyboard.press("Tab")
        if prompt.evaluate("e => e === document.activeElement"):
            break
    expect(prompt).to_be_focused()
    page.keyboard.type(" of")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".continuation footer")).to_contain_text("score")


def test_the_tab_is_remembered_in_the_address(open_page):
    page = open_page()
    page.get_by_role("tab", name="Check").click()
    assert page.url.endswith("#check")
    page.reload()
    expect(page.get_by_role("tab", name="Check")).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(page.get_by_role("tab", name="Write")).to_have_attribute("aria-selected", "true")


def test_whoever_wants_less_motion_gets_none(open_page):
    page = open_page("#write", reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.querySelector('main > section')).animationName") == "none"


def test_controls_have_names(open_page):
    """What a screen reader would read out: no control without a name."""
    page = open_page()
    for tab in TABS:
        page.goto(page.url.split("#")[0] + f"#{tab}")
        settled(page)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('main section:not([hidden]) :is(input, select, textarea, button)')]
            .filter(e => e.checkVisibility() && !e.labels?.length && !e.ariaLabel && !e.textContent.trim())
            .map(e => e.outerHTML)"""
        )
        assert nameless == [], tab
