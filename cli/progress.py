"""How far is it? A bar on the terminal that stderr is, once something takes more than a second; nothing elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from trnprof.cli.diagnostics import columns_of

AFTER_SECONDS: Final = 1.0


class Tell(Protocol):
    """Says how far it is."""

    def __call__(self, done: int, total: int, what: str | None = None) -> None:
        """``done`` of ``total`` parts; ``what`` is done now, if that changes."""
        ...


def _unheard(done: int, total: int, what: str | None = None) -> None:
    pass


@contextmanager
def bar(what: str) -> Iterator[Tell]:
    """Show a bar while the block runs; it is gone afterwards.

    Args:
        what: is done.

    Yields:
        What moves the bar; until it is called the bar only shows that something goes on.
    """
    if columns_of(sys.stderr) is None:
        yield _unheard
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    task = shown.add_task(what, total=None)
    lock, is_over = threading.Lock(), False

    def begin() -> None:
        with lock:
            if not is_over:
                shown.start()

    def tell(done: int, total: int, what: str | None = None) -> None:
        described = {} if what is None else {"description": what}
        shown.update(task, completed=done, total=total, **described)  # type: ignore[arg-type]

    timer = threading.Timer(AFTER_SECONDS, begin)
    timer.daemon = True
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        with lock:
            is_over = True
            shown.stop()
