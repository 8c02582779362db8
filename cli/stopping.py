"""How does a command end that is told to (Ctrl-C, SIGTERM, SIGHUP), at whatever moment, with nothing half-written left?

A handler that raises, as Python's own does for Ctrl-C, is not sound here. numba makes Python objects of the arrays that a compiled
function returns by calling a function written in Python (``_numba_unpickle``, from the C function ``numba_unpickle``). A signal that
came while the compiled function ran is handled in there, and the generated code does not look whether that failed: it crashes, or ends
in "SystemError: returned a result with an exception set". Callbacks from LLVM and destructors lose the exception altogether.

So the handler raises nothing and never returns. It runs in the main thread, between two steps of Python code, calls what the blocks that
are under way have said would undo them (``trnprof.tracer.stopping.undone``: temporary files and directories, a live line), says one line
and ends the process there. A compiled function that runs is waited for. Where this process only waits for others that read profiles,
``stops_held_back`` lets it end them in order instead.
"""

from __future__ import annotations

import os
import signal

from trnprof.cli.diagnostics import say
from trnprof.tracer.stopping import STOPS, undo_all

_SIGNALLED = 128


def end_when_told() -> None:
    """From now on, end this process as this module says; a signal that is ignored (nohup) stays so."""
    for number in STOPS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _end)


def leave_to_viewer() -> None:
    """Python's own handlers again: asyncio replaces that of Ctrl-C, so that Textual can give the terminal back."""
    for number in STOPS:
        if signal.getsignal(number) is _end:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def ignore_stops() -> None:
    """All is done: a signal that comes while Python ends changes neither that nor the exit code."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def stopped(number: int) -> SystemExit:
    """The exception that ends a process that a signal has stopped, told in one line."""
    is_interrupt = number == signal.SIGINT
    say("interrupted" if is_interrupt else f"stopped by {signal.Signals(number).name}")
    return SystemExit(_SIGNALLED + number)


def _end(number: int, frame: object) -> None:
    ignore_stops()  # what undoes is not stopped
    try:
        undo_all()
        stopped(number)
    finally:
        os._exit(_SIGNALLED + number)
