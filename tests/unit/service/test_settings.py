"""Settings from the environment."""

import pytest
from pydantic import ValidationError

from models.errors import InvalidInputError
from service.settings import Settings, read_settings


def test_each_setting_is_read_from_its_variable(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PORT", "8123")
    monkeypatch.setenv("GRAMOPHONE_MODELS", "ngram, lstm@3,")
    settings = read_settings()
    assert (settings.port, settings.models) == (8123, ("ngram", "lstm@3"))


def test_what_is_given_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PORT", "8123")
    assert read_settings(port=9000, host=None).port == 9000


EMPTY_IS_NONE = {"models", "default_model", "api_keys", "cors_origins", "allowed_hosts"}
"""Settings that are empty by default, so compose may pass an unset variable."""


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_that_is_empty_is_as_if_unset_or_refused(monkeypatch, name):
    """Regression: an empty GRAMOPHONE_HOST listened on all addresses, without the loopback guard."""
    monkeypatch.setenv(f"GRAMOPHONE_{name.upper()}", "")
    if name in EMPTY_IS_NONE:
        assert not getattr(read_settings(), name)
        assert not Settings.model_fields[name].default
    else:
        with pytest.raises(InvalidInputError, match=f"GRAMOPHONE_{name.upper()} is ''"):
            read_settings()


def test_an_unknown_variable_is_named_with_the_known_ones(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PROT", "8123")
    with pytest.raises(InvalidInputError, match=r"GRAMOPHONE_PROT, .* GRAMOPHONE_PORT"):
        read_settings()


def test_the_tests_own_variable_is_let_through(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_DATA", "/somewhere")
    read_settings()


def test_a_wrong_value_is_named(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PORT", "99999")
    with pytest.raises(InvalidInputError, match="GRAMOPHONE_PORT is '99999'"):
        read_settings()


@pytest.mark.parametrize(
    "name", ["BODY_TIMEOUT_S", "SEND_TIMEOUT_S", "STATE_TTL_S", "HANG_TIMEOUT_S", "DRAIN_TIMEOUT_S"]
)
def test_no_time_is_without_end(monkeypatch, name):
    monkeypatch.setenv(f"GRAMOPHONE_{name}", "inf")
    with pytest.raises(InvalidInputError, match=f"GRAMOPHONE_{name} is 'inf'"):
        read_settings()


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Settings().port = 1
