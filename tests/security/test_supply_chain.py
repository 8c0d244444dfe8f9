"""What the image is made of: pinned to the version, within the bounds of pyproject.toml, and listed in an SBOM."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SBOM = (DEPLOY / "sbom.cdx.json").read_text(encoding="utf-8")
BILL = json.loads(SBOM)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MADE_FROM = (
    *PROJECT["dependencies"],
    *PROJECT["optional-dependencies"]["otel"],
    *PROJECT["optional-dependencies"]["s3"],
)

_spec = importlib.util.spec_from_file_location("sbom", DEPLOY / "sbom.py")
sbom = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sbom)


def test_every_library_of_the_image_is_pinned_to_a_version():
    lines = (DEPLOY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert line.startswith("#") or [one.operator for one in Requirement(line).specifier] == ["=="], line


@pytest.mark.parametrize("requirement", MADE_FROM)
def test_what_pyproject_asks_for_is_pinned_within_its_bounds(requirement):
    asked = Requirement(requirement)
    assert asked.specifier.contains(sbom.pins()[sbom.normalised(asked.name)])


def test_the_sbom_lists_just_what_is_pinned():
    listed = {sbom.normalised(one["name"]): one["version"] for one in BILL["components"]}
    assert listed == sbom.pins()


def test_the_sbom_keeps_to_cyclonedx():
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(SBOM) is None


def test_every_library_has_a_package_url_and_nearly_all_a_licence():
    for one in BILL["components"]:
        assert one["purl"] == f"pkg:pypi/{sbom.normalised(one['name'])}@{one['version']}"
    assert sum("licenses" not in one for one in BILL["components"]) <= 3


def test_what_the_program_needs_is_in_its_place():
    (own,) = (one for one in BILL["dependencies"] if one["ref"] == BILL["metadata"]["component"]["bom-ref"])
    needed = {sbom.normalised(ref.partition("==")[0]) for ref in own["dependsOn"]}
    assert {sbom.normalised(Requirement(line).name) for line in PROJECT["dependencies"]} <= needed


def test_an_environment_of_other_versions_makes_no_sbom():
    with pytest.raises(SystemExit, match="nonexistent"):
        sbom.kept(BILL, {**sbom.pins(), "nonexistent": "1.0"})
