"""Product modules: number, size, importers, no cycles, and names that use the glossary's words."""

import ast
import functools
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("models", "service", "training", "clients/python/gramophone_client")

# Lines by kind: folders, endings, maximum. A maximum is raised only in a commit that says why.
LINE_LIMITS = {
    "product": (("models", "service", "training"), (".py",), 82_351),
    "Python of clients, site and examples": (
        ("clients/python", "deploy", "docs", "examples"),
        (".py",),
        3_360,
    ),
    "templates, scripts and styles": (
        ("models", "service", "docs", "examples"),
        (".css", ".html", ".jinja", ".js"),
        3_742,
    ),
}
MAX_MODULES = 296
MIN_MEDIAN_LINES = 180
MAX_LINES = 800
MAX_LONELY_SHARE = 0.35
"""Maximum share of modules that at most one other module imports."""
MAX_BYTES_PER_LINE = 42
NO_BEGINNING = re.compile(r"(What|How|Where|When|Who|Whom|Which|Whose|Whether|Why|That|If|So|Some|They|It)\b")
"""First words that docstrings avoid: a docstring begins with a noun or a verb."""
CLIENT = "clients/python/"
"""Exempt from unique class names: its classes mirror the service's, as `RerankOptions` does."""
GENERATED = "clients/python/gramophone_client/types.py"


class Source(NamedTuple):
    """Source file of the product: path, text and syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self):
        """Dotted module name."""
        path = self.path.removeprefix(CLIENT).removesuffix(".py")
        return path.replace("/", ".").removesuffix(".__init__")

    @property
    def is_package(self):
        """True if the file is an `__init__.py`."""
        return self.path.endswith("__init__.py")


@functools.cache
def read_sources():
    """Read all Python files of the product, on first use."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path != ROOT / GENERATED}
    return [Source(path.relative_to(ROOT).as_posix(), text, ast.parse(text)) for path, text in texts.items()]


def read_modules():
    """Return all sources except the packages' `__init__.py`."""
    return [source for source in read_sources() if not source.is_package]


def imported_names(source):
    """Yield the dotted names that a file imports, deferred and type-checking imports included."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named_modules(source):
    """Yield the strings of a file that may name modules: for `import_module`, `python -m` or tables of kernels.

    A module may be followed by `:` and a function; f-strings may contain the file's constants.
    """
    assigned = [node for node in source.tree.body if isinstance(node, ast.Assign)]
    constants = {
        target.id: node.value.value
        for node in assigned
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            inner = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
            texts = [
                part.value if isinstance(part, ast.Constant) else constants.get(part.id)
                for part in inner
                if isinstance(part, ast.Constant | ast.Name)
            ]
            yield "".join(map(str, texts)).partition(":")[0]


def import_graph(sources):
    """Map each module to the modules that it imports, by a statement or by a string.

    A string that is a package's bare name, such as "models", has other meanings.
    """
    known = {source.module for source in sources}
    return {
        source.module: {
            *known.intersection(imported_names(source)),
            *(name for name in known.intersection(named_modules(source)) if "." in name),
        }
        - {source.module}
        for source in sources
    }


def find_cycle(graph):
    """Return the modules of an import cycle, or an empty list."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        cycle = next(filter(None, map(visit, sorted(graph[module]))), [])
        path.pop()
        done.add(module)
        return cycle

    return next(filter(None, map(visit, graph)), [])


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    "text",
    [
        'importlib.import_module("models.b")',
        '__import__("models.b")',
        'KERNELS = (("models.b:function",),)',
        'PACKAGE = "models"\nrun("-m", f"{PACKAGE}.b")',
    ],
)
def test_module_named_by_a_string_is_imported(text):
    sources = [Source("models/a.py", text, ast.parse(text)), Source("models/b.py", "", ast.parse(""))]
    assert import_graph(sources)["models.a"] == {"models.b"}


def test_no_modules_import_one_another():
    """Deferred imports, type-checking imports, imports by a string and the packages' `__init__.py` count."""
    assert find_cycle(import_graph(read_sources())) == []


def test_modules_are_few_and_of_a_readable_size():
    lines = [source.text.count("\n") for source in read_modules()]
    assert len(read_modules()) <= MAX_MODULES
    assert statistics.median(lines) >= MIN_MEDIAN_LINES
    assert {source.path for source in read_modules() if source.text.count("\n") > MAX_LINES} == set()


def count_lines(folders, endings):
    """Count the lines of the files in folders, the generated types excepted."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in endings)
    return sum(path.read_bytes().count(b"\n") for path in files if path != ROOT / GENERATED)


@pytest.mark.parametrize("kind", LINE_LIMITS)
def test_lines_are_at_most_as_many_as_before(kind):
    folders, endings, most = LINE_LIMITS[kind]
    assert count_lines(folders, endings) <= most


def test_lines_are_not_squeezed():
    size = sum(len(source.text.encode()) for source in read_sources())
    assert size / sum(source.text.count("\n") for source in read_sources()) <= MAX_BYTES_PER_LINE


def test_most_modules_are_shared():
    """A module with a single importer is often a part of that importer."""
    graph = import_graph(read_modules())
    importers = {module: sum(module in imports for imports in graph.values()) for module in graph}
    lonely = [module for module, count in importers.items() if count <= 1]
    assert len(lonely) / len(read_modules()) <= MAX_LONELY_SHARE


def public_classes(source):
    """Return the names of the public classes that a file defines."""
    found = (node.name for node in source.tree.body if isinstance(node, ast.ClassDef))
    return [name for name in found if not name.startswith("_")]


def test_a_class_name_means_one_thing():
    where = defaultdict(list)
    for source in read_sources():
        if not source.path.startswith(CLIENT):
            for name in public_classes(source):
                where[name].append(source.path)
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def words_of(name):
    """Return the lower-case words of a name: `HTTPServer_pool2` has `http`, `server` and `pool`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def test_names_are_taken_apart():
    assert words_of("HTTPServerError") == ["http", "server", "error"]
    assert words_of("token_trie") == ["token", "trie"]
    assert words_of("MAX_ROWS2") == ["max", "rows"]


def read_words():
    """Return the words allowed in names, and the words to avoid."""
    terms = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    field = {word for row in re.findall(r"^\| ([^|]+) \|", terms, re.MULTILINE) for word in words_of(row)}
    text = re.sub(
        r"^#.*$", "", (ROOT / "tests/architecture/words.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    avoided = set(re.findall(r"^([a-z]+) -> ", text, re.MULTILINE))
    plain = re.sub(r"^[a-z]+ -> .*$", "", text, flags=re.MULTILINE)
    return field | set(re.findall(r"[a-z]+", plain)), avoided


KNOWN, AVOIDED = read_words()
ENDINGS = {
    "s": "",
    "es": "",
    "ed": "",
    "d": "",
    "ing": "",
    "er": "",
    "or": "",
    "r": "",
    "ies": "y",
    "ied": "y",
}


def is_known(word):
    """True if the glossary has the word, perhaps in another form: `scorers` for `score`."""
    if word in KNOWN or len(word) == 1:
        return True
    for ending, instead in ENDINGS.items():
        if word.endswith(ending) and len(word) - len(ending) > 2:
            stem = word.removesuffix(ending) + instead
            forms = {stem, stem + "e", stem[:-1] if stem[-1] == stem[-2] else stem}
            if forms & KNOWN or (ending == "s" and is_known(stem)):
                return True
    return False


def test_forms_of_a_word_are_known():
    assert all(map(is_known, ["token", "tokens", "tokenizer", "scored", "batching", "entries"]))
    assert not any(map(is_known, ["zyzzyva", "zyzzyvas"]))


def test_names_of_modules_and_classes_are_words_of_the_glossary():
    names = {
        name for source in read_sources() for name in (source.module.split(".")[-1], *public_classes(source))
    }
    assert {
        name: unknown for name in names if (unknown := [w for w in words_of(name) if not is_known(w)])
    } == {}


def test_public_names_avoid_private_vocabulary():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for source in read_sources() for node in source.tree.body if isinstance(node, kinds)}
    names = {name for name in defined if not name.startswith("_")} | {
        source.module.split(".")[-1] for source in read_sources()
    }
    assert {name for name in names if AVOIDED & set(words_of(name))} == set()


def test_docstrings_begin_with_a_verb_or_a_noun():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for source in read_sources():
        documented = [node for node in ast.walk(source.tree) if isinstance(node, kinds)]
        begun = [(ast.get_docstring(node) or "").partition("\n")[0] for node in documented]
        assert [line for line in begun if NO_BEGINNING.match(line)] == [], source.path


def test_everything_is_caught_in_few_places():
    """Exceptions: engine steps, the last resort, libraries that raise anything, a future's result, releasing."""
    everything = re.compile(r"except (Base)?Exception\b|except:")
    assert {
        source.path: len(everything.findall(source.text))
        for source in read_sources()
        if everything.search(source.text)
    } == {
        "training/commands.py": 1,
        "models/pretrained/folder.py": 1,
        "models/pretrained/tokenizer.py": 1,
        "service/engine/scheduler.py": 2,
        "service/http_protocol.py": 1,
        "service/middleware/guard.py": 1,
        "training/neural/distributed.py": 1,
        "training/neural/resume.py": 1,
        "training/scale/spark_engine.py": 1,
        "training/progress.py": 1,
    }
