"""Decoders of other projects, each in its own folder: their pinned dependencies conflict with ours."""

import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = {"pyctcdecode": "0.5.0", "pygtrie": "2.6.2", "flashlight-text": "0.0.7"}


def importable(*names):
    """Make packages importable, without their dependencies; each is installed once into the environment's folder."""
    for name in names:
        folder = Path(sys.prefix) / "decoders" / f"{name}-{VERSIONS[name]}"
        if not folder.exists():
            _install(name, folder)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _install(name, folder):
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as half:
        target = Path(half) / "whole"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        subprocess.run([*command, f"{name}=={VERSIONS[name]}"], check=True)
        if not folder.exists():  # another run may have been faster
            target.replace(folder)
