"""The panel of the playground that stores a word list and completes with it."""

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import editor, write

ENTRIES = "gramophone record\t50\ngramophone needle\t400\ngraphite\n"


@pytest.fixture
def page(open_page):
    return open_page("#write")


def panel(page):
    """Return the panel, opened."""
    found = page.locator("details", has=page.locator("summary", has_text="Word list"))
    if found.get_attribute("open") is None:
        found.locator("summary").click()
    return found


def save(page, name, entries):
    panel(page).get_by_label("Name").fill(name)
    panel(page).get_by_label("Entries").fill(entries)
    panel(page).get_by_role("button", name="Save").click()


def words(page):
    return page.get_by_role("listbox", name="Completions").locator(".word")


def test_words_of_a_stored_list_are_completed_if_wanted(page, url):
    save(page, "music", ENTRIES)
    expect(panel(page).get_by_role("status")).to_have_text("3 entries stored")
    write(page, "the gra")
    expect(words(page)).to_have_count(0)
    panel(page).get_by_label("Use in completions").check()
    with page.expect_request("**/v1/autocomplete") as asked:
        write(page, "the gra")
        expect(words(page)).to_have_text(["gramophone", "graphite"])
    assert asked.value.post_data_json["dictionary"] == [{"wordlist": "music"}]
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_value("the gramophone ")
    expect(words(page).first).to_have_text("needle")  # the heavier one
    stored = httpx.get(f"{url}/v1/wordlists/music/entries").text
    assert '{"text":"gramophone needle","weight":400.0}' in stored


def test_a_deleted_list_is_used_no_longer(page):
    save(page, "gone", "gramophone")
    expect(panel(page).get_by_role("status")).to_have_text("1 entry stored")
    panel(page).get_by_label("Use in completions").check()
    write(page, "the gra")
    expect(words(page)).to_have_text(["gramophone"])
    panel(page).get_by_role("button", name="Delete").click()
    expect(panel(page).get_by_role("status")).to_have_text("not stored")
    expect(panel(page).get_by_role("button", name="Delete")).to_be_disabled()
    write(page, "the gra")
    expect(words(page)).to_have_count(0)


def test_a_list_that_another_client_deletes_is_used_no_longer(open_page, url):
    page = open_page("#write", allowed="status of 404")
    save(page, "shared", "gramophone")
    panel(page).get_by_label("Use in completions").check()
    write(page, "the gra")
    expect(words(page)).to_have_text(["gramophone"])
    httpx.delete(f"{url}/v1/wordlists/shared")
    write(page, "return the nu")
    expect(words(page)).to_have_text(["number"])
    expect(panel(page).get_by_role("status")).to_have_text("not stored")


def test_the_panel_is_kept_when_the_page_is_loaded_again(page):
    save(page, "kept", ENTRIES)
    panel(page).get_by_label("Use in completions").check()
    expect(panel(page).get_by_role("status")).to_have_text("3 entries stored")
    page.reload()
    write(page, "the gra")
    expect(words(page)).to_have_text(["gramophone", "graphite"])
    expect(panel(page).get_by_label("Name")).to_have_value("kept")
    expect(panel(page).get_by_label("Entries")).to_have_value(ENTRIES)
    expect(panel(page).get_by_label("Use in completions")).to_be_checked()


def test_a_wrong_line_is_named_and_nothing_is_stored(open_page):
    page = open_page("#write", allowed="status of 400")
    save(page, "wrong", "graphite  3\n\ngramophone\tmany\n")
    expect(panel(page).get_by_role("alert")).to_contain_text("line 3: weight is 'many'")
    expect(panel(page).get_by_role("status")).to_have_text("not stored")
    save(page, "wrong", "graphite  3\n\ngramophone\t5\n")
    expect(panel(page).get_by_role("alert")).to_be_hidden()
    expect(panel(page).get_by_role("status")).to_have_text("2 entries stored")


def test_a_list_is_stored_and_deleted_with_the_keyboard(page):
    panel(page).get_by_label("Name").fill("keys")
    page.keyboard.press("Tab")
    page.keyboard.type("graphite")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(panel(page).get_by_role("status")).to_have_text("1 entry stored")
    expect(panel(page).get_by_role("button", name="Save")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(panel(page).get_by_role("status")).to_have_text("not stored")
    expect(panel(page).get_by_label("Name")).to_be_focused()
