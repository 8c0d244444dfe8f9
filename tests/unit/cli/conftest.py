"""Running the command line in the test's own process."""

import sys

import pytest

from service import cli


@pytest.fixture
def typed(capsys, monkeypatch):
    """Run `gramophone …`: exit code, standard output, standard error."""

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["gramophone", *map(str, argv)])
        code = 0
        try:
            cli.main()
        except SystemExit as stopped:
            code = stopped.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
