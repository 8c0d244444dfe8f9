"""Forbidden calls in the sources, pinned dependencies and the SBOM, safe defaults, the table of threats.

Secrets are compared only in constant time.
"""

import ast
import importlib.util
import json
import math
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from service import api_keys
from service.api_keys import create_key
from service.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDERS = ("models", "service", "training", "deploy")
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "xml",
    "lxml",
}
"""Formats whose readers run code or expand entities; YAML and XML are not read at all."""

ALLOWED = {"models/kernels/compilation.py": ["pickle"]}
"""Files of compiled kernels are machine code anyway; they are read from folders that nobody else can write to."""

CALLS = {"eval", "exec", "compile", "__import__", "input"}
METHODS = {
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "torch.jit.load",
    "torch.hub.load",
    "ssl._create_unverified_context",
}


def sources():
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(found) > 250
    return found


def problems(source):
    """Yield the forbidden imports and calls of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"from {node.module}"
        elif isinstance(node, ast.Call):
            yield from _problems_of_call(node)


def _problems_of_call(node):
    called = ast.unparse(node.func)
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if called in CALLS | METHODS:
        yield called
    if called == "torch.load" and options.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if called in {"np.load", "numpy.load"} and options.get("allow_pickle") != "False":
        yield f"{called} without allow_pickle=False"
    if options.get("shell", "False") != "False":
        yield f"{called} with a shell"
    if options.get("verify") == "False":
        yield f"{called} without a look at certificates"
    if (
        called.startswith("subprocess.")
        and node.args
        and isinstance(node.args[0], (ast.Constant, ast.JoinedStr))
    ):
        yield f"{called} of one text"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_source_does_what_it_may_not(folder):
    found = {
        str(path.relative_to(ROOT)): told
        for path in sources()
        if path.is_relative_to(ROOT / folder) and (told := list(problems(path.read_text(encoding="utf-8"))))
    }
    assert found == {path: told for path, told in ALLOWED.items() if path.startswith(f"{folder}/")}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from yaml import load",
        "import xml.etree.ElementTree",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "subprocess.run(words, shell=True)",
        "subprocess.run('ls *')",
        "os.system('ls')",
        "tempfile.mktemp()",
        "httpx.get(url, verify=False)",
    ],
)
def test_each_would_be_found(code):
    assert list(problems(code))


DEPLOY = ROOT / "deploy"
SBOM = (DEPLOY / "sbom.cdx.json").read_text(encoding="utf-8")
BILL = json.loads(SBOM)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MADE_FROM = (
    *PROJECT["dependencies"],
    *(PROJECT["optional-dependencies"][extra][0] for extra in ("neural", "train")),
    *PROJECT["optional-dependencies"]["dictionary"],
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
def test_pins_satisfy_the_bounds_of_pyproject(requirement):
    asked = Requirement(requirement)
    assert asked.specifier.contains(sbom.pins()[sbom.normalised(asked.name)])


def test_the_sbom_lists_just_what_is_pinned():
    listed = {sbom.normalised(one["name"]): one["version"] for one in BILL["components"]}
    assert listed == sbom.pins()


def test_the_sbom_keeps_to_cyclonedx():
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(SBOM) is None


def test_every_library_has_a_package_url_and_nearly_all_a_licence():
    for one in BILL["components"]:
        assert one["purl"] == f"pkg:pypi/{sbom.normalised(one['name'])}@{one['version']}"
    assert sum("licenses" not in one for one in BILL["components"]) <= 3


def test_sbom_lists_the_dependencies_of_the_program():
    (own,) = (one for one in BILL["dependencies"] if one["ref"] == BILL["metadata"]["component"]["bom-ref"])
    needed = {sbom.normalised(ref.partition("==")[0]) for ref in own["dependsOn"]}
    assert {sbom.normalised(Requirement(line).name) for line in PROJECT["dependencies"]} <= needed


def test_an_environment_of_other_versions_makes_no_sbom():
    with pytest.raises(SystemExit, match="nonexistent"):
        sbom.kept(BILL, {**sbom.pins(), "nonexistent": "1.0"})


SERVICE = Path(api_keys.__file__).parent
SECURITY = [SERVICE / "api_keys.py", *(SERVICE / "middleware").glob("*.py")]
SECRET_WORDS = {"digest", "salt", "secret", "presented", "given", "hashed"}


def names_in(node):
    """Yield the names and attributes that a piece of code reads."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def plain_comparisons(source):
    """Yield comparisons of secrets by ==, !=, in and similar, whose duration reveals the length of the equal part."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and not all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            sides = [side for side in (node.left, *node.comparators) if not isinstance(side, ast.Call)]
            if any(name in SECRET_WORDS for side in sides for name in names_in(side)):
                yield ast.unparse(node)


@pytest.mark.parametrize("module", sorted(SECURITY), ids=lambda path: path.stem)
def test_no_secret_is_compared_in_any_other_way(module):
    assert not list(plain_comparisons(module.read_text()))


@pytest.mark.parametrize("code", ["key.digest == presented", "secret in known", "a(salt) or x != key.salt"])
def test_another_way_would_be_found(code):
    assert list(plain_comparisons(code))


def test_a_key_is_shown_nowhere_but_where_it_is_made():
    made = create_key("key", ["infer"])
    assert made.secret not in repr(made.key) + made.key.line
    assert made.secret.removeprefix("gm_") not in made.key.line


DEFAULTS = Settings()
BOUNDS = [
    name
    for name in Settings.model_fields
    if name.startswith(("max_", "keep_alive", "body_", "send_", "request_timeout", "state_ttl", "drain_"))
]


@pytest.mark.parametrize("name", BOUNDS)
def test_every_limit_is_set(name):
    limit = getattr(DEFAULTS, name)
    assert name == "max_top_k" or 0 < limit < math.inf  # max_top_k is bounded by the vocabulary


def test_there_are_limits_on_all_that_a_client_can_make_grow():
    assert len(BOUNDS) > 14
    assert {"max_connections", "max_body_bytes", "max_states", "max_users", "max_queued_requests"} <= set(
        BOUNDS
    )


def test_nothing_is_open_that_need_not_be():
    assert DEFAULTS.host == "127.0.0.1"
    assert DEFAULTS.cors_origins == ()
    assert DEFAULTS.log_texts is False
    assert DEFAULTS.otlp_endpoint is None


TESTS = Path(__file__).parents[1]
RUNBOOK = (TESTS.parent / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
THREATS = re.search(r"^## Threats\n(.*?)^## ", RUNBOOK, re.DOTALL | re.MULTILINE)[1]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", THREATS)
ROWS = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| Attack ")]


@pytest.mark.parametrize(("file", "test"), NAMED, ids=str)
def test_a_test_that_is_named_is_there(file, test):
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_attack_names_a_test(row):
    assert len(row.strip("|").split(" | ")) == 3
    assert "::test_" in row.rpartition(" | ")[2]


def test_threats_not_defended_against_are_documented():
    assert len(ROWS) > 20
    assert THREATS.partition("### Not defended against")[2].count("\n- **") >= 8
