"""Running the command line in the test's own process."""

import sys

from service.cli.main import main


def typed_line(capsys, monkeypatch, *argv, stdin=None):
    """Run `gramophone …` as from a shell: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["gramophone", *map(str, argv)])
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", stdin)
    code = 0
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err
