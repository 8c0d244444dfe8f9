"""`gramophone keys create`."""

import json

import pytest
from typer.testing import CliRunner

from models.errors import InvalidInputError
from service.api_keys import find_key, parse_key
from service.cli.main import app


def create(*arguments):
    return CliRunner().invoke(app, ["keys", "create", *arguments], catch_exceptions=False)


def test_the_line_goes_to_the_file_and_the_key_to_the_screen():
    done = create("--name", "app", "--scopes", "infer,metrics")
    key = parse_key(done.stdout.strip())
    secret = done.stderr.split()[-1]
    assert find_key([key], secret.encode()) is key
    assert secret not in done.stdout
    assert sorted(key.scopes) == ["infer", "metrics"]


def test_programs_read_both():
    made = json.loads(create("--name", "app", "--json").stdout)
    assert find_key([parse_key(made["line"])], made["key"].encode()).name == "app"


@pytest.mark.parametrize("wrong", [["--name", "a b"], ["--name", "a", "--scopes", "root"]])
def test_a_wrong_name_or_scope_is_refused(wrong):
    with pytest.raises(InvalidInputError):
        create(*wrong)
