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
def written_beside(path: Path, *, force: bool = True) -> Iterator[Path]:
    """A new empty file beside ``path``, made durable and put in its place when the block ends well.

    Args:
        path: where; of a symbolic link what it leads to is written.
        force: replace a file that is there, also one that has come meanwhile.

    Raises:
        OutputExistsError: a file is there and ``force`` was not given.
        WriteError: it could not be written; nothing is left beside then.
    """
    place = followed(path)
    beside = _beside(place, "tmp")
    with undone(partial(_remove_file, beside)), writing(path):
        try:
            beside.touch()
        except FileNotFoundError:
            raise _cannot_write(path, _why_not_made(place)) from None
        yield beside
        sync(beside)
        if force:
            beside.replace(place)
        else:
            _place_new_file(beside, place, path)
        sync(place.parent)


def _place_new_file(beside: Path, place: Path, path: Path) -> None:
    """Give a file its name, which nobody else may have taken meanwhile."""
    try:
        try:
            os.link(beside, place)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: an empty file takes the name first
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            beside.replace(place)
    except FileExistsError:
        raise exists_already(path) from None


def _beside(place: Path, ending: str) -> Path:
    return place.with_name(f".{place.name}.{os.getpid()}.{ending}")


def followed(path: Path) -> Path:
    """Where what is written to ``path`` goes: of a symbolic link what it leads to, whether that is there or not.

    Raises:
        WriteError: it leads back to itself.
    """
    if not path.is_symlink():
        return path
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise _cannot_write(path, "a symbolic link that leads to itself: choose another path")
    return place


def exists_already(path: Path) -> OutputExistsError:
    """The error where an output is there already and may not be replaced."""
    return OutputExistsError(f"{path} exists; give --force to replace it, or choose another path")


def make_directory(place: Path, path: Path) -> None:
    """A new directory, and those above it.

    Args:
        place: the directory.
        path: what people know it by.

    Raises:
        FileExistsError: it is there.
        WriteError: it cannot be made.
    """
    if not os.path.isdir(_nearest_above(place)):
        raise _cannot_write(path, _why_not_made(place))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir()
    except FileExistsError:
        raise
    except FileNotFoundError:
        raise _cannot_write(path, _why_not_made(place)) from None
    except OSError as error:
        raise write_error(error, path) from error


def _nearest_above(place: Path) -> Path:
    """The nearest folder above that is there, or what is in the place of one."""
    return next((p for p in place.parents if os.path.lexists(p)), Path())


def _why_not_made(place: Path) -> str:
    """Why the operating system finds no directory in which something could be made."""
    above = _nearest_above(place)
    if not os.path.isdir(above):
        return f"{above} is not a directory: choose another path"
    return f"nothing can be made in {above}: write elsewhere"


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
        OutputExistsError: it is there and ``force`` was not given, or it is no file (a directory, a device, …).
        WriteError: its directory does not exist, or its name is too long.
    """
    with writing(path):
        if path.is_dir():
            raise OutputExistsError(f"{path} is a directory; name a file")
        if path.exists() and not path.is_file():
            raise OutputExistsError(f"{path} is a device, a pipe or a socket; name a file")
        if path.exists() and not force:
            raise exists_already(path)
        place = followed(path)
        if not os.path.isdir(_nearest_above(place)):
            raise _cannot_write(path, _why_not_made(place))
        if not place.parent.is_dir():
            raise WriteError(
                f"cannot write {path}: there is no directory {place.parent}; create it"
            )


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
def directory_beside(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A new directory beside ``path`` that takes its place when the block ends well.

    What processes that were killed left beside it is removed first.

    Args:
        path: where; of a symbolic link what it leads to is written. An empty directory is no obstacle.
        force: replace a directory that is there, also one that has come meanwhile.

    Raises:
        OutputExistsError: something is there and ``force`` was not given.
        WriteError: it could not be written; ``path`` is as before then.
    """
    place = followed(path)
    beside, old = _beside(place, "tmp"), _beside(place, "old")
    remove_abandoned(place)
    try:
        with undone(partial(_put_back, place, old, beside)), writing(path):
            make_directory(beside, path)
            yield beside
            if force:
                _replace_directory(beside, place, old)
            else:
                _place_new_directory(beside, place, path)
            sync(place.parent)
    except WriteError as error:
        if not Path(error.path).is_relative_to(beside):
            raise
        # for a person it is what takes its place that could not be written
        raise _cannot_write(path, error.reason) from error


_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""What renaming a directory fails with where something is that may not be replaced."""


def _place_new_directory(beside: Path, place: Path, path: Path) -> None:
    try:
        beside.rename(place)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        raise exists_already(path) from None


def _replace_directory(beside: Path, place: Path, old: Path) -> None:
    """Put ``beside`` in the place of what is there; again where another process has put its own there meanwhile."""
    while True:
        with suppress(FileNotFoundError):
            place.rename(old)
        try:
            beside.rename(place)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            return


def move_away(place: Path) -> None:
    """Remove a directory, whole at once for whoever looks; that another process has done so already is fine."""
    old = _beside(place, "old")
    with undone(partial(shutil.rmtree, old, ignore_errors=True)), suppress(FileNotFoundError):
        place.rename(old)


def _put_back(path: Path, old: Path, beside: Path) -> None:
    """Let nothing but ``path`` be left: the new directory if it is in its place, else the old one, unless another has come."""
    if beside.exists() and old.exists():
        try:
            old.rename(path)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
    shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
