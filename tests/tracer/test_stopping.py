"""What blocks say would undo them is called once they end, or all at once; signals are held back and none is lost."""

from __future__ import annotations

import signal

import pytest

from trnprof.tracer.stopping import StoppedError, stops_held_back, undo_all, undone


def test_blocks_are_undone_as_they_end_and_all_before_it_the_innermost_first() -> None:
    called: list[str] = []

    def fails() -> None:
        called.append("fails")
        raise FileNotFoundError

    def work() -> None:
        with undone(fails):
            with undone(lambda: called.append("inner")):
                undo_all()
                assert called == ["inner", "fails", "outer"]
            assert called[3:] == ["inner"]

    with undone(lambda: called.append("outer")):
        with pytest.raises(FileNotFoundError):
            work()
        assert called[4:] == ["fails"]
    undo_all()
    assert called[5:] == ["outer"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_signal_is_held_back_until_it_is_asked_for_or_the_block_ends(asks: bool) -> None:
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def work() -> None:
        with stops_held_back() as check:
            signal.raise_signal(signal.SIGTERM)
            reached.append("signal")
            if asks:
                check()
            reached.append("end")

    with pytest.raises(StoppedError) as stop:
        work()
    assert stop.value.number == signal.SIGTERM
    assert reached == (["signal"] if asks else ["signal", "end"])
    assert signal.getsignal(signal.SIGTERM) is before
