"""How are loops that numpy and polars cannot express compiled?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile with numba, without the interpreter's lock; kept on disk where numba finds a directory that it may write."""
    try:
        kept: _F = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no such directory: each process compiles anew
        kept = njit(nogil=True)(function)
    return kept
