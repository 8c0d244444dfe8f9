"""Programs that the tests of deploy/ need: of the environment, or the machine's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # noqa: TID251 - the environment of children


def tool(name, package):
    """Where a program is; a test that needs one that is not there fails and names its package."""
    found = shutil.which(name, path=PATH)
    assert found, f"{name} is not installed: it comes with {package}"
    return found


def run(*command, **options):
    """The output of a program that is to go well; what it complained of, if it does not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **options)
    assert done.returncode == 0, f"{Path(command[0]).name}: {done.stdout}{done.stderr}"
    return done.stdout
