"""Work in function calls, which, unlike times, do not depend on what else the machine does."""

import sys

from models.calls import ModelCall, run_call


def calls_by_step(work):
    """Run an operation; return the number of function calls of each of its steps, without those of the model."""
    counts, answer = [], None
    while True:
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            output = work.send(answer)
        except StopIteration:
            return [*counts, calls]
        finally:
            sys.setprofile(None)
            counts.append(calls)
        answer = run_call(output) if isinstance(output, ModelCall) else None


def calls_in(function, *arguments):
    """Return the number of function calls in a call."""

    def work():
        function(*arguments)
        yield from ()

    return sum(calls_by_step(work()))
