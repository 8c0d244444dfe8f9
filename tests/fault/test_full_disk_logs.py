"""The log goes to a disk that is full: no answer is lost for it."""

from pathlib import Path

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from tests.contract.conftest import publish
from tests.fakes import FakeModel, fake_vocabulary
from tests.processes import running_process


@pytest.mark.parametrize("form", ["json", "console"])
def test_every_request_is_answered_though_no_line_can_be_written(tmp_path, form):
    registry = LocalRegistry(tmp_path, create=True)
    words = WordTokenizer(fake_vocabulary())
    publish(registry, "m", FakeModel(words.vocabulary), words)
    with running_process(registry, Path("/dev/full"), GRAMOPHONE_LOG_FORMAT=form) as (_, url):
        asked = [httpx.post(f"{url}/v1/score", json={"texts": ["the cat"]}) for _ in range(3)]
        refused = httpx.post(f"{url}/v1/score", content=b"no JSON")
        ready = httpx.get(f"{url}/health/ready")
    assert [reply.status_code for reply in (*asked, refused, ready)] == [200, 200, 200, 400, 200]
