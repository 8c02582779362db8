"""How are loops that numpy and polars cannot express compiled, and who is told that it takes a while?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.core import event

from trnprof.tracer.compile_notice import compiling_begins

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile with numba, without the interpreter's lock; kept on disk where numba finds a directory that it may write."""
    return _compiled(function)


def inlined(function: _F) -> _F:
    """As ``compiled``, and it becomes a part of all compiled functions that call it: for the innermost steps of long loops.

    Python cannot call it.
    """
    return _compiled(function, forceinline=True, no_cpython_wrapper=True)


def _compiled(function: _F, **options: bool) -> _F:
    try:
        kept: _F = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no such directory: each process compiles anew
        kept = njit(nogil=True, **options)(function)
    return kept


class _Listener(event.Listener):  # type: ignore[misc]
    """Is told by numba before and after it compiles; loading what was kept is no compiling."""

    def on_start(self, event: Any) -> None:
        compiling_begins()

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Listener())
