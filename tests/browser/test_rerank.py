"""Re-ranking: a pasted list, its order under the weights, what is told of it."""

import re

import pytest
from playwright.sync_api import expect

LIST = "the cat mat on sat ||| am=-1\nthe cat sat on the mat ||| am=-3\nthe cat sat on the hat ||| am=-2"


@pytest.fixture
def page(open_page):
    page = open_page("#rerank")
    page.get_by_label("Candidates").fill(LIST)
    return page


def texts(page):
    return page.locator(".ranking .text")


def weigh(page, feature, value):
    """Move a slider as a hand does: all the way, then let it go."""
    slider = page.get_by_label(f"weight of {feature}")
    slider.evaluate(
        "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')); }", str(value)
    )


def test_the_model_puts_the_likeliest_first(page):
    weigh(page, "lm", 1)
    weigh(page, "am", 0)
    expect(texts(page).first).to_have_text(re.compile("the cat sat on the mat"))


def test_a_slider_reorders_at_once_without_asking_again(page):
    expect(texts(page)).to_have_count(3)
    page.wait_for_load_state("networkidle")  # what the page asked as it opened has been answered
    page.route("**/v1/rerank", lambda route: route.abort())
    weigh(page, "lm", 0)
    weigh(page, "am", 1)
    expect(texts(page)).to_have_text(
        ["the cat mat on sat", "the cat sat on the hat", "the cat sat on the mat"]
    )


def test_a_slider_does_not_bring_back_a_list_that_was_taken_away(page):
    expect(texts(page)).to_have_count(3)
    page.get_by_label("Candidates").fill("")
    expect(page.locator(".ranking")).to_contain_text("Paste candidates")
    weigh(page, "lm", 1)
    expect(texts(page)).to_have_count(0)


def test_what_the_page_computes_is_what_the_service_answers(page):
    expect(texts(page)).to_have_count(3)
    weigh(page, "lm", 0.3)
    weigh(page, "words", 0.7)
    ours = page.locator(".ranking .chips span:first-child").all_text_contents()
    with page.expect_response("**/v1/rerank"):
        page.get_by_label("weight of words").dispatch_event("change")
    expect(page.locator(".ranking .chips span:first-child")).to_have_text(ours)


def test_a_number_before_a_tab_is_a_score(page):
    page.get_by_label("Candidates").fill("-1.5\tthe cat\n-2.5\tthe dog")
    expect(texts(page)).to_have_count(2)
    expect(page.locator(".ranking .chips").first).to_contain_text("am -")


def test_an_unknown_word_is_shown_as_it_was_written(page):
    page.get_by_label("Candidates").fill("the zebra sat on the mat")
    expect(page.locator(".ranking .tok.unknown")).to_have_text("zebra")


def test_confidences_are_told_for_each_word(page):
    page.get_by_text("Options", exact=True).locator("visible=true").click()
    page.get_by_label("confidences").check()
    expect(page.locator(".words .tok")).to_have_count(6)


def test_a_profile_that_is_not_there_is_told_at_its_field(open_page):
    page = open_page("#rerank", allowed="status of 400")
    page.get_by_text("Options", exact=True).locator("visible=true").click()
    page.get_by_text("Weighing").click()
    page.get_by_label("profile").fill("nosuch")
    expect(page.locator(".problem", has_text="nosuch")).to_be_visible()
