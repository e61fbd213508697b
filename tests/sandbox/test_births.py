"""Which signals a child gets back: all but those that the caller had ignored."""

import signal

from sandbox.births import signals_to_reset


def test_what_python_ignores_itself_is_given_back() -> None:
    assert {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM} <= set(signals_to_reset())
    assert not {signal.SIGKILL, signal.SIGSTOP} & set(signals_to_reset())


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in signals_to_reset()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in signals_to_reset()
