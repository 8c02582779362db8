"""How are files written so that no half-written one is ever seen, and what is said when that fails?"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from trnprof.tracer.errors import OutputExistsError, WriteError
from trnprof.tracer.stopping import undone

_ADVICE = {
    errno.ENOSPC: "the disk is full: free space or write elsewhere",
    errno.EDQUOT: "the disk quota is used up: free space or write elsewhere",
    errno.EFBIG: "the file system allows no file that large: write elsewhere",
    errno.EROFS: "the file system is read-only: write elsewhere",
    errno.EACCES: "permission denied: make the directory writable or write elsewhere",
    errno.EPERM: "operation not permitted: make the directory writable or write elsewhere",
    errno.ENOENT: "the directory is gone: was it removed while it was being written?",
    errno.ENOTDIR: "a part of the path is a file, not a directory: choose another path",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENAMETOOLONG: "the file name is too long: choose a shorter one",
}


def write_error(error: OSError, path: Path | str) -> WriteError:
    """The error for a person that an operating system error at ``path`` means: the only map from errno to advice."""
    return _cannot_write(path, _ADVICE.get(error.errno or 0) or (error.strerror or str(error)))


def _cannot_write(path: Path | str, reason: str) -> WriteError:
    return WriteError(f"cannot write {path}: {reason}", str(path), reason)


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turn any OSError inside into a WriteError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, made durable and renamed onto it when the block ends well.

    Raises:
        WriteError: it could not be written; nothing is left beside then.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with undone(partial(_remove_file, beside)), writing(path):
        yield beside
        sync(beside)
        beside.replace(path)
        sync(path.parent)


def _remove_file(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file or the entries of a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_output_file(path: Path, *, force: bool) -> None:
    """Refuse a file to write before any work is done for it.

    Raises:
        OutputExistsError: it is there and ``force`` was not given, or it is a directory.
        WriteError: its directory does not exist.
    """
    if path.is_dir():
        raise OutputExistsError(f"{path} is a directory; name a file")
    if path.exists() and not force:
        raise OutputExistsError(
            f"{path} exists; give --force to replace it, or choose another path"
        )
    if not path.parent.is_dir():
        raise WriteError(f"cannot write {path}: there is no directory {path.parent}; create it")


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document beside and rename it into place.

    Raises:
        WriteError: it could not be written.
    """
    with written_beside(path) as beside:
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        # arguments of a command may be any bytes: what is not UTF-8 is shown as "?"
        beside.write_bytes(text.encode("utf-8", "replace"))


def remove_abandoned(path: Path) -> None:
    """Remove what processes that were killed left beside ``path`` when they wrote it with ``directory_beside``.

    A process of another machine that writes the same path now is not known to live: nobody should do that.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.([1-9][0-9]{{0,9}})\.tmp")
    with suppress(OSError):
        for entry in list(os.scandir(path.parent)):
            found = pattern.fullmatch(entry.name)
            is_folder = found is not None and entry.is_dir(follow_symlinks=False)
            if found is not None and is_folder and not _is_other_alive(int(found[1])):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_other_alive(pid: int) -> bool:
    """Whether another process has this number; what has our own was left by an earlier one."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


@contextmanager
def directory_beside(path: Path) -> Iterator[Path]:
    """A new directory beside ``path`` that replaces it (a directory, or nothing) when the block ends well.

    Raises:
        WriteError: it could not be written; ``path`` is as before then.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        with undone(partial(_put_back, path, old, beside)), writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            yield beside
            if path.exists():
                path.rename(old)
            beside.rename(path)
            sync(path.parent)
    except WriteError as error:
        if not Path(error.path).is_relative_to(beside):
            raise
        # for a person it is what takes its place that could not be written
        raise _cannot_write(path, error.reason) from error


def _put_back(path: Path, old: Path, beside: Path) -> None:
    """Let nothing but ``path`` be left: the new directory if it is in its place, else the old one."""
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
