"""Who is told that something is compiled, which takes a while? It loads nothing, so that commands that compile nothing start fast."""

from __future__ import annotations

from collections.abc import Callable

_tell: Callable[[], None] | None = None


def tell_of_compiling(tell: Callable[[], None]) -> None:
    """Call ``tell`` once, when this process compiles the first function that was not kept on disk."""
    global _tell
    _tell = tell


def compiling_begins() -> None:
    """Tell whoever wants to know; only the first call does."""
    global _tell
    if _tell is not None:
        tell, _tell = _tell, None
        tell()
