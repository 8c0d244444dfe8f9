"""Settings from the environment."""

import pytest
from pydantic import ValidationError

from models.errors import InputError
from service.settings import Settings, read_settings


def test_each_setting_is_read_from_its_variable(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PORT", "8123")
    monkeypatch.setenv("GRAMOPHONE_MODELS", "ngram, lstm@3,")
    settings = read_settings()
    assert (settings.port, settings.models) == (8123, ("ngram", "lstm@3"))


def test_arguments_override_the_environment(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PORT", "8123")
    assert read_settings(port=9000, host=None).port == 9000


EMPTY_IS_NONE = {
    "models",
    "languages",
    "dictionaries",
    "default_model",
    "api_keys",
    "cors_origins",
    "allowed_hosts",
}
"""Settings that are empty by default, so compose may pass an unset variable."""


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_that_is_empty_is_as_if_unset_or_refused(monkeypatch, name):
    """Regression: an empty GRAMOPHONE_HOST listened on all addresses, without the loopback guard."""
    monkeypatch.setenv(f"GRAMOPHONE_{name.upper()}", "")
    if name in EMPTY_IS_NONE:
        assert not getattr(read_settings(), name)
        assert not Settings.model_fields[name].default
    else:
        with pytest.raises(InputError, match=f"GRAMOPHONE_{name.upper()} is ''"):
            read_settings()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PROT", "PORT"),
        ("CORS_ORIGIN", "CORS_ORIGINS"),
        ("API_KEY_FILE", "API_KEYS_FILE"),
        ("SERVICE_HOSTS", None),
        ("WEB_PROT", None),
        ("SOMETHING_ELSE", None),
    ],
)
def test_an_unknown_variable_is_named_with_the_setting_that_is_probably_meant(monkeypatch, name, meant):
    monkeypatch.setenv(f"GRAMOPHONE_{name}", "8123")
    with pytest.raises(InputError, match=f"the environment has GRAMOPHONE_{name}") as refused:
        read_settings()
    guess = f" (did you mean GRAMOPHONE_{meant}?)" if meant else ""
    assert f"GRAMOPHONE_{name}{guess}, which is not a setting" in str(refused.value)
    assert len(str(refused.value)) < 200


def test_all_unknown_variables_are_named_in_any_case(monkeypatch):
    monkeypatch.setenv("gramophone_port", "8123")
    monkeypatch.setenv("GRAMOPHONE_HSOT", "::1")
    hosts = r"GRAMOPHONE_HSOT \(did you mean GRAMOPHONE_HOST\?\)"
    with pytest.raises(InputError, match=rf"{hosts}, gramophone_port \(did you mean GRAMOPHONE_PORT\?\)"):
        read_settings()


LINKS = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "8000",
    "SERVICE_PORT_HTTP": "8000",
    "SERVICE_PORT_HTTP_ADMIN": "8001",
    "PORT": "tcp://10.0.0.1:8000",
    "PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "PORT_8000_TCP_ADDR": "10.0.0.1",
    "PORT_8000_TCP_PORT": "8000",
    "PORT_8000_TCP_PROTO": "tcp",
    "PORT_53_UDP": "udp://[fd00::1]:53",
}
"""Variables that Kubernetes sets for a Service with ports, without the name of the Service."""


@pytest.mark.parametrize("service", ["GRAMOPHONE", "GRAMOPHONE_WEB", "GRAMOPHONE_PODS_2"])
def test_variables_of_a_cluster_are_passed_over(monkeypatch, service):
    for name, value in LINKS.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert read_settings() == Settings()
    assert read_settings().port == 8000
    assert read_settings(port=9000).port == 9000


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PORT", "http://10.0.0.1:8000", "GRAMOPHONE_PORT is 'http:"),
        ("PORT", "tcp:8000", "GRAMOPHONE_PORT is 'tcp:8000'"),
        ("WEB_PORT", "8000", "GRAMOPHONE_WEB_PORT .*not a setting"),
        ("PORT_HTTP", "8000", "GRAMOPHONE_PORT_HTTP .*not a setting"),
    ],
)
def test_invalid_settings_like_those_of_clusters_are_refused(monkeypatch, name, value, told):
    monkeypatch.setenv(f"GRAMOPHONE_{name}", value)
    with pytest.raises(InputError, match=told):
        read_settings()


def test_the_tests_own_variable_is_let_through(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_DATA", "/somewhere")
    read_settings()


def test_a_wrong_value_is_named(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_PORT", "99999")
    with pytest.raises(InputError, match="GRAMOPHONE_PORT is '99999'"):
        read_settings()


@pytest.mark.parametrize(
    "name", ["BODY_TIMEOUT_S", "SEND_TIMEOUT_S", "STATE_TTL_S", "HANG_TIMEOUT_S", "DRAIN_TIMEOUT_S"]
)
def test_no_time_is_without_end(monkeypatch, name):
    monkeypatch.setenv(f"GRAMOPHONE_{name}", "inf")
    with pytest.raises(InputError, match=f"GRAMOPHONE_{name} is 'inf'"):
        read_settings()


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Settings().port = 1
