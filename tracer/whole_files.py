"""How is a small file read whole, so that a pipe that nobody writes to is refused rather than waited for?"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from trnprof.tracer.errors import TrnprofError


def read_whole(path: Path) -> bytes:
    """All bytes of a file, or of a pipe that somebody writes to (``<(…)`` of a shell), to its end.

    Raises:
        OSError: it cannot be read, is a device or a socket, or a pipe that nobody writes to; ``strerror`` says which.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind not in (stat.S_IFREG, stat.S_IFIFO):
        raise OSError(errno.EINVAL, "a device or a socket, not a file", str(path))
    # opening a pipe waits for a writer otherwise
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb", buffering=0) as file:
        if kind == stat.S_IFREG:
            return file.readall()
        first = file.read(1)  # None: somebody writes, and has nothing yet
        if first == b"":
            raise OSError(errno.EINVAL, "a pipe that nobody writes to", str(path))
        os.set_blocking(handle, True)
        return (first or b"") + file.readall()


def read_whole_text(path: Path) -> str:
    """The same as text, without the byte order mark that some editors begin with.

    Raises:
        OSError: as for ``read_whole``.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_whole(path).decode("utf-8-sig")


def read_json_object(path: Path, failure: type[TrnprofError], expected: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: of the file.
        failure: what is raised if it cannot be read or is something else.
        expected: what it should hold, for that message.
    """
    try:
        document = json.loads(read_whole(path))
    except OSError as error:
        raise failure(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise failure(f"{path} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise failure(f"{path}: {expected}")
    return document
