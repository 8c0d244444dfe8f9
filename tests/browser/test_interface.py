"""The tab of the interface, and requests that are copied out of the page."""

import subprocess
import sys

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import TABS


def test_every_endpoint_is_there(open_page, url):
    page = open_page("docs")
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    wanted = {f"{method.upper()}{path}" for path, methods in paths.items() for method in methods}
    expect(page.locator(".endpoint")).to_have_count(len(wanted))
    heads = page.locator(".endpoint > summary")
    told = heads.evaluate_all("all => all.map(e => e.children[0].textContent + e.children[1].textContent)")
    assert set(told) == wanted


def test_an_endpoint_tells_its_fields_and_its_example_can_be_sent(open_page):
    page = open_page("docs#docs:post-/v1/score")
    endpoint = page.locator(".endpoint[open]")
    expect(endpoint.get_by_role("cell", name="texts", exact=True)).to_be_visible()
    endpoint.get_by_label("Body").fill('{"texts": ["the cat sat"]}')
    endpoint.get_by_role("button", name="Send").click()
    expect(endpoint.get_by_role("status")).to_contain_text("200")
    expect(endpoint.locator("pre.answer:visible").first).to_contain_text('"model": "words@1"')


def test_an_example_that_is_lines_is_sent_and_copied_as_lines(open_page):
    page = open_page("docs#docs:post-/v1/score")
    endpoint = page.locator(".endpoint[open]")
    endpoint.get_by_label("Example").select_option("application/x-ndjson")
    body = """{"text": "the cat's mat"}\n{"text": "the dog"}\n"""
    endpoint.get_by_label("Body").fill(body)
    endpoint.get_by_role("button", name="Send").click()
    expect(endpoint.get_by_role("status")).to_contain_text("200")
    said = endpoint.locator("pre.answer:visible").first.text_content()
    assert len(said.splitlines()) == 2
    for name, program in (("Copy as curl", ["sh"]), ("Copy as Python", [sys.executable])):
        done = subprocess.run(
            [*program, "-c", copied(page, name)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == said.strip()
        expect(page.get_by_role("button", name=name).locator("visible=true")).to_be_visible()


def test_what_is_wrong_with_a_body_is_told(open_page):
    page = open_page("docs#docs:post-/v1/score", allowed="status of 400")
    endpoint = page.locator(".endpoint[open]")
    endpoint.get_by_label("Body").fill('{"texts": []}')
    endpoint.get_by_role("button", name="Send").click()
    expect(endpoint.locator("pre.answer:visible").first).to_contain_text("texts is []")
    endpoint.get_by_label("Body").fill("{")
    endpoint.get_by_role("button", name="Send").click()
    expect(endpoint.locator("pre.answer:visible").first).to_contain_text("not JSON")


def copied(page, name):
    """What a button of the view that is shown puts on the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("main section:not([hidden])").get_by_role("button", name=name).locator(
        "visible=true"
    ).first.click()
    expect(page.get_by_role("button", name="Copied").locator("visible=true").first).to_be_visible()
    return page.evaluate("navigator.clipboard.readText()")


PROMPT = 'it\'s "the" dog\\n $HOME `x`\nÉ 🎺'


@pytest.mark.parametrize(
    ("tab", "told"), [("write", "completions"), ("rerank", "ranking"), ("check", "issues")]
)
def test_a_copied_command_works(open_page, tab, told):
    page = open_page(f"#{tab}")
    page.wait_for_load_state("networkidle")
    done = subprocess.run(
        ["sh", "-c", copied(page, "Copy as curl")], capture_output=True, text=True, check=True
    )
    assert f'"{told}"' in done.stdout


def test_a_copied_program_works(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_label("Stream").uncheck()
    page.get_by_label("seed").fill("3")
    program = copied(page, "Copy as Python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert '"choices"' in done.stdout


def test_streams_are_copied_as_streams(open_page):
    page = open_page("#generate")
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_label("max tokens").fill("3")
    command = copied(page, "Copy as curl")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]")
    program = copied(page, "Copy as Python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "data: [DONE]" in done.stdout


@pytest.mark.parametrize("tab", TABS[:-1])
def test_a_request_can_be_copied_everywhere(open_page, tab):
    page = open_page(f"#{tab}")
    for name in ("Copy as curl", "Copy as Python"):
        expect(page.get_by_role("button", name=name).locator("visible=true")).to_have_count(1)
