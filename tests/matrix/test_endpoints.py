"""No endpoint of the service is left out of the matrix."""

import importlib
from pathlib import Path

from service.app import create_app
from service.settings import Settings
from tests.matrix.publishing import publish_all
from tests.matrix.rows import WITHOUT_A_MODEL


def served(routes):
    """Method and path of every route, those of included routers too."""
    for route in routes:
        if getattr(route, "path", None) is None:
            yield from served(route.original_router.routes)
        else:
            yield from (f"{method} {route.path}" for method in route.methods - {"HEAD"})


def in_rows():
    """The endpoints that tests of this folder ask of every model."""
    names = [f"tests.matrix.{path.stem}" for path in Path(__file__).parent.glob("test_*.py")]
    tests = [test for name in names for test in vars(importlib.import_module(name)).values()]
    return {endpoint for test in tests for endpoint in getattr(test, "endpoints", ())}


def test_every_endpoint_has_a_row_or_is_about_no_model(tmp_path):
    registry = publish_all(tmp_path / "registry", [])
    found = set(served(create_app(Settings(registry=registry.root)).routes))
    rows = in_rows()
    assert found - rows == set(WITHOUT_A_MODEL)
    assert rows <= found
