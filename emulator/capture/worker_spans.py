"""What do processes do that the captured one starts: DataLoader workers, forks? Each that records a span has a writer of its own.

A worker has a span for each batch that it loads; spans, instants and counters that the program records with trnprof are kept from every
child. Nothing is written for a process that records none. A child that ends by ``os._exit``, as forked ones do, seals its part first.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from pathlib import Path
from typing import Any, Final

from trnprof.tracer import recorder

BATCH: Final = "load batch"


def watch_forks(trace_dir: Path) -> None:
    """From now on each forked child of this process may have a writer."""
    os.register_at_fork(after_in_child=functools.partial(_after_fork, trace_dir))


def watch_spawned(trace_dir: Path) -> None:
    """This process may have one, if another has started it to do a part of its work."""
    # while a spawned process imports the program's main module, its parent is not yet set
    is_starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if is_starting or multiprocessing.parent_process() is not None:
        _record_when_used(trace_dir)


def give_way() -> None:
    """This process turns out to be the captured one: what it has recorded as a child is sealed."""
    if recorder.current_writer() == _writer():
        recorder.stop_recording()


def watch_loaders(trace_dir: Path) -> None:
    """From now on a DataLoader worker that this process becomes, or starts, records each batch that it loads."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = _spanned(kind.fetch, get_worker_info, trace_dir)


def _spanned(fetch: Any, get_worker_info: Any, trace_dir: Path) -> Any:
    @functools.wraps(fetch)
    def spanned_fetch(self: Any, indices: Any) -> Any:
        worker = get_worker_info()
        if worker is None:
            return fetch(self, indices)
        _name_worker(trace_dir, worker.id)
        with recorder.span(BATCH):
            return fetch(self, indices)

    return spanned_fetch


_named: list[int] = []


def _name_worker(trace_dir: Path, number: int) -> None:
    """Before its first span."""
    if _named != [os.getpid()]:
        _named[:] = [os.getpid()]
        _record_when_used(trace_dir, f"DataLoader worker {number}")


def _record_when_used(trace_dir: Path, name: str = "") -> None:
    def label() -> str:
        known = name or multiprocessing.current_process().name
        return f"{'process' if known == 'MainProcess' else known} ({os.getpid()})"

    recorder.record_when_used(trace_dir, _writer(), label)


def _writer() -> str:
    return f"process-{os.getpid()}"


def _after_fork(trace_dir: Path) -> None:
    _record_when_used(trace_dir)
    end = os._exit
    if getattr(end, "seals", False):  # a fork of a fork
        return

    @functools.wraps(end)
    def sealing_exit(code: int) -> Any:
        recorder.stop_recording()
        end(code)

    sealing_exit.seals = True  # type: ignore[attr-defined]
    os._exit = sealing_exit  # type: ignore[assignment]
