"""Checking: what is probably wrong is underlined, and put right with a click."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import editor, middle_of, write


@pytest.fixture
def page(open_page):
    return open_page("#check")


def issues(page):
    return page.get_by_role("list", name="Issues").get_by_role("listitem")


def test_a_word_that_is_wrong_is_underlined(page):
    write(page, "🎺 the caat sat on the mat")
    expect(page.locator(".mirror .issue:visible")).to_have_text(["caat"])
    expect(issues(page)).to_have_count(1)
    expect(issues(page)).to_contain_text("not a word the model knows")


def test_a_word_is_not_found_fault_with_while_it_is_typed(page):
    with page.expect_response("**/v1/check"):
        write(page, "the cat sat on the ma")
    page.wait_for_load_state("networkidle")
    expect(issues(page)).to_have_text(["Nothing seems wrong."])
    page.keyboard.type(" ")
    expect(page.locator(".mirror .issue:visible")).to_have_text(["ma"])


def test_a_suggestion_is_taken_with_a_click(page):
    write(page, "the caat sat on the mat")
    issues(page).get_by_role("button", name="cat").first.click()
    expect(editor(page)).to_have_value("the cat sat on the mat")
    expect(page.locator(".mirror .issue:visible")).to_have_count(0)


def test_a_click_on_an_underlined_word_offers_suggestions(page):
    write(page, "the caat sat on the mat")
    page.mouse.click(*middle_of(page, ".mirror .issue", "caat"))
    page.locator(".popover:visible").get_by_role("button", name="cat").first.click()
    expect(editor(page)).to_have_value("the cat sat on the mat")


def test_a_word_of_the_dictionary_is_right(page):
    write(page, "the caat sat on the mat")
    expect(issues(page)).to_have_count(1)
    issues(page).get_by_role("button", name="It is right").click()
    expect(page.locator(".mirror .issue:visible")).to_have_count(0)


def test_the_threshold_says_how_much_is_told(page):
    write(page, "the caat sat on the mat")
    expect(issues(page).get_by_role("button", name="It is right")).to_have_count(1)
    # what was typed may still be asked about meanwhile, at the threshold before
    with page.expect_request(lambda asked: '"threshold":0.9' in (asked.post_data or "")):
        page.get_by_label("Threshold").fill("0.9")
