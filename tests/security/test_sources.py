"""What the sources may not do: run what was read, leave a shell to take words apart, or trust a name in /tmp."""

import ast
from pathlib import Path

import pytest

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
"""Formats that run code or expand entities when they are read; YAML and XML are not read at all."""

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
    """What a module does that it may not."""
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
    assert not found


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
