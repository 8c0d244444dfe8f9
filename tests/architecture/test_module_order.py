"""Order within modules: docstring, imports, constants with types and loggers, then functions and classes."""

import ast

import pytest

from tests.architecture.test_structure import read_sources

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign)
IMPORTS = (ast.Import, ast.ImportFrom)

UNORDERED = {
    "clients/python/gramophone_client/calls.py",
    "clients/python/gramophone_client/fusion/adapters.py",
    "clients/python/gramophone_client/fusion/word_tree.py",
    "models/checking/candidates.py",
    "models/checking/checker.py",
    "models/checking/generators.py",
    "models/checking/sentences.py",
    "models/completion/prefix.py",
    "models/completion/search.py",
    "models/completion/text.py",
    "models/completion/user_model.py",
    "models/decoding/batch.py",
    "models/decoding/beam_search.py",
    "models/decoding/rules.py",
    "models/decoding/sampling.py",
    "models/decoding/stopping.py",
    "models/decoding/strategies.py",
    "models/decoding/top_k.py",
    "models/precompile.py",
    "models/reranking/formats/reader.py",
    "models/scoring/candidate_features.py",
    "models/tensor_files.py",
    "models/tokenizers.py",
    "service/api_errors.py",
    "service/console/evaluation.py",
    "service/console/tables.py",
    "service/hosting/loaded_model.py",
    "service/http_protocol.py",
    "service/http_server.py",
    "service/middleware/authentication.py",
    "service/operations/autocomplete.py",
    "service/operations/check.py",
    "service/operations/completions.py",
    "service/operations/next_token.py",
    "service/operations/rerank.py",
    "service/operations/rerank_request.py",
    "service/operations/score.py",
    "service/operations/states.py",
    "service/operations/tokenize.py",
    "service/operations/tune.py",
    "service/routes/endpoints.py",
    "service/routes/streaming.py",
    "service/settings.py",
    "training/evaluation/autocomplete.py",
    "training/evaluation/autocomplete_metrics.py",
    "training/evaluation/breakdown.py",
    "training/model_card.py",
}
"""Modules with constants between their definitions. Only removals: a listed module in order fails the test, too."""


def bound_names(node):
    """Return the names that a statement of a module binds."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    inner = [part for target in targets for part in ast.walk(target)]
    return {part.id for part in inner if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def used_names(node):
    """Return the names that a statement reads, with strings, which may be references to later definitions."""
    names = {
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }
    return names | {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}


def misplaced_lines(tree):
    """Return the lines of imports after other statements, and of assignments after definitions they do not need."""
    found, begun, defined, needed_below = [], False, False, set()
    for node in tree.body:
        if any(isinstance(part, IMPORTS) for part in [node, *getattr(node, "body", [])]):
            if begun and not isinstance(node, DEFINITIONS):
                found.append(node.lineno)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            begun = True
        if defined and isinstance(node, ASSIGNMENTS) and not used_names(node) & needed_below:
            found.append(node.lineno)
        elif defined or isinstance(node, DEFINITIONS):
            needed_below |= bound_names(node)
            defined = True
    return found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Doc."""\nimport a\nA = 1\n"""One."""\ndef f(): pass\nif __name__ == "__main__":\n    f()', []),
        ("import a\ndef f(): pass\nA = 1", [3]),
        ("A = 1\nimport a", [2]),
        ("class C: pass\nALL = [C()]\nFIRST = ALL[0]", []),
        ("class C: pass\nA = 1\nB = A", [2, 3]),
        ("def f():\n    import a", []),
    ],
)
def test_misplaced_lines_are_found(text, lines):
    assert misplaced_lines(ast.parse(text)) == lines


def test_constants_stand_above_functions_and_classes():
    """A constant or alias that refers to a function or class of its module may follow it."""
    assert {source.path for source in read_sources() if misplaced_lines(source.tree)} == UNORDERED
