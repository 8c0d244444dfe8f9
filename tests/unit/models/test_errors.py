"""Optional packages: a missing one is named with the command that installs it."""

import sys
import tomllib
from pathlib import Path

import pytest

from models.errors import EXTRAS, InvalidInputError, require_package

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_an_installed_package_is_accepted_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "failing_package.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    require_package("failing_package", "a test")


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    command = rf"pip install 'gramophone-lm\[{EXTRAS[package]}\]'$"
    with pytest.raises(InvalidInputError, match=rf"^a test needs the package {package}: {command}"):
        require_package(package, "a test")


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_has_the_package_and_the_base_has_not(package):
    assert any(line.startswith(package) for line in PROJECT["optional-dependencies"][EXTRAS[package]])
    assert not any(line.startswith(package) for line in PROJECT["dependencies"])
