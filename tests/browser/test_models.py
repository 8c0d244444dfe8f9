"""Models: what is served, its card, its pictures and reports."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import picker


@pytest.fixture
def page(open_page):
    return open_page("#models")


def test_all_models_are_listed_and_the_default_is_shown(page):
    entries = page.get_by_role("group", name="Models").get_by_role("button")
    expect(entries).to_have_count(2)
    expect(entries.filter(has_text="default")).to_contain_text("words@1")
    expect(page.get_by_role("heading", name="words@1")).to_be_visible()


def test_the_card_is_rendered_with_its_picture(page):
    card = page.get_by_role("article", name="Model card")
    expect(card.get_by_role("heading", name="words")).to_be_visible()
    expect(card.get_by_role("cell", name="12.50")).to_be_visible()
    expect(card.get_by_role("listitem")).to_have_text(["one item"])
    picture = card.get_by_role("img", name="Curve")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())


def test_a_report_opens_with_its_style_and_runs_nothing(page):
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Report", exact=True).click()
    report = opened.value
    report.wait_for_load_state()
    heading = report.get_by_role("heading", name="Report")
    assert heading.evaluate("e => getComputedStyle(e).color") == "rgb(0, 128, 0)"
    assert report.evaluate("window.pwned") is None


def test_another_model_is_used_from_then_on(page):
    page.get_by_role("group", name="Models").get_by_role("button", name="slow@1").click()
    page.get_by_role("button", name="Use this model").click()
    expect(picker(page)).to_have_value("slow@1")
    page.get_by_role("tab", name="Write").click()
    expect(page.locator("aside .model")).to_have_text("slow@1")
