"""The module `autocomplete.js` in a page of another origin, which has a strict content security policy."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Error, expect

from service.api_keys import create_key
from service.settings import Settings
from tests.browser.conftest import Watched, serving_at, serving_files

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Form</title>
<link rel="stylesheet" href="page.css">
<script type="module" src="page.js"></script>
<form>
  <label for="note">Note</label> <textarea id="note" rows="5"></textarea>
  <label for="heading">Title</label> <input id="heading" aria-controls="elsewhere">
  <button>Send</button>
</form>
"""
STYLE = """
html { color-scheme: light dark; font: 18px/1.5 system-ui, sans-serif; }
form { display: grid; gap: 8px; max-width: 34rem; margin: 40px auto; }
input, textarea { font: inherit; padding: 12px 16px; border: 1px solid #8886; border-radius: 10px; }
"""
SCRIPT = """
import { attachAutocomplete } from "SERVICE/static/autocomplete.js";
window.errors = [];
window.attach = (field, options) =>
  attachAutocomplete(field, { key: KEY, delay: 0, onError: (error) => errors.push(error), ...options });
window.detach = attach(note, OPTIONS);
"""
POLICY = (
    "default-src 'none'; script-src 'self' {0}; style-src 'self'; connect-src {0}; "
    "require-trusted-types-for 'script'"
)
MODULE = Path(__file__).parents[2] / "service/static/autocomplete.js"
ADDED = "() => [document.querySelectorAll('*').length, document.adoptedStyleSheets.length]"
KEY = create_key("page", ["infer"])
ANY_ORIGIN = {"access-control-allow-origin": "*"}


@pytest.fixture(scope="module")
def origins(registry, tmp_path_factory):
    """Yield a folder, the address of its pages, and that of a service that allows them and requires a key."""
    folder, headers = tmp_path_factory.mktemp("page"), {}
    (folder / "page.css").write_text(STYLE, encoding="utf-8")
    with serving_files(folder, headers) as origin:
        settings = Settings(
            registry=registry.root,
            models=("words",),
            port=0,
            cors_origins=(origin,),
            api_keys=(KEY.key.line,),
        )
        with serving_at(settings) as service:
            headers["content-security-policy"] = POLICY.format(service)
            yield folder, origin, service


@pytest.fixture
def open_form(browser, origins):
    """Open the page with options for the note; at the end it must have reported only errors that are allowed."""
    folder, origin, service = origins
    opened = []

    def run(options="{}", *, allowed=(), page=PAGE, **context_options):
        (folder / "index.html").write_text(page, encoding="utf-8")
        script = SCRIPT.replace("SERVICE", service).replace("OPTIONS", options)
        script = script.replace("KEY", json.dumps(KEY.secret))
        (folder / "page.js").write_text(script, encoding="utf-8")
        context = browser.new_context(viewport={"width": 760, "height": 460}, **context_options)
        form = context.new_page()
        opened.append((context, Watched(form, origin, service), allowed))
        form.goto(origin)
        form.wait_for_function("() => window.detach")
        return form

    yield run
    for context, watched, allowed in opened:
        context.close()
        # a superseded request may be answered while the page aborts it
        expected = (*allowed, "status of 409")
        assert [said for said in watched.said if not any(part in said for part in expected)] == []


def note(form):
    return form.get_by_label("Note")


def options_of(form):
    return form.get_by_role("option")


def ghost(form):
    return form.locator("lm-ghost")


def write(form, text, label="Note"):
    form.get_by_label(label, exact=True).focus()
    form.keyboard.type(text)


def test_grey_text_and_a_list_appear_under_a_strict_policy(open_form):
    form = open_form()
    write(form, "return the n")
    expect(options_of(form)).to_have_text(["name", "number", "names", "new"])
    expect(ghost(form)).to_have_text("ame")
    expect(form.get_by_role("status")).to_have_text("Completions: name, number, names, new")


def test_the_grey_text_stands_on_the_line_after_the_last_letter(open_form):
    form = open_form()
    for label in ("Note", "Title"):
        if label == "Title":
            form.evaluate("() => { attach(heading) }")
        write(form, "return the nu", label)
        shown = form.locator("lm-ghost:visible").bounding_box()
        measured = form.get_by_label(label, exact=True).evaluate("""field => {
            const style = getComputedStyle(field), box = field.getBoundingClientRect();
            const pen = new OffscreenCanvas(1, 1).getContext("2d");
            pen.font = style.font;
            return [box.left + field.clientLeft + parseFloat(style.paddingLeft) + pen.measureText(field.value).width,
                    box.top, box.bottom];
        }""")
        assert shown["x"] == pytest.approx(measured[0], abs=1.5)
        assert measured[1] < shown["y"] < shown["y"] + shown["height"] < measured[2]


@pytest.mark.parametrize(
    ("target", "style"),
    [
        ("document.body", "zoom: 1.5"),
        ("document.body", "zoom: 0.7"),
        ("document.body", "transform: scale(1.5); transform-origin: 0 0"),
        ("note", "zoom: 1.5"),
    ],
)
def test_text_and_list_have_their_places_in_a_zoomed_page(open_form, target, style):
    form = open_form()
    form.evaluate(f"() => {{ {target}.style.cssText = {style!r} }}")
    write(form, "return the nu")
    expect(ghost(form)).to_have_text("mber")
    caret = note(form).evaluate("""field => {
        const style = getComputedStyle(field), box = field.getBoundingClientRect();
        const pen = new OffscreenCanvas(1, 1).getContext("2d");
        pen.font = style.font;
        const before = field.clientLeft + parseFloat(style.paddingLeft) + pen.measureText(field.value).width;
        return box.left + before * box.width / field.offsetWidth;
    }""")
    grey, field = ghost(form).bounding_box(), note(form).bounding_box()
    shown = form.get_by_role("listbox").bounding_box()
    assert grey["x"] == pytest.approx(caret, abs=3)
    assert shown["x"] == pytest.approx(grey["x"], abs=3)
    assert field["y"] < grey["y"] < grey["y"] + grey["height"] < shown["y"] + 3
    assert shown["y"] == pytest.approx(grey["y"] + grey["height"] + 4, abs=3)
    assert grey["y"] + grey["height"] < field["y"] + field["height"] / 2


@pytest.mark.parametrize("style", ["text-align: center", "text-align: right", "direction: rtl"])
def test_grey_text_never_covers_typed_letters(open_form, style):
    form = open_form()
    form.evaluate(f"() => {{ note.style.cssText = {style!r} }}")
    write(form, "return the nu")
    expect(options_of(form)).to_have_text(["number"])
    expect(ghost(form)).to_have_text("")
    form.keyboard.press("Tab")
    expect(note(form)).to_have_value("return the number ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_selected_option_is_legible_with_forced_colours(open_form, scheme):
    form = open_form(color_scheme=scheme, forced_colors="active")
    write(form, "return the n")
    expect(options_of(form)).to_have_count(4)
    form.keyboard.press("ArrowDown")
    colours = "option => [getComputedStyle(option).color, getComputedStyle(option).backgroundColor]"
    text, background = options_of(form).first.evaluate(colours)
    other = options_of(form).last.evaluate(colours)
    assert text != background
    assert [text, background] != other


@pytest.mark.parametrize("body", ["", "<html>", "{}", '{"completions": null}'])
def test_a_reply_of_another_kind_is_reported(open_form, body):
    form = open_form()
    form.route("**/v1/autocomplete", lambda route: route.fulfill(body=body, headers=ANY_ORIGIN))
    write(form, "return the nu")
    form.wait_for_function("() => errors.length")
    expect(options_of(form)).to_have_count(0)
    form.keyboard.type("m")
    expect(note(form)).to_have_value("return the num")


@pytest.mark.parametrize("key", ["Tab", "ArrowRight"])
def test_a_key_accepts_the_grey_text(open_form, key):
    form = open_form()
    write(form, "return the nu")
    expect(ghost(form)).to_have_text("mber")
    form.keyboard.press(key)
    expect(note(form)).to_have_value("return the number ")
    expect(note(form)).to_be_focused()


def test_an_arrow_moves_the_caret_where_there_is_no_grey_text(open_form):
    form = open_form()
    write(form, "return the nu mat")
    for _ in range(4):
        form.keyboard.press("ArrowLeft")
    form.keyboard.type("m")
    expect(options_of(form)).to_have_text(["number"])
    expect(ghost(form)).to_have_text("")
    form.keyboard.press("ArrowRight")
    expect(options_of(form)).to_have_count(0)
    expect(note(form)).to_have_value("return the num mat")


def test_the_list_is_used_by_keyboard(open_form):
    form = open_form()
    write(form, "return the n")
    expect(options_of(form)).to_have_count(4)
    expect(note(form)).to_have_attribute("aria-expanded", "true")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp"):
        form.keyboard.press(key)
    chosen = form.get_by_role("option", selected=True)
    expect(chosen).to_have_text("new")
    expect(ghost(form)).to_have_text("ew")
    expect(note(form)).to_have_attribute("aria-activedescendant", chosen.get_attribute("id"))
    expect(form.get_by_role("combobox", name="Note")).to_have_attribute(
        "aria-controls", form.get_by_role("listbox").get_attribute("id")
    )
    form.keyboard.press("Enter")
    expect(note(form)).to_have_value("return the new ")


def test_enter_without_a_choice_is_the_page_s(open_form):
    form = open_form()
    write(form, "return the n")
    expect(options_of(form)).to_have_count(4)
    form.keyboard.press("Enter")
    expect(note(form)).to_have_value("return the n\n")


def test_a_click_accepts(open_form):
    form = open_form()
    write(form, "return the n")
    options_of(form).nth(1).click()
    expect(note(form)).to_have_value("return the number ")
    expect(note(form)).to_be_focused()


def test_escape_dismisses_and_tab_moves_on(open_form):
    form = open_form()
    write(form, "return the n")
    expect(options_of(form)).to_have_count(4)
    form.keyboard.press("Escape")
    expect(form.get_by_role("listbox")).to_be_hidden()
    expect(note(form)).to_have_attribute("aria-expanded", "false")
    form.keyboard.press("Tab")
    expect(form.get_by_label("Title")).to_be_focused()
    expect(note(form)).to_have_value("return the n")


def test_a_request_for_an_older_text_is_aborted_and_its_answer_dropped(open_form):
    form = open_form()

    def hold(route):  # the first request is never answered
        if (route.request.post_data_json or {}).get("text") != "t":
            route.continue_()

    form.route("**/v1/autocomplete", hold)
    with form.expect_request("**/v1/autocomplete") as older:
        write(form, "t")
    with form.expect_event("requestfailed", lambda request: request == older.value) as failed:
        form.keyboard.type("he do")
    assert failed.value.failure == "net::ERR_ABORTED"
    expect(options_of(form)).to_have_text(["dog"])


def test_typing_goes_on_while_nothing_answers(open_form):
    form = open_form()
    write(form, "return the n")
    expect(options_of(form)).to_have_count(4)
    form.route("**/v1/autocomplete", lambda _route: None)  # never answered
    form.keyboard.type("u")
    expect(options_of(form)).to_have_text(["number"])
    expect(ghost(form)).to_have_text("mber")
    form.keyboard.type("ll")
    expect(form.get_by_role("listbox")).to_be_hidden()
    expect(note(form)).to_have_value("return the null")


def test_keys_that_follow_one_another_fast_are_one_request(open_form):
    form, asked = open_form("{ delay: 50 }"), []
    form.on(
        "request", lambda request: request.method == "POST" and asked.append(request.post_data_json["text"])
    )
    form.clock.install(time=0)
    form.clock.pause_at(1000)
    write(form, "the d")
    form.clock.run_for(49)
    form.keyboard.type("o")
    form.clock.run_for(50)
    expect(options_of(form)).to_have_text(["dog"])
    assert asked == ["the do"]


def test_nothing_happens_while_characters_are_composed(open_form):
    form, asked = open_form(), []
    form.on(
        "request", lambda request: request.method == "POST" and asked.append(request.post_data_json["text"])
    )
    session = form.context.new_cdp_session(form)
    note(form).focus()
    session.send(
        "Input.imeSetComposition", {"text": "return the n", "selectionStart": 12, "selectionEnd": 12}
    )
    expect(note(form)).to_have_value("return the n")
    form.evaluate("() => new Promise((done) => setTimeout(done))")  # a request would have been made by now
    assert asked == []
    session.send("Input.insertText", {"text": "return the nu"})
    expect(options_of(form)).to_have_text(["number"])
    assert asked == ["return the nu"]


def test_two_fields_do_not_disturb_each_other(open_form):
    form = open_form()
    form.evaluate("() => { attach(heading) }")
    write(form, "return the n")
    expect(options_of(form)).to_have_count(4)
    write(form, "the do", "Title")
    expect(options_of(form)).to_have_text(["dog"])
    form.evaluate("detach()")
    form.keyboard.press("Tab")
    expect(form.get_by_label("Title")).to_have_value("the dog ")
    expect(note(form)).to_have_value("return the n")


def test_detach_removes_everything(open_form):
    form = open_form()
    html = "() => document.querySelector('form').outerHTML"
    form.evaluate("detach()")
    before = form.evaluate(html), form.evaluate(ADDED)
    form.evaluate("() => { window.detach = attach(heading) }")
    write(form, "return the n", "Title")
    expect(options_of(form)).to_have_count(4)
    form.evaluate("detach()")
    assert (form.evaluate(html), form.evaluate(ADDED)) == before
    form.keyboard.press("Tab")
    expect(form.get_by_label("Title")).not_to_be_focused()
    expect(form.get_by_label("Title")).to_have_value("return the n")


def test_an_error_of_the_service_is_told_and_typing_goes_on(open_form):
    form = open_form("{ fields: { limit: 0 } }", allowed=("status of 400",))
    write(form, "return the nu")
    form.wait_for_function("() => errors.length")
    found = form.evaluate(
        "(({ message, status, code, param }) => ({ message, status, code, param }))(errors[0])"
    )
    assert (found["status"], found["code"], found["param"]) == (400, "invalid_value", "limit")
    assert "limit is 0" in found["message"]
    expect(note(form)).to_have_value("return the nu")


def test_a_wrong_key_is_told(open_form):
    form = open_form("{ key: 'wrong' }", allowed=("status of 401",))
    write(form, "the")
    form.wait_for_function("() => errors.length")
    assert form.evaluate("[errors[0].status, errors[0].code]") == [401, "invalid_api_key"]


def test_a_service_that_cannot_be_reached_is_told(open_form):
    form = open_form(allowed=("ERR_FAILED",))
    form.route("**/v1/autocomplete", lambda route: route.abort())
    write(form, "the do")
    form.wait_for_function("() => errors.length")
    expect(note(form)).to_have_value("the do")


def test_accepted_words_are_reported_for_a_user_only(open_form):
    form, taught = open_form("{ user: 'ann' }"), []
    form.on(
        "request", lambda one: one.url.endswith("/accepted") and taught.append((one.url, one.post_data_json))
    )
    write(form, "return the nu")
    expect(options_of(form)).to_have_count(1)
    with form.expect_response("**/v1/autocomplete/users/ann/accepted") as told:
        form.keyboard.press("Tab")
    assert told.value.json()["user"] == "ann"
    assert taught[0][1] == {"text": "number", "context": "return the "}
    form = open_form()
    write(form, "return the nu")
    expect(options_of(form)).to_have_count(1)
    form.keyboard.press("Tab")
    expect(options_of(form).first).to_have_text("of")
    assert len(taught) == 1


def test_completions_are_shown_once_where_asked_and_kept_if_there_are_no_others(open_form):
    form = open_form("{ noRepeats: true, fields: { limit: 1 } }")
    write(form, "return the ")
    expect(options_of(form)).to_have_text(["name"])
    form.keyboard.type("n")
    expect(options_of(form)).to_have_text(["number"])
    with form.expect_response("**/v1/autocomplete") as reply:
        form.keyboard.type("u")
    assert reply.value.request.post_data_json["no_repeats"] is True
    assert reply.value.json()["completions"] == []
    form.wait_for_timeout(50)
    expect(options_of(form)).to_have_text(["number"])
    form.keyboard.press("Tab")
    expect(note(form)).to_have_value("return the number ")


def test_a_correction_is_reported_with_what_was_typed_and_repeated_without_fuzzy(open_form):
    form, taught = open_form("{ user: 'bea', fields: { fuzzy: 1, limit: 1 } }"), []
    form.on("request", lambda one: one.url.endswith("/accepted") and taught.append(one.post_data_json))
    for number in range(2):
        write(form, "🎺 return the nubmer")
        expect(options_of(form)).to_have_text(["number"])
        with form.expect_response("**/accepted"):
            form.keyboard.press("Tab")
        assert taught[number].pop("context").endswith("🎺 return the ")
        assert taught[number] == {"text": "number", "typed": "nubmer"}
    form = open_form("{ user: 'bea' }")
    write(form, "return the nubmer")
    expect(options_of(form)).to_have_text(["number"])


def test_a_correction_replaces_the_typed_letters(open_form):
    form = open_form("{ fields: { fuzzy: 2, limit: 1 } }")
    write(form, "🎺 return the nubmer")
    expect(options_of(form)).to_have_text(["number"])
    expect(ghost(form)).to_have_text("")
    form.keyboard.press("Tab")
    expect(note(form)).to_have_value("🎺 return the number ")


def test_the_side_of_the_list_and_the_key_follow_the_direction(open_form):
    form = open_form(page=PAGE.replace('id="note"', 'id="note" dir="rtl"'))
    completion = {"text": "שלום", "suffix": "ום", "start": 0, "is_complete_word": True}
    reply = json.dumps({"completions": [completion]})
    form.route("**/v1/autocomplete", lambda route: route.fulfill(body=reply, headers=ANY_ORIGIN))
    write(form, "של")
    expect(ghost(form)).to_have_text("ום")
    caret, shown = form.locator("lm-caret").bounding_box(), form.get_by_role("listbox").bounding_box()
    assert shown["x"] + shown["width"] == pytest.approx(caret["x"], abs=2)
    assert form.locator("lm-ghost").bounding_box()["x"] < caret["x"]
    form.keyboard.press("ArrowLeft")
    expect(note(form)).to_have_value("שלום ")


def test_the_list_opens_upwards_at_the_end_of_the_window(open_form):
    form = open_form()
    form.evaluate("() => { document.querySelector('form').style.marginTop = '260px'; scrollTo(0, 1e6); }")
    form.set_viewport_size({"width": 760, "height": 300})
    write(form, "\n\n\n\nreturn the n")
    expect(options_of(form)).to_have_count(4)
    caret, shown = form.locator("lm-caret").bounding_box(), form.get_by_role("listbox").bounding_box()
    assert shown["y"] + shown["height"] <= caret["y"]


def test_a_field_of_a_shadow_tree_in_a_dialog_is_completed(open_form):
    form = open_form()
    form.evaluate(
        """() => {
            const dialog = document.createElement("dialog"), host = document.createElement("div");
            const area = document.createElement("textarea");
            host.attachShadow({ mode: "open" }).append(area);
            dialog.append(host);
            document.body.append(dialog);
            dialog.showModal();
            attach(area);
            area.focus();
        }"""
    )
    form.keyboard.type("return the nu")
    expect(options_of(form)).to_have_text(["number"])
    form.keyboard.press("Escape")
    expect(options_of(form)).to_have_count(0)
    expect(form.get_by_role("dialog")).to_be_visible()


@pytest.mark.parametrize("kind", ["email", "checkbox"])
def test_a_field_without_a_caret_is_refused(open_form, kind):
    form = open_form(page=PAGE.replace('id="heading"', f'id="heading" type="{kind}"'))
    with pytest.raises(Error, match=f"field is {kind}: it must be a textarea or text input"):
        form.evaluate("() => { attach(heading) }")


def test_a_page_that_is_not_allowed_cannot_load_the_module(open_form, url):
    """The service of this test names no origins."""
    form = open_form(allowed=("CORS", "ERR_FAILED", "Content Security Policy", url))
    with pytest.raises(Error, match="Failed to fetch dynamically imported module"):
        form.evaluate("url => import(`${url}/static/autocomplete.js`)", url)


def test_the_module_is_small():
    assert MODULE.stat().st_size <= 11_000
