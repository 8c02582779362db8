"""What does a span cost the thread that records it?

Prints nanoseconds a span (best of several runs, each after the last one's records were drained) beside a floor (an empty
``with`` of a class with slots) and a peer (contextlib.contextmanager with the same appends), and what the drain costs a span.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trnprof.tracer import recorder
from trnprof.tracer.recorder import HostRecorder, span

SPANS = 50_000
RUNS = 9


class Floor:
    __slots__ = ()

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass


@contextlib.contextmanager
def peer(name: str) -> Iterator[None]:
    append = recorder._current.spans
    serial = recorder._next_serial()
    loop = recorder._running_loop()
    task = 0 if loop is None else recorder._task(loop)
    append((serial, name, time.perf_counter_ns(), task))
    try:
        yield
    finally:
        append((serial, None, time.perf_counter_ns(), 0))


def run_span() -> None:
    for _ in range(SPANS):
        with span("work"):
            pass


def run_peer() -> None:
    for _ in range(SPANS):
        with peer("work"):
            pass


def run_floor() -> None:
    for _ in range(SPANS):
        with Floor():
            pass


def ns_a_span(run: Callable[[], None], between: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start_ns = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - start_ns)
        between()
    return best / SPANS


def main() -> None:
    floor = ns_a_span(run_floor, lambda: None)
    idle = ns_a_span(run_span, lambda: None)
    with tempfile.TemporaryDirectory() as directory:
        quiet = HostRecorder(Path(directory) / "bench.trnprof", drain_seconds=3600)
        drained_ns = 0

        def drain() -> None:
            nonlocal drained_ns
            start_ns = time.perf_counter_ns()
            while quiet._drain_once():
                pass
            drained_ns += time.perf_counter_ns() - start_ns

        with quiet:
            ours = ns_a_span(run_span, drain)
            drain_cost = drained_ns / SPANS / RUNS
            theirs = ns_a_span(run_peer, drain)
        with HostRecorder(Path(directory) / "live.trnprof"):
            start_ns = time.perf_counter_ns()
            for _ in range(20):
                run_span()
            live = (time.perf_counter_ns() - start_ns) / SPANS / 20
    for text, value in (
        ("empty with of a slots class (floor)", floor),
        ("trnprof.span, nothing records", idle),
        ("trnprof.span, recording", ours),
        ("contextlib.contextmanager, same appends (peer)", theirs),
        ("drain, in its own thread", drain_cost),
        ("trnprof.span flat out, drain running beside it", live),
    ):
        print(f"{value:8.0f} ns  {text}")
    print(f"{theirs / ours:8.2f} x   peer / ours")


if __name__ == "__main__":
    main()
