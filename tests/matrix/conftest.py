"""One service per device with the models of all selected tests."""

import contextlib
from collections import Counter

import pytest

from tests.matrix.asking import ASKED, Model, publish_all, serving_models


@pytest.fixture(scope="session")
def wanted(request):
    """Cells of the selected tests, and their mixture partners."""
    params = (item.callspec.params for item in request.session.items if hasattr(item, "callspec"))
    cells = {param["cell"] for param in params if "cell" in param}
    return sorted(cells | {cell.partner for cell in cells})


@pytest.fixture(scope="session")
def registry(wanted, tmp_path_factory):
    return publish_all(tmp_path_factory.mktemp("matrix") / "registry", wanted)


@pytest.fixture(scope="session")
def client_of(registry, wanted, tmp_path_factory):
    """Return a client of each device's service, started on first use."""
    clients = {}
    with contextlib.ExitStack() as services:

        def started(device):
            if device not in clients:
                names = [cell.model for cell in wanted if cell.device == device]
                log = tmp_path_factory.mktemp("logs") / f"{device}.log"
                clients[device] = services.enter_context(serving_models(registry, device, names, log))
            return clients[device]

        yield started


@pytest.fixture
def model(cell, client_of):
    """Return the served model of a cell."""
    return Model(client_of(cell.device), cell)


def pytest_terminal_summary(terminalreporter):
    """Print the size of the matrix; each test process counts only its own requests."""
    if not ASKED:
        return
    outcomes = Counter(is_success for _, _, is_success in ASKED)
    models = {cell for _, cell, _ in ASKED}
    terminalreporter.write_line(
        f"matrix: {outcomes[True]} cells (an endpoint and a model) answered, {outcomes[False]} refused, "
        f"{ASKED.total()} requests to {len(models)} models"
    )
