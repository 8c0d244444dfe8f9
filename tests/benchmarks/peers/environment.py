"""The environment that LitServe runs in: its own packages, and all others of the environment that runs this."""

import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

from preparation import REASON

LITSERVE = "litserve==0.2.19"
FOLDER = Path(sys.prefix) / "peers"
"""Inside the environment whose packages it shares, to be deleted with it."""


def litserve_python():
    """An interpreter that has LitServe and our torch; the environment is made if it is not there.

    None, and a word on why, if it cannot be made.
    """
    python = FOLDER / "bin" / "python"
    done = FOLDER / LITSERVE
    if not done.exists():
        print(
            f"installing {LITSERVE} into {FOLDER}, once; no other package of this project's changes",
            flush=True,
        )
        venv.create(FOLDER, clear=True, with_pip=True)
        own = sysconfig.get_path("purelib", vars={"base": str(FOLDER)})
        # what lies in a folder named here is found after the environment's own packages
        (Path(own) / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", LITSERVE]
        if subprocess.run(install, check=False).returncode:
            print(f"{REASON}LitServe: {LITSERVE} could not be installed; that needs the package index once")
            return None
        done.touch()
    ask = "import torch; print(torch.__version__)"
    theirs = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    if theirs != version("torch"):
        sys.exit(f"{FOLDER} has torch {theirs}, this environment {version('torch')}; delete {FOLDER}")
    return str(python)
