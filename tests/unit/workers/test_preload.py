"""What is imported before workers are forked."""

import importlib.util
import subprocess
import sys

from service.workers import supervisor
from tests.processes import ROOT


def test_every_module_is_there():
    names = {*supervisor._ALWAYS, *supervisor._NEURAL}
    assert all(importlib.util.find_spec(name) is not None for name in names)


def test_n_gram_models_bring_no_torch():
    program = (
        "import sys; from service.workers.supervisor import _ALWAYS, preload; import service.app; preload(_ALWAYS); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_no_thread_runs_that_a_fork_would_lose():
    program = (
        "import threading; from service.workers.supervisor import _ALWAYS, _NEURAL, preload; import service.app; "
        "preload([*_ALWAYS, *_NEURAL]); assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
