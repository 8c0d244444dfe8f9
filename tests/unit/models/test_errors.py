"""Checks: a missing package is named with the command that installs it, a number with its limits."""

import sys
import tomllib
from pathlib import Path

import pytest

from models.errors import EXTRAS, InputError, check_range, require_package

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_an_installed_package_is_accepted_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "failing_package.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    require_package("failing_package", "a test")


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    command = rf"pip install 'gramophone-lm\[{EXTRAS[package]}\]'$"
    with pytest.raises(InputError, match=rf"^a test needs the package {package}: {command}"):
        require_package(package, "a test")


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_has_the_package_and_the_base_has_not(package):
    assert any(package in line for line in PROJECT["optional-dependencies"][EXTRAS[package]])
    assert not any(package in line for line in PROJECT["dependencies"])


@pytest.mark.parametrize(
    ("value", "least", "most"), [(1, 1, 2), (2, 1, 2), (0.5, -1.0, 1.0), (2**63 - 1, 0, 2**63 - 1)]
)
def test_a_number_within_its_limits_is_accepted(value, least, most):
    check_range("size", value, least, most)


@pytest.mark.parametrize(
    ("value", "least", "most", "message"),
    [
        (0, 1, 2, "size is 0; it must be from 1 to 2"),
        (2**63, 0, 2**63 - 1, f"size is {2**63}; it must be from 0 to {2**63 - 1}"),
        (1.5, -1.0, 1.0, "size is 1.5; it must be from -1 to 1"),
        (float("nan"), -1e6, 1e6, "size is nan; it must be from -1e+06 to 1e+06"),
    ],
)
def test_a_number_outside_its_limits_is_named_with_them(value, least, most, message):
    with pytest.raises(InputError) as caught:
        check_range("size", value, least, most)
    assert (str(caught.value), caught.value.param) == (message, "size")
