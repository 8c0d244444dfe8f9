"""Generation: streamed, stopped, whole; settings that are wrong; markup that a model tells."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import EVIL, picker


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
