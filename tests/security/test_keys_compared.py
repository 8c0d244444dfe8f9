"""That no secret is compared but by `hmac.compare_digest`; that all keys are, `test_security_keys` shows."""

import ast
from pathlib import Path

import pytest

from service import api_keys
from service.api_keys import create_key

SERVICE = Path(api_keys.__file__).parent
SECURITY = [SERVICE / "api_keys.py", *(SERVICE / "middleware").glob("*.py")]
SECRET_WORDS = {"digest", "salt", "secret", "presented", "given", "hashed"}


def names_in(node):
    """Names and attributes that a piece of code reads."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def plain_comparisons(source):
    """Comparisons of secrets by ==, !=, in and their like, whose time tells how much was equal."""
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
