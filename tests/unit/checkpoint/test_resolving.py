"""An address is looked up in two steps, between which others publish."""

from pathlib import Path

import pytest

from models.checkpoint.manifest import Version
from models.checkpoint.registry_interface import resolve_address
from models.errors import ModelNotFoundError


class Moving:
    """A catalogue in which a version is published and made the champion after the first listing."""

    location = "registry"

    def __init__(self):
        self._listings = [[1, 2], [1, 2, 3]]

    def models(self):
        return ["m"]

    def versions(self, _name):
        return self._listings.pop(0) if len(self._listings) > 1 else self._listings[0]

    def aliases(self, _name):
        return {"champion": 3, "gone": 9}

    def version(self, name, number):
        return Version(name, number, Path(name))


def test_a_version_that_an_alias_was_moved_to_meanwhile_is_found():
    assert resolve_address(Moving(), "m").number == 3


def test_a_version_that_is_not_there_the_second_time_either_is_not_found():
    with pytest.raises(ModelNotFoundError, match="has no version 9; it has: 1, 2, 3"):
        resolve_address(Moving(), "m@gone")
