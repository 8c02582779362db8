"""How is a text output written, so that it is there whole or not at all?"""

from __future__ import annotations

import os
from pathlib import Path

from trnprof.tracer.errors import OutputExistsError, WriteError


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write beside the target and rename into place.

    Raises:
        OutputExistsError: it is there and ``force`` was not given.
        WriteError: it cannot be written.
    """
    if path.exists() and not force:
        raise OutputExistsError(f"{path} is there already; --force replaces it")
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise WriteError(
            f"{path}: {error.strerror or error}; choose another place with -o"
        ) from error
