"""A service that stops and restarts, and one that requires a key."""

import pytest
from playwright.sync_api import Error, expect

from service.api_keys import create_key
from service.settings import Settings
from tests.browser.conftest import editor, hold_requests, serving_at, write

GONE = "ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED|status of 503"


def settings(registry, **options):
    return Settings(registry=registry.root, models=("words",), **options)


def test_a_restart_is_survived(open_page, registry):
    with serving_at(settings(registry, port=0)) as address:
        page = open_page("#write", at=address, allowed=GONE)
        write(page, "return the nu")
        expect(page.get_by_role("option", name="number")).to_be_visible()
    banner = page.locator("#banner")
    page.keyboard.type("m")
    expect(banner).to_be_visible()
    page.keyboard.type("b")
    with serving_at(settings(registry, port=int(address.rpartition(":")[2]))):
        expect(banner).to_be_hidden()
        expect(editor(page)).to_have_value("return the numb")
        expect(page.get_by_role("option", name="number")).to_be_visible()
        page.keyboard.press("Tab")
        expect(editor(page)).to_have_value("return the number ")


def test_503_while_loading_is_retried_once(open_page):
    page, asked = open_page("#write", allowed="status of 503"), []

    def refuse(route):
        asked.append(route.request.url)
        route.fulfill(status=503, json={"error": {"message": "model words@1 is still being loaded"}})

    page.route("**/v1/models", refuse, times=1)
    get = "async () => (await (await import('/static/api.js')).get('/v1/models')).data.length"
    assert page.evaluate(get) > 0
    page.route("**/v1/models", refuse)
    with pytest.raises(Error, match="still being loaded"):
        page.evaluate(get)
    assert len(asked) == 1 + 2


def test_a_stream_that_breaks_off_is_told(open_page, registry):
    page = open_page("#generate", allowed="ERR_|status of 503")
    page.route("**/v1/generate", lambda route: route.fulfill(content_type="text/event-stream", body=": \n\n"))
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.get_by_role("alert").locator("visible=true")).to_have_text("the stream ended early")


@pytest.fixture(scope="module")
def locked(registry):
    """Run a service with a key; yield its address and the key."""
    made = create_key("page", ["infer"])
    with serving_at(settings(registry, port=0, api_keys=(made.key.line,))) as address:
        yield address, made.secret


def test_a_key_is_asked_for_once_and_kept_for_the_tab(open_page, locked):
    address, secret = locked
    page = open_page("#write", at=address, allowed="status of 401")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("API key").fill(secret)
    dialog.get_by_role("button", name="Use key").click()
    expect(page.locator("aside .bar").first).to_be_visible()
    page.reload()
    write(page, "return the nu")
    expect(page.get_by_role("option", name="number")).to_be_visible()
    expect(dialog).to_be_hidden()


def test_a_refusal_that_comes_after_the_key_is_there_asks_for_none(open_page, locked):
    """The page repeats the request with the key."""
    address, secret = locked
    page = open_page("#write", at=address, allowed="status of 401")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("API key").fill(secret)
    held_route = hold_requests(page, "**/v1/quality", times=1)
    start = """async () => {
        const { ask } = await import("/static/api.js");
        ask("/v1/quality", { texts: ["the list"] }).then(() => (window.done = true));
    }"""
    page.evaluate(start)
    refused = held_route()
    dialog.get_by_role("button", name="Use key").click()
    expect(page.locator("aside .bar").first).to_be_visible()
    refused.continue_()
    page.wait_for_function("() => window.done", timeout=10_000)
    expect(dialog).to_be_hidden()


def test_without_a_key_the_page_says_what_is_wrong(open_page, locked):
    page = open_page("#generate", at=locked[0], allowed="status of 401")
    page.get_by_role("dialog").get_by_role("button", name="Not now").click()
    expect(page.get_by_role("alert").locator("visible=true").first).to_contain_text("a key is required")
    expect(page.get_by_role("button", name="Key")).to_be_visible()


def test_pictures_are_fetched_with_the_key(open_page, locked):
    address, secret = locked
    page = open_page("#models", at=address, allowed="status of 401")
    page.get_by_role("dialog").get_by_label("API key").fill(secret)
    page.keyboard.press("Enter")
    picture = page.get_by_role("img", name="Curve")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())
