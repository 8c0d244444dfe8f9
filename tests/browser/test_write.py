"""Writing: completions, next words, and surprisal of the text."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import EVIL, editor, hold_requests, middle_of, write


@pytest.fixture
def page(open_page):
    return open_page("#write")


def completions(page):
    return page.get_by_role("listbox", name="Completions")


def words(page):
    return completions(page).locator(".word")


def test_typing_shows_completions_under_the_caret(page):
    write(page, "return the n")
    expect(words(page)).to_have_text(["name", "number", "names", "new"])
    caret, shown = page.locator("lm-caret").bounding_box(), completions(page).bounding_box()
    assert shown["y"] >= caret["y"] + caret["height"] - 1
    assert abs(shown["x"] - caret["x"]) < 3


def test_tab_accepts_the_first_completion(page):
    write(page, "return the nu")
    expect(words(page)).to_have_text(["number"])
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("return the number ")
    expect(editor(page)).to_be_focused()


def test_tab_after_tab_writes_a_text(page):
    write(page, "return the nu")
    for word, text in (("number", "return the number "), ("of", "return the number of ")):
        expect(words(page).first).to_have_text(word)
        page.keyboard.press("Tab")
        expect(editor(page)).to_have_value(text)


def test_punctuation_takes_the_place_of_the_space_that_came_with_a_completion(page):
    write(page, "return the nu")
    expect(completions(page)).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.type(", the")
    expect(editor(page)).to_have_value("return the number, the")


def test_tab_that_comes_before_the_answer_takes_the_completion_when_it_comes(page):
    held_route = hold_requests(page, "**/v1/autocomplete")
    write(page, "return the nu")
    route = held_route("return the nu")
    page.keyboard.press("Tab")
    route.continue_()
    expect(editor(page)).to_have_value("return the number ")
    expect(editor(page)).to_be_focused()


def test_completions_that_no_longer_fit_go_at_once(page):
    write(page, "return the n")
    expect(words(page)).to_have_text(["name", "number", "names", "new"])
    page.route("**/v1/autocomplete", lambda _route: None)  # never answered
    page.keyboard.type("u")
    expect(words(page)).to_have_text(["number"])
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("return the number ")


def test_a_space_is_left_to_the_token_that_brings_it(page):
    with page.expect_request(lambda asked: (asked.post_data_json or {}).get("context") == "return the"):
        editor(page).fill("return the ")


def test_completions_are_as_wide_as_their_words_wherever_they_are(page):
    write(page, "return the n")
    expect(words(page)).to_have_text(["name", "number", "names", "new"])
    left = words(page).first.bounding_box()["width"]
    write(page, "return the name of the list " * 3 + "return the n")
    expect(words(page)).to_have_text(["name", "number", "names", "new"])
    assert words(page).first.bounding_box()["width"] == pytest.approx(left, abs=1)


def test_arrows_choose_and_enter_accepts(page):
    write(page, "return the n")
    expect(words(page)).to_have_text(["name", "number", "names", "new"])
    for key in ("ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    chosen = completions(page).get_by_role("option", selected=True)
    expect(chosen.locator(".word")).to_have_text("number")
    assert editor(page).get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_value("return the number ")


def test_escape_hides_and_then_tab_moves_on(page):
    write(page, "return the n")
    expect(completions(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(completions(page)).to_be_hidden()
    expect(editor(page)).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Tab")
    expect(editor(page)).not_to_be_focused()


def test_enter_without_a_choice_begins_a_line(page):
    write(page, "return the n")
    expect(completions(page)).to_be_visible()
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_value("return the n\n")


def test_accepted_completion_can_be_undone(page):
    write(page, "return the nu")
    expect(completions(page)).to_be_visible()
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("return the number ")
    page.keyboard.press("Control+Z")
    expect(editor(page)).not_to_have_value("return the number ")


def test_offsets_are_right_after_characters_of_two_units(page):
    write(page, "🎺🎺 the c")
    expect(words(page)).to_have_text(["cat"])
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("🎺🎺 the cat ")


def test_completions_are_of_the_line_the_caret_is_in(page):
    write(page, "the dog\nreturn the nu")
    expect(words(page)).to_have_text(["number"])
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("the dog\nreturn the number ")


def test_the_first_completion_stands_in_grey_after_the_text(page):
    write(page, "return the nu")
    expect(page.locator("lm-ghost")).to_have_text("mber")


def test_a_completion_is_taken_with_a_click(page):
    write(page, "return the n")
    completions(page).get_by_role("option").nth(1).click()
    expect(editor(page)).to_have_value("return the number ")


def test_bars_tell_what_comes_next(page):
    write(page, "the cat sat on the ")
    bars = page.locator("aside .bar")
    expect(bars).to_have_count(10)
    expect(bars.first).to_contain_text(re.compile(r"mat|sofa"))
    expect(bars.first).to_contain_text("%")


def test_words_are_told_instead_of_tokens(page):
    write(page, "return the ")
    page.locator("aside").get_by_text("Options").click()
    page.get_by_label("unit").select_option("word")
    expect(page.locator("aside p.quiet").first).to_contain_text("unexplored")
    expect(page.locator("aside .bar .word").first).to_have_text(re.compile("^(name|number)$"))


def test_a_bar_that_is_pressed_is_written(page):
    write(page, "the cat sat on")
    page.locator("aside .bar", has_text=re.compile("^the")).first.click()
    expect(editor(page)).to_have_value("the cat sat on the")


def test_the_heat_map_marks_each_word_the_hotter_the_more_surprising(page):
    write(page, "the cat sat zebra")
    tokens = page.locator(".mirror .tok")
    expect(tokens).to_have_text(["the", "cat", "sat", "zebra"])
    heat = [float(one.evaluate("e => e.style.getPropertyValue('--heat')")) for one in tokens.all()]
    assert heat[3] > max(heat[:3])
    expect(page.locator(".tok.unknown")).to_have_text(["zebra"])
    expect(page.locator(".summary")).to_contain_text("most surprising: zebra")


def test_the_heat_map_lies_behind_the_text(page):
    write(page, "the cat sat on the mat")
    expect(page.locator(".mirror .tok")).to_have_count(6)
    mirror, area = page.locator(".mirror").first.bounding_box(), editor(page).bounding_box()
    assert mirror == area


def test_the_heat_map_can_be_turned_off(page):
    write(page, "the cat")
    expect(page.locator(".mirror .tok")).to_have_count(2)
    page.get_by_label("Surprise").uncheck()
    expect(page.locator(".mirror .tok")).to_have_count(0)


def test_pointing_at_a_word_tells_what_was_expected_there(page):
    write(page, "the dog sat on the mat")
    expect(page.locator(".mirror .tok")).to_have_count(6)
    page.mouse.move(*middle_of(page, ".mirror .tok", "sat"))
    popover = page.locator(".popover").first
    expect(popover.locator(".about")).to_contain_text("sat")
    expect(popover.locator(".bar.actual")).to_contain_text("sat")
    expect(popover.locator(".bar")).to_have_count(6)
    expect(popover).to_be_visible()


def test_a_text_is_kept_when_the_page_is_loaded_again(page):
    write(page, "the dog ran after")
    page.reload()
    expect(editor(page)).to_have_value("the dog ran after")


def test_words_of_the_user_are_completed(page):
    page.locator("summary", has_text="Options").first.click()
    page.get_by_text("Your own words").click()
    page.get_by_label("user", exact=True).fill("eva")
    write(page, "the gramophone\n")
    page.keyboard.type("the gram")
    expect(words(page)).to_have_text(["gramophone"])
    expect(completions(page).locator(".note")).to_have_text(["yours"])


def test_the_selected_word_of_the_user_is_deleted(page):
    page.locator("summary", has_text="Options").first.click()
    page.get_by_text("Your own words").click()
    page.get_by_label("user", exact=True).fill("nell")
    with page.expect_response("**/accepted"):
        write(page, "the gramophone\n")
    page.keyboard.type("the gram")
    expect(words(page)).to_have_text(["gramophone"])
    editor(page).evaluate("area => area.setSelectionRange(4, 15)")  # with the line's end
    with page.expect_response("**/users/nell/words/gramophone") as deleted:
        page.get_by_role("button", name="Delete the selected word").click()
    assert deleted.value.json()["num_words"] == 1
    write(page, "the gram")
    expect(words(page)).to_have_count(0)


def test_a_line_that_is_learnt_late_is_completed(page):
    held_route = hold_requests(page, "**/accepted")
    page.locator("summary", has_text="Options").first.click()
    page.get_by_text("Your own words").click()
    page.get_by_label("user", exact=True).fill("mary")
    write(page, "the phonograph\n")
    with page.expect_response(
        lambda answered: (answered.request.post_data_json or {}).get("text") == "the phon"
    ):
        page.keyboard.type("the phon")
    expect(words(page)).to_have_count(0)
    held_route().continue_()
    expect(words(page)).to_have_text(["phonograph"])


def test_an_option_that_is_wrong_is_told_at_its_field(open_page):
    page = open_page("#write", allowed="status of 400")
    page.locator("summary", has_text="Options").first.click()
    field = page.locator(".field", has=page.get_by_label("max words"))
    field.get_by_label("max words").fill("99")
    editor(page).focus()
    expect(field.locator(".problem")).to_contain_text("max_words is 99")
    expect(field.get_by_label("max words")).to_have_attribute("aria-invalid", "")


def test_markup_that_is_typed_or_told_stays_text(page):
    write(page, f"the page shows {EVIL} as")
    expect(page.locator(".mirror .tok")).to_have_count(5)
    write(page, "the page shows ")
    expect(words(page).first).to_have_text(EVIL)
    expect(page.locator("aside .bar").first).to_contain_text(EVIL)
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value(f"the page shows {EVIL} ")
    assert page.evaluate("[window.pwned, document.querySelectorAll('main img').length]") == [None, 0]


def test_all_of_a_long_text_is_read(page):
    """Regression: only the last hundred or so of more than two thousand lines were read."""
    text = "\n".join(f"the {number}" for number in range(2100))
    editor(page).evaluate(
        "(area, text) => { area.value = text; area.dispatchEvent(new Event('input')); }", text
    )
    expect(page.locator(".mirror .tok")).to_have_count(2 * 2100, timeout=60_000)


def test_a_completion_taken_with_enter_teaches_nothing_yet(page):
    """Regression: the line was learnt here, and again at its end."""
    taught = []
    page.on("request", lambda asked: asked.url.endswith("/accepted") and taught.append(asked.post_data_json))
    page.locator("summary", has_text="Options").first.click()
    page.get_by_text("Your own words").click()
    page.get_by_label("user", exact=True).fill("ida")
    write(page, "return the nu")
    expect(words(page)).to_have_text(["number"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_value("return the number ")
    with page.expect_response("**/accepted"):
        page.keyboard.press("Enter")
    assert taught == [{"text": "return the number"}]


def test_touches_beside_the_letters_are_evidence_of_those_meant(page):
    """Each touch is nearer to another letter, whose key is next to the one meant."""
    write(page, "return the ")
    page.get_by_text("Touch keyboard", exact=True).click()
    keys = page.get_by_role("img", name="Keyboard")
    box = keys.bounding_box()
    with page.expect_request(lambda request: '"keys"' in (request.post_data or "")) as sent:
        for x, y in ((5.7, 2.1), (6.4, 1.05), (7.2, 2.4)):  # beside n, u, m
            page.mouse.click(box["x"] + x / 10 * box["width"], box["y"] + y / 3 * box["height"])
    expect(editor(page)).to_have_value("return the bjm")
    expect(words(page).first).to_have_text("number")
    assert len(sent.value.post_data_json["keys"]) <= 3
    page.keyboard.press("Backspace")
    page.keyboard.type("x")
    with page.expect_request("**/v1/autocomplete") as sent:
        page.keyboard.type("y")
    assert "keys" not in sent.value.post_data_json
