"""The tabs for generation, re-ranking and checking."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import EVIL, editor, middle_of, picker, write


def go(page):
    page.get_by_role("button", name="Generate", exact=True).click()


def story(page):
    return page.locator(".story")


def test_a_text_is_streamed_until_it_is_stopped(open_page):
    page = open_page("#generate")
    picker(page).select_option("slow@1")
    page.get_by_label("max tokens").fill("1000")
    go(page)
    expect(story(page).locator(".tok").nth(3)).to_be_visible()
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_enabled()
    stop.click()
    expect(page.locator(".continuation footer")).to_contain_text("stopped")
    expect(stop).to_be_disabled()
    expect(page.locator(".status:visible")).to_contain_text("tokens")


def test_keys_generate_and_stop(open_page):
    page = open_page("#generate")
    picker(page).select_option("slow@1")
    page.get_by_label("max tokens").fill("1000")
    page.get_by_label("Prompt").fill("the")
    page.keyboard.press("Control+Enter")
    expect(story(page).locator(".tok").nth(1)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".continuation footer")).to_contain_text("stopped")


def test_a_token_tells_its_alternatives_to_the_keyboard_too(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill("the cat sat on")
    page.get_by_label("seed").fill("1")
    go(page)
    expect(page.locator(".continuation footer")).to_contain_text("score")
    story(page).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".popover:visible .about")).to_contain_text("bits")
    expect(page.locator(".popover:visible .bar")).to_have_count(5)


def test_the_same_seed_gives_the_same_text_streamed_or_not(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill("the dog")
    page.get_by_label("seed").fill("7")
    go(page)
    expect(page.locator(".continuation footer")).to_contain_text("score")
    streamed = story(page).text_content()
    page.get_by_label("Stream").uncheck()
    with page.expect_response("**/v1/generate"):
        go(page)
    expect(page.locator(".continuation footer")).to_contain_text("score")
    expect(story(page)).to_have_text(streamed)


def test_beams_give_several_texts(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill("the dog")
    page.get_by_label("strategy").select_option("beam")
    page.get_by_label("n", exact=True).fill("3")
    go(page)
    expect(page.locator(".continuation")).to_have_count(3)


def test_a_text_goes_on_from_where_it_ended(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill("the dog")
    page.get_by_label("max tokens").fill("2")
    page.get_by_label("strategy").select_option("greedy")  # a sample may end at once
    go(page)
    expect(page.locator(".continuation footer")).to_contain_text("score")
    page.get_by_role("button", name="Continue from here").click()
    expect(page.get_by_label("Prompt")).to_have_value(re.compile("^the dog .+"))


def test_a_setting_that_is_wrong_is_told_at_its_field(open_page):
    page = open_page("#generate", allowed="status of 400")
    field = page.locator(".field", has=page.get_by_label("top k"))
    field.get_by_label("top k").fill("none")
    go(page)
    expect(field.locator(".problem")).to_contain_text("top_k is 'none'")
    field.get_by_label("top k").fill("")
    expect(field.locator(".problem")).to_be_hidden()


def test_markup_that_a_model_tells_stays_text(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill("the page shows")
    page.get_by_label("strategy").select_option("greedy")
    go(page)
    expect(page.locator(".continuation footer")).to_contain_text("score")
    expect(story(page)).to_contain_text(EVIL)
    assert page.evaluate("[window.pwned, document.querySelectorAll('main img').length]") == [None, 0]


LIST = "the cat mat on sat ||| am=-1\nthe cat sat on the mat ||| am=-3\nthe cat sat on the hat ||| am=-2"


@pytest.fixture
def rerank_page(open_page):
    page = open_page("#rerank")
    page.get_by_label("Candidates").fill(LIST)
    return page


def texts(page):
    return page.locator(".ranking .text")


def weigh(page, feature, value):
    """Move a slider to a value."""
    slider = page.get_by_label(f"weight of {feature}")
    slider.evaluate(
        "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')); }", str(value)
    )


def test_the_model_puts_the_likeliest_first(rerank_page):
    weigh(rerank_page, "lm", 1)
    weigh(rerank_page, "am", 0)
    expect(texts(rerank_page).first).to_have_text(re.compile("the cat sat on the mat"))


def test_a_slider_reorders_at_once_without_asking_again(rerank_page):
    expect(texts(rerank_page)).to_have_count(3)
    rerank_page.wait_for_load_state("networkidle")  # the page's initial requests are answered
    rerank_page.route("**/v1/rerank", lambda route: route.abort())
    weigh(rerank_page, "lm", 0)
    weigh(rerank_page, "am", 1)
    expect(texts(rerank_page)).to_have_text(
        ["the cat mat on sat", "the cat sat on the hat", "the cat sat on the mat"]
    )


def test_a_slider_does_not_bring_back_a_list_that_was_taken_away(rerank_page):
    expect(texts(rerank_page)).to_have_count(3)
    rerank_page.get_by_label("Candidates").fill("")
    expect(rerank_page.locator(".ranking")).to_contain_text("Paste candidates")
    weigh(rerank_page, "lm", 1)
    expect(texts(rerank_page)).to_have_count(0)


def test_totals_of_the_page_equal_those_of_the_service(rerank_page):
    expect(texts(rerank_page)).to_have_count(3)
    weigh(rerank_page, "lm", 0.3)
    weigh(rerank_page, "words", 0.7)
    ours = rerank_page.locator(".ranking .chips span:first-child").all_text_contents()
    with rerank_page.expect_response("**/v1/rerank"):
        rerank_page.get_by_label("weight of words").dispatch_event("change")
    expect(rerank_page.locator(".ranking .chips span:first-child")).to_have_text(ours)


def test_a_number_before_a_tab_is_a_score(rerank_page):
    rerank_page.get_by_label("Candidates").fill("-1.5\tthe cat\n-2.5\tthe dog")
    expect(texts(rerank_page)).to_have_count(2)
    expect(rerank_page.locator(".ranking .chips").first).to_contain_text("am -")


def test_an_unknown_word_is_shown_as_it_was_written(rerank_page):
    rerank_page.get_by_label("Candidates").fill("the zebra sat on the mat")
    expect(rerank_page.locator(".ranking .tok.unknown")).to_have_text(["zebra"])


def test_confidences_are_told_for_each_word(rerank_page):
    rerank_page.get_by_text("Options", exact=True).locator("visible=true").click()
    rerank_page.get_by_label("confidences").check()
    expect(rerank_page.locator(".words .tok")).to_have_count(6)


def test_a_profile_that_is_not_there_is_told_at_its_field(open_page):
    page = open_page("#rerank", allowed="status of 400")
    page.get_by_text("Options", exact=True).locator("visible=true").click()
    page.get_by_text("Scoring", exact=True).click()
    page.get_by_label("profile").fill("nosuch")
    expect(page.locator(".problem", has_text="nosuch")).to_be_visible()


@pytest.fixture
def check_page(open_page):
    return open_page("#check")


def issues(page):
    return page.get_by_role("list", name="Issues").get_by_role("listitem")


def test_a_word_that_is_wrong_is_underlined(check_page):
    write(check_page, "🎺 the caat sat on the mat")
    expect(check_page.locator(".mirror .issue:visible")).to_have_text(["caat"])
    expect(issues(check_page)).to_have_count(1)
    expect(issues(check_page)).to_contain_text("unknown word")


def test_a_word_is_not_found_fault_with_while_it_is_typed(check_page):
    with check_page.expect_response("**/v1/check"):
        write(check_page, "the cat sat on the ma")
    check_page.wait_for_load_state("networkidle")
    expect(issues(check_page)).to_have_text(["No issues found."])
    check_page.keyboard.type(" ")
    expect(check_page.locator(".mirror .issue:visible")).to_have_text(["ma"])


def test_a_suggestion_is_taken_with_a_click(check_page):
    write(check_page, "the caat sat on the mat")
    issues(check_page).get_by_role("button", name="cat").first.click()
    expect(editor(check_page)).to_have_value("the cat sat on the mat")
    expect(check_page.locator(".mirror .issue:visible")).to_have_count(0)


def test_a_click_on_an_underlined_word_offers_suggestions(check_page):
    write(check_page, "the caat sat on the mat")
    check_page.mouse.click(*middle_of(check_page, ".mirror .issue", "caat"))
    check_page.locator(".popover:visible").get_by_role("button", name="cat").first.click()
    expect(editor(check_page)).to_have_value("the cat sat on the mat")


def test_a_word_of_the_dictionary_is_right(check_page):
    write(check_page, "the caat sat on the mat")
    expect(issues(check_page)).to_have_count(1)
    issues(check_page).get_by_role("button", name="Add to dictionary").click()
    expect(check_page.locator(".mirror .issue:visible")).to_have_count(0)


def test_a_text_gets_capitals_and_marks(open_page):
    check_page = open_page("#check", allowed="status of 400")
    write(check_page, "the cat sat")
    restore = check_page.get_by_role("button", name="Restore capitals and marks")
    with check_page.expect_response("**/v1/restore") as refused:
        restore.click()
    assert refused.value.status == 400  # the model knows lower case only
    expect(check_page.get_by_text("without capitals and punctuation")).to_be_visible()
    reply = {"model": "cased@1", "results": [{"id": None, "text": "The cat sat.", "words": []}]}
    check_page.route("**/v1/restore", lambda route: route.fulfill(json=reply))
    restore.click()
    expect(editor(check_page)).to_have_value("The cat sat.")


def test_the_threshold_says_how_much_is_told(check_page):
    write(check_page, "the caat sat on the mat")
    expect(issues(check_page).get_by_role("button", name="Add to dictionary")).to_have_count(1)
    # a request for the typed text, with the old threshold, may still be pending
    with check_page.expect_request(lambda asked: '"threshold":0.9' in (asked.post_data or "")):
        check_page.get_by_label("Threshold").fill("0.9")
