"""Write the image's CycloneDX bill of materials: each library, its version, licence and dependencies.

    python deploy/sbom.py > deploy/sbom.cdx.json       in an environment with the versions of requirements.txt

Only libraries of requirements.txt are listed. It needs no network.
"""
# ruff: noqa: INP001 - a script

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "deploy" / "requirements.txt"
_COMMAND = (
    *("-m", "cyclonedx_py", "environment"),
    *("--spec-version", "1.6", "--output-reproducible", "--pyproject", "pyproject.toml"),
)
_VARIANT = re.compile(rb"(?:\+|%2B)(?:cpu|cu\d+)\b")
"""Variant of torch's wheel, which the image's build chooses."""

_LEFT_OUT = {"description", "externalReferences"}


def normalised(name: str) -> str:
    """Return a library's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Return the pins of requirements.txt: normalised name → version."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normalised(name): version for name, version in pairs}


def kept(bill: dict[str, Any], wanted: dict[str, str]) -> dict[str, Any]:
    """Return the bill of an environment, reduced to the wanted libraries.

    Raises:
        SystemExit: a library is missing or has another version.
    """
    found = [one for one in bill["components"] if wanted.get(normalised(one["name"])) == one["version"]]
    missing = sorted(set(wanted) - {normalised(one["name"]) for one in found})
    if missing:
        raise SystemExit(f"sbom.py: this environment lacks versions of {REQUIREMENTS}: {', '.join(missing)}")
    program = bill["metadata"]["component"]
    refs = {one["bom-ref"] for one in (*found, program)}
    needs = [one for one in bill["dependencies"] if one["ref"] in refs]
    for one in needs:
        one["dependsOn"] = [ref for ref in one.get("dependsOn", ()) if ref in refs]
    bill["metadata"].pop("tools", None)
    components = [{key: value for key, value in one.items() if key not in _LEFT_OUT} for one in found]
    return {**bill, "components": components, "dependencies": needs}


def main() -> None:
    """Write the bill of this environment to standard output."""
    done = subprocess.run([sys.executable, *_COMMAND, sys.prefix], cwd=ROOT, capture_output=True, check=True)  # noqa: S603 - fixed words
    bill = json.loads(_VARIANT.sub(b"", done.stdout))
    json.dump(kept(bill, pins()), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
