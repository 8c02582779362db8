"""How does one mark spans, steps, counters and instants of one's own host code?

::

    with HostRecorder("run.trnprof"):
        with span("load"):
            ...
        counter("loss", 0.25)
        for batch in batches:
            with step():
                ...

Each thread appends flat tuples to a list of its own, two a span; a background thread turns the lists into columns
(:mod:`trnprof.tracer.recorder_drain`) every quarter of a second and when the recording stops. While nothing records, ``span``
returns one shared object that does nothing.

Memory: a span that is not yet drained holds about 220 bytes. Nothing is ever dropped: the drain goes on without a pause while
there is a backlog, and where threads record faster than it can follow (several of them, doing nothing else), they wait
at their next record until less than a quarter of ``MOST_WAITING`` records is left. What waits was 200 MB at most when tried with four such threads. If
the drain fails (disk full), recording ends there and ``stop`` raises.

Fork: a child records nothing (unless :func:`record_when_used` is called in it), its parent goes on. A kill loses what was not drained, and spans still open.
"""

from __future__ import annotations

import atexit
import inspect
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.recorder_functions import checked_text, decorated
from trnprof.tracer.recorder_threads import (
    VALUES_PER_RECORD,
    Append,
    Brake,
    Sink,
    ThreadLog,
    Threads,
    nothing,
)

if TYPE_CHECKING:
    from trnprof.tracer.recorder_drain import Drain

_Function = TypeVar("_Function", bound=Callable[..., Any])

_now = time.perf_counter_ns
_next_serial = itertools.count(1).__next__
_running_loop: Callable[[], Any] = nothing
_current_task: Callable[[Any], Any] = nothing

MOST_WAITING: Final = 1 << 20
"""Records (two a span) that may wait for the drain before threads wait for it."""

_SINK: Final = Sink()
_current: Sink | Threads | Brake | _Sleeping = _SINK
_recorder: HostRecorder | None = None
_listeners: list[Callable[[str], object]] = []


class Span:
    """One range of host time, while it is open; made by :func:`span`. It may be used again once it has ended."""

    __slots__ = ("_append", "_name", "_serial")

    def __init__(self, name: str) -> None:
        self._name = name
        self._append: Append | None = None

    def __enter__(self) -> Self:
        if self._append is not None:
            raise RuntimeError(
                f"span {self._name!r} is open already: call trnprof.span for each use"
            )
        self._append = append = _current.spans
        self._serial = serial = _next_serial()
        loop = _running_loop()
        append((serial, self._name, _now(), 0 if loop is None else _task(loop)))
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        end_ns = _now()
        append = self._append
        if append is None:
            raise RuntimeError(f"span {self._name!r} is not open")
        self._append = None
        append((self._serial, None, end_ns, 0))

    def __call__(self, *_: object, **__: object) -> None:
        """Refuse to decorate: whether something records is known at the call, not at the definition."""
        raise TypeError(_NOT_A_DECORATOR)


class _IdleSpan:
    """What :func:`span` and :func:`step` return while nothing records."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> None:
        """Refuse to decorate: whether something records is known at the call, not at the definition."""
        raise TypeError(_NOT_A_DECORATOR)


_IDLE: Final = _IdleSpan()
_NOT_A_DECORATOR = (
    "trnprof.span(name) is a context manager: decorate functions with @trnprof.span, without a name"
)


@overload
def span(name: str) -> Span | _IdleSpan: ...
@overload
def span(name: _Function) -> _Function: ...
def span(name: Any) -> Any:
    """Record a range of host time: around a block, or around each call of a function, named after it.

    ``with span("load"): ...`` or ``@span``.

    Args:
        name: what people will call it, or the function to decorate (coroutine functions too; a generator function's range
            would end before its body runs and is refused).

    Raises:
        TypeError: the name is neither.
    """
    if name.__class__ is not str:
        return _span_of_other(name)
    if _current is _SINK:
        return _IDLE
    return Span(name)


def instant(name: str) -> None:
    """Mark a moment: an event of category marker and duration 0 on the calling thread's track.

    Raises:
        TypeError: the name is not a str.
    """
    name = checked_text(name, "name")
    if _current is _SINK:
        return
    serial = -_next_serial()
    loop = _running_loop()
    task = 0 if loop is None else _task(loop)
    time_ns = _now()
    _current.spans((serial, name, time_ns, task, serial, None, time_ns, 0))


def counter(name: str, value: float, unit: str = "") -> None:
    """One sample of a value that holds until the next; NaN and infinities are kept.

    Args:
        name: of the counter; with its unit it is one track, whichever thread samples it.
        value: anything ``float`` accepts.
        unit: of the value, such as ``"B"``.

    Raises:
        TypeError: name or unit is not a str, or the value no number.
        ValueError: the value is text that is no number.
    """
    name, unit, value = checked_text(name, "name"), checked_text(unit, "unit"), float(value)
    if _current is not _SINK:
        _current.counts((name, unit, _now(), value))


class Step:
    """One step, while it runs; made by :func:`step`. Dropped without having been entered, it is a plain marker."""

    __slots__ = ("_called_ns", "_entered_ns", "_label")

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._called_ns = _now()
        self._entered_ns: int | None = None

    def __enter__(self) -> Self:
        self._entered_ns = _now()
        if _recorder is not None:
            _recorder._begin_steps(self._entered_ns)
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        _end_step(self._label, None)

    def __del__(self) -> None:
        if self._entered_ns is None:
            _end_step(self._label, self._called_ns)


def step(label: str | None = None) -> Step | _IdleSpan:
    """Mark one step of the workload.

    ``with step(): ...`` around it, or a plain ``step()`` at its end.

    A step runs from the end of the step before to its own end, idle time included. The first begins where its ``with`` is
    entered; with plain markers, where the recording began.

    Args:
        label: what people call it; "step 0", "step 1", … if none.

    Raises:
        TypeError: the label is not a str.
    """
    if label is not None:
        label = checked_text(label, "label")
    if _recorder is None and not _listeners:
        return _IDLE
    return Step(label)


def current_step() -> int | None:
    """Ordinal of the step that is under way (the number of steps that have ended); None while nothing records."""
    recorder = _recorder
    return None if recorder is None else recorder._steps_ended


def on_step(callback: Callable[[str], object]) -> Callable[[], None]:
    """Call ``callback(label)`` at each end of a step, in the thread that ends it, whether or not anything records.

    Returns:
        A function that ends this; it may be called twice.
    """
    _listeners.append(callback)

    def remove() -> None:
        if callback in _listeners:
            _listeners.remove(callback)

    return remove


def is_recording() -> bool:
    """Whether a :class:`HostRecorder` is running in this process."""
    return _current is not _SINK


class HostRecorder:
    """Records the spans, instants, counters and steps of this process into one trace, between ``start`` and ``stop``.

    One recorder runs at a time in a process, and a recorder is started once. Without ``stop`` the trace is sealed when the
    interpreter exits. It writes its writer's part of the trace; the manifest is the coordinator's.

    Args:
        path: trace directory, made if needed.
        writer: name of the writer in the trace.
        command: what the fragment says was run.
        reproducible: leave out the host name and the wall clock.
        rank: rank that its steps belong to.
        drain_seconds: pause between two drains.
        label: name of the host's track, "" for that of the host.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        writer: str = "host",
        command: Sequence[str] | None = None,
        reproducible: bool = False,
        rank: int = 0,
        drain_seconds: float = 0.25,
        label: str = "",
    ) -> None:
        self.path = os.fspath(path)
        self._writer = writer
        self._command = command
        self._reproducible = reproducible
        self._rank = rank
        self._drain_seconds = drain_seconds
        self._label = label
        self._state = "new"
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._numbers = itertools.count()
        self._logs: dict[int, ThreadLog] = {}
        self._counts: list[Any] = []
        self._step_lock = threading.RLock()
        self._steps: list[tuple[int, int, str]] = []
        self._steps_ended = 0
        self._steps_begin_ns: int | None = None
        self._step_end_ns = 0

    def start(self) -> Self:
        """Begin to record.

        Raises:
            TrnprofError: this recorder was started before, or another is running.
            WriteError: the trace cannot be written.
        """
        global _current, _recorder, _running_loop, _current_task
        with _control:
            if self._state != "new":
                raise TrnprofError(
                    f"this recorder of {self.path} was started before: make a new one"
                )
            if _recorder is not None:
                raise TrnprofError(
                    f"already recording into {_recorder.path}: stop that recorder first"
                )
            self._drain = self._opened_drain()
            _running_loop, _current_task = _asyncio_functions()
            self._state = "running"
            self._process = os.getpid()
            self._thread = threading.Thread(target=self._run, name="trnprof drain", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
            _recorder = self
            _current = Threads(self._logs, self._numbers, self._counts)
        return self

    def stop(self) -> None:
        """Write what is left, spans still open included, and seal. Stopping again, or in a forked child, does nothing.

        Raises:
            WriteError: something could not be written, now or earlier.
        """
        with _control:
            if self._state != "running" or self._process != os.getpid():
                return
            self._state = "stopped"
            with self._lock:
                _switch(self, None)
            atexit.unregister(self.stop)
            self._stopping.set()
            self._thread.join()
            if self._failure is not None:
                raise self._failure
            with self._lock:
                while self._drain_once():
                    pass
                self._drain.finish()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self.stop()

    def _opened_drain(self) -> Drain:
        from trnprof.tracer.recorder_drain import open_drain  # numpy, pyarrow: only when recording

        epoch_unix_ns, origin_ns = time.time_ns(), _now()
        self._step_end_ns = origin_ns
        return open_drain(
            self.path,
            writer=self._writer,
            command=self._command,
            reproducible=self._reproducible,
            rank=self._rank,
            origin_ns=origin_ns,
            epoch_unix_ns=epoch_unix_ns,
            label=self._label,
        )

    def _run(self) -> None:
        pause_seconds = self._drain_seconds
        while not self._stopping.wait(pause_seconds):
            with self._lock:
                try:
                    has_backlog = self._drain_once()
                except Exception as failure:  # raised again by stop(), in the thread of the caller
                    self._failure = failure
                    _switch(self, None)
                    return
                has_backlog |= self._hold_back()
            # with a backlog, still long enough for a thread that forks to get the lock
            pause_seconds = 0.001 if has_backlog else self._drain_seconds

    def _hold_back(self) -> bool:
        """Let recording threads wait while there is too much to drain; whether they do."""
        waiting = sum(len(log.records) for log in [*self._logs.values()]) + len(self._counts)
        waiting //= VALUES_PER_RECORD
        # not isinstance: it reads __class__, which would make a log for this thread
        if type(_current) is Threads and waiting > MOST_WAITING:
            _switch(self, Brake(_current))
        elif type(_current) is Brake and waiting < MOST_WAITING // 4:
            _switch(self, _current.threads)
        return type(_current) is Brake

    def _drain_once(self) -> bool:
        """Write what was recorded until now; whether more waits. Steps are taken last: a step ended before any span here is in."""
        taken = self._drain.take([*self._logs.values()])
        with self._step_lock:
            steps, begin_ns = self._steps, self._steps_begin_ns
            self._steps = []
        self._drain.write_steps(steps, begin_ns)
        has_backlog = self._drain.write_spans(taken)
        has_backlog |= self._drain.write_counters(self._counts)
        for number in self._drain.finished(taken):
            del self._logs[number]
        self._drain.flush()
        return has_backlog

    def _begin_steps(self, entered_ns: int) -> None:
        with self._step_lock:
            if self._steps_begin_ns is None:
                self._steps_begin_ns = self._step_end_ns = max(entered_ns, self._step_end_ns)

    def _end_step(self, label: str | None, at_ns: int | None) -> str:
        with self._step_lock:
            end_ns = max(_now() if at_ns is None else at_ns, self._step_end_ns)
            if self._steps_begin_ns is None:
                self._steps_begin_ns = end_ns
            label = f"step {self._steps_ended}" if label is None else label
            self._steps.append((self._step_end_ns, end_ns, label))
            self._step_end_ns = end_ns
            self._steps_ended += 1
        return label


_control = threading.RLock()


class _Sleeping:
    """Where records go until the first of them: that starts a recorder."""

    def __init__(self, path: str | os.PathLike[str], writer: str, label: Callable[[], str]) -> None:
        self._path, self._writer, self._label = path, writer, label

    @property
    def spans(self) -> Append:
        """Where spans go."""
        append: Append = self._woken().spans
        return append

    @property
    def counts(self) -> Append:
        """Where samples of counters go."""
        append: Append = self._woken().counts
        return append

    def _woken(self) -> Any:
        global _current
        with _control:
            if _current is self:
                _current = _SINK
                with suppress(TrnprofError):
                    HostRecorder(self._path, self._writer, label=self._label()).start()
            return _current


def record_when_used(
    path: str | os.PathLike[str], writer: str, label: Callable[[], str] = str
) -> None:
    """Start a recorder of this process with its first span, instant or counter; nothing is written before, or while another records.

    For processes that may record nothing. That recorder keeps no steps before it has begun; a trace that cannot be written is left alone.

    Args:
        path: trace directory.
        writer: name of the writer, unique in the trace.
        label: gives the name of the host's track when the recorder starts, "" for that of the host.
    """
    global _current
    with _control:
        if _recorder is None:
            _current = _Sleeping(path, writer, label)


def current_writer() -> str | None:
    """Name of the writer that this process records as; None while nothing records."""
    recorder = _recorder
    return None if recorder is None else recorder._writer


def stop_recording() -> None:
    """Stop the recorder of this process, if there is one, as its ``stop`` does; what cannot be written is lost."""
    recorder = _recorder
    if recorder is not None:
        with suppress(TrnprofError):
            recorder.stop()


def _switch(recorder: HostRecorder, to: Threads | Brake | None) -> None:
    """Where records go from now on; None ends the recording. Nobody but the holder of the recorder's lock switches."""
    global _current, _recorder
    if _recorder is not recorder:
        return
    before = _current
    _current = _SINK if to is None else to
    if to is None:
        _recorder = None
    if type(before) is Brake:
        before.gate.set()


def _end_step(label: str | None, at_ns: int | None) -> None:
    recorder = _recorder
    if recorder is not None:
        label = recorder._end_step(label, at_ns)
    for callback in tuple(_listeners):
        callback(label or "step")


def _task(loop: Any) -> int:
    """Identity of the asyncio task that runs, 0 in a callback outside any."""
    task = _current_task(loop)
    return 0 if task is None else id(task)


def _asyncio_functions() -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    import asyncio  # 50 ms: only when recording

    return asyncio._get_running_loop, asyncio.current_task


def _span_of_other(name: Any) -> Any:
    if isinstance(name, str):
        return span(str.__str__(name))
    if not inspect.isroutine(name):
        raise TypeError(
            f"the name of a span must be a str, not {type(name).__name__}: {name!r:.60}"
        )
    return decorated(name, span)


_forking: HostRecorder | None = None


def _before_fork() -> None:
    """Wait until the drain writes nothing, so that no half-written buffer is copied into the child."""
    global _forking  # keeps it alive in the child too, so that nobody closes its files there
    _control.acquire()
    _forking = _recorder
    if _forking is not None:
        _forking._lock.acquire()
        _forking._step_lock.acquire()


def _after_fork_in_parent() -> None:
    if _forking is not None:
        _forking._step_lock.release()
        _forking._lock.release()
    _control.release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()
    _listeners.clear()
    if _forking is not None:
        _switch(_forking, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
