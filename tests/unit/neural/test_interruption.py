"""What Ctrl-C and SIGTERM do to a command and to a training within it."""

import contextlib
import os
import signal
import threading

import pytest

from training.neural.distributed import EXIT_TERMINATED, Terminated, catch_interruption, exit_on_sigterm


@pytest.fixture(autouse=True)
def handlers_are_left_as_they_were():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


def send(number):
    os.kill(os.getpid(), number)


def test_sigterm_ends_a_command_with_143():
    with pytest.raises(Terminated) as caught, exit_on_sigterm():
        send(signal.SIGTERM)
    assert caught.value.code == EXIT_TERMINATED == 143


def test_a_second_sigterm_would_end_the_process_at_once():
    """Also while it cleans up after the first."""
    with exit_on_sigterm():
        with pytest.raises(Terminated):
            send(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_a_library_makes_of_sigterm_is_sigterm():
    """DuckDB swallows what the handler raises and says that its query was interrupted."""

    def query():
        with contextlib.suppress(Terminated):
            send(signal.SIGTERM)
        raise RuntimeError("Query interrupted")

    with pytest.raises(Terminated), exit_on_sigterm():
        query()


def test_other_errors_stay_what_they_are():
    with pytest.raises(ZeroDivisionError), exit_on_sigterm():
        1 / 0  # noqa: B018


def test_a_training_takes_note_of_sigterm_once():
    with exit_on_sigterm():
        with catch_interruption() as asked:
            send(signal.SIGTERM)
            assert (asked.terminated, asked.requested) == (True, False)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_after_a_training_in_peace_sigterm_ends_the_command():
    with exit_on_sigterm():
        with catch_interruption():
            pass
        with pytest.raises(Terminated):
            send(signal.SIGTERM)


def test_a_second_ctrl_c_interrupts_a_training():
    with catch_interruption() as asked:
        send(signal.SIGINT)
        assert (asked.terminated, asked.requested) == (False, True)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_without_a_command_sigterm_is_nobodys_business():
    with catch_interruption():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_handler_stays():
    def other(number, frame):
        raise AssertionError

    signal.signal(signal.SIGTERM, other)
    try:
        with exit_on_sigterm(), catch_interruption():
            assert signal.getsignal(signal.SIGTERM) is other
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_other_threads_take_note_of_nothing():
    taken = []

    def work():
        with exit_on_sigterm(), catch_interruption():
            taken.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert taken == [signal.SIG_DFL]
