"""Which sources did the user name? Files, directories, globs, archives; nothing but regular files is ever opened."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.archives import Members, archive_kind, members
from trnprof.tracer.ingest.audit import Audit, Finding
from trnprof.tracer.ingest.bytestreams import DEFAULT_MAX_BYTES, FileBytes, compression, first_bytes
from trnprof.tracer.ingest.names import in_order, natural_key, shown
from trnprof.tracer.ingest.place import Place, directory_source, head_bytes, reading, source_of
from trnprof.tracer.ingest.source import Head, Source
from trnprof.tracer.manifest import is_trace
from trnprof.tracer.nearest import nearest
from trnprof.tracer.units import format_bytes

MAX_FILES: Final = 100_000
MAX_HEAD_FILES: Final = 10_000
TABLE_ENDINGS: Final = (".parquet", ".arrow", ".arrows", ".feather")
"""Files that belong to their directory where a format claims it; what else lies there is looked at on its own."""

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Found:
    """What the user named.

    Attributes:
        sources: in the order of their ranks, as far as names tell it.
        named: labels of the sources that the user named one by one.
        findings: what was left out, and why.
    """

    sources: tuple[Source, ...]
    named: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()


@dataclass
class _Search:
    """What is kept while paths are followed."""

    workspace: Path
    max_bytes: int
    claims: Callable[[Head], bool]
    audit: Audit = field(default_factory=Audit)
    sources: list[Source] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def is_new(self, found: os.stat_result) -> bool:
        """Whether this file or directory comes for the first time, by whatever name."""
        key = (found.st_dev, found.st_ino)
        is_new = key not in self.seen
        self.seen.add(key)
        return is_new

    def add(self, source: Source, *, is_named: bool) -> None:
        """Take a source."""
        if len(self.sources) >= MAX_FILES:
            raise ProfileError(
                f"{source.label}: more than {MAX_FILES} files; name the directory of the profiles"
            )
        label, count = source.label, 1
        while label in self.labels:
            count += 1
            label = f"{source.label} ({count})"
        self.labels.add(label)
        self.sources.append(replace(source, label=label))
        if is_named:
            self.named.add(label)


def find_sources(
    paths: Sequence[str | os.PathLike[str]],
    *,
    workspace: Path,
    max_bytes: int = DEFAULT_MAX_BYTES,
    claims: Callable[[Head], bool] = lambda _head: False,
) -> Found:
    """Everything that paths name.

    Directories are walked, following links, without hidden files and traces; a file that is reached twice counts once.

    Args:
        paths: files, directories, globs.
        workspace: an existing directory for temporary files (a compressed tar is unpacked there).
        max_bytes: what all sources may have together, as far as it is known now, and each when decompressed.
        claims: whether a directory with these files is one profile as a whole.

    Raises:
        ProfileError: a path is not there or cannot be read, is no file, or there is too much.
        WriteError: the workspace is full.
    """
    search = _Search(workspace, max_bytes, claims)
    for path in in_order([p for name in paths for p in _expanded(Path(name))]):
        label = shown(path)
        found = _stat(path)
        if stat.S_ISDIR(found.st_mode):
            _check_no_trace(path)
            if search.is_new(found):
                _walk(search, path)
        elif not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
            raise ProfileError(f"{label} is {kind}; write the profile to a file first")
        elif search.is_new(found):
            _add_file(search, path, found, is_named=True)
    total = sum(source.size_bytes for source in search.sources)
    if total > max_bytes:
        raise ProfileError(
            f"the profiles have {format_bytes(total)}, more than {format_bytes(max_bytes)}; "
            "if that is right, allow more with --max-input-bytes"
        )
    return Found(tuple(search.sources), frozenset(search.named), tuple(search.audit.findings))


def _expanded(path: Path) -> list[Path]:
    """The paths that a glob matches which no shell has expanded; else the path itself."""
    text = str(path)
    if not glob.has_magic(text) or os.path.lexists(path):
        return [path]
    matches = sorted(glob.glob(text, recursive=True), key=natural_key)
    if not matches:
        raise ProfileError(f"{shown(path)}: no file matches")
    return [Path(match) for match in matches]


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        if _is_link(path):
            target = shown(os.readlink(path))
            raise ProfileError(f"{shown(path)}: a link to {target}, which is not there") from error
        if isinstance(error, FileNotFoundError):
            raise ProfileError(
                f"no such profile: {shown(path)}{_similar(path.parent, path.name)}"
            ) from error
        raise ProfileError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the path
        raise ProfileError(f"no such profile: {shown(path)}") from error


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:  # a name that is too long, before Python 3.12
        return False


def _similar(folder: Path, name: str) -> str:
    try:
        names = os.listdir(folder)[:MAX_HEAD_FILES]
    except OSError:
        return ""
    near = nearest(name, names)
    return f"; did you mean {shown(folder / near)}?" if near else ""


def _check_no_trace(path: Path) -> None:
    if is_trace(path):
        raise ProfileError(
            f"{shown(path)} is a trace of trnprof already; read it with trnprof report, info or view"
        )


def _walk(search: _Search, root: Path) -> None:
    """All profiles below a directory: its own files first, then its directories, each in the order of their numbers."""
    pending = [root]
    visited = 0
    while pending:
        folder = pending.pop()
        files, folders, seen = _entries(search, root, folder)
        visited += seen
        if visited > MAX_FILES:
            raise ProfileError(
                f"{shown(root)}: more than {MAX_FILES} files; name the directory of the profiles"
            )
        pending += reversed(folders)
        tables = _claimed(search, folder, files)
        for path, found in files:
            if path.name not in tables and search.is_new(found):
                _add_file(search, path, found, is_named=False, root=root)


def _claimed(
    search: _Search, folder: Path, files: Sequence[tuple[Path, os.stat_result]]
) -> set[str]:
    """Names of the files that are one profile together, which is taken as such; empty if none are."""
    if not files:
        return set()
    head, source = _as_whole(folder, files)
    if not search.claims(head):
        return set()
    search.add(source, is_named=False)
    tables = _tables([path.name for path, _ in files])
    for path, found in files:
        if path.name in tables:
            search.is_new(found)
    return tables


def table_directory(folder: Path) -> tuple[Head, Source]:
    """A directory as one profile: what formats may see of it, and its source.

    Raises:
        ProfileError: it cannot be read.
    """
    with reading(shown(folder)):
        files = [
            (path, path.stat())
            for path in sorted(folder.iterdir(), key=lambda p: natural_key(p.name))
            if path.is_file() and not path.name.startswith(".")
        ]
    return _as_whole(folder, files)


def _as_whole(folder: Path, files: Sequence[tuple[Path, os.stat_result]]) -> tuple[Head, Source]:
    names = sorted(path.name for path, _ in files)
    tables = _tables(names)
    size_bytes = sum(found.st_size for path, found in files if path.name in tables)
    head = Head("", b"", tuple(names[:MAX_HEAD_FILES]))
    return head, directory_source(shown(folder), folder, size_bytes)


def _tables(names: Sequence[str]) -> set[str]:
    return {name for name in names if name.lower().endswith(TABLE_ENDINGS)} or set(names)


def _entries(
    search: _Search, root: Path, folder: Path
) -> tuple[list[tuple[Path, os.stat_result]], list[Path], int]:
    """The regular files and the directories in a directory, and how many entries it has."""
    files, folders = [], []
    try:
        names = sorted(os.listdir(folder), key=natural_key)
    except OSError as error:
        if folder == root:
            raise ProfileError(
                f"{shown(root)}: cannot be read: {error.strerror or error}"
            ) from error
        _leave_out(search, root, folder, "unreadable", error.strerror or str(error))
        return [], [], 0
    for name in names:
        path = folder / name
        if name.startswith("."):
            continue
        try:
            found = path.stat()
        except OSError as error:
            why = "a link to nothing" if path.is_symlink() else error.strerror or str(error)
            _leave_out(search, root, path, "unreadable", why)
            continue
        if stat.S_ISDIR(found.st_mode):
            if not is_trace(path) and search.is_new(found):
                folders.append(path)
        elif stat.S_ISREG(found.st_mode):
            files.append((path, found))
        else:
            why = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
            _leave_out(search, root, path, "not_a_file", why)
    return files, folders, len(names)


def _leave_out(search: _Search, root: Path, path: Path, kind: str, why: str) -> None:
    is_lost = kind == "unreadable"
    search.audit.add(
        kind,
        "warning" if is_lost else "note",
        shown(root),
        "files that cannot be read are left out"
        if is_lost
        else "pipes, sockets and devices are left out",
        unreliable="whatever they hold is missing" if is_lost else "",
        example=f"{shown(path)}: {why}",
    )


def _add_file(
    search: _Search, path: Path, found: os.stat_result, *, is_named: bool, root: Path | None = None
) -> None:
    """Take a file, or what is in it if it is an archive; one in a directory that cannot be opened is only told."""
    place = Place(shown(path), path, search.workspace, search.max_bytes)
    try:
        with reading(place.label):
            is_compressed = compression(first_bytes(lambda: FileBytes(path), 8)) is not None
        start = head_bytes(place)
    except ProfileError as error:
        if root is None:
            raise
        _leave_out(search, root, path, "unreadable", _without(place.label, error))
        return
    kind = archive_kind(start)
    if kind is None:
        search.add(source_of(place, found.st_size), is_named=is_named)
        return
    try:
        listed = members(place, kind, is_compressed=is_compressed)
    except ProfileError as error:
        if root is None:
            raise
        _leave_out(search, root, path, "unreadable", _without(place.label, error))
        return
    _add_members(search, place.label, listed)


def _add_members(search: _Search, label: str, listed: Members) -> None:
    if listed.cut:
        message = f"the archive is not whole: {listed.cut}; what can be read of it is"
        search.audit.add("truncated", "error", label, message, unreliable="members may be missing")
    for name, why in listed.left_out:
        search.audit.add(
            "unreadable_members",
            "warning",
            label,
            "members that cannot be read are left out",
            unreliable="whatever they hold is missing",
            example=f"{shown(name)}: {why}",
        )
    for member, size in listed.places:
        if _is_archive(member):
            message = "archives in an archive are not followed; unpack them first"
            search.audit.add("nested_archive", "warning", label, message, example=member.label)
        else:
            search.add(source_of(member, size), is_named=False)


def _is_archive(member: Place) -> bool:
    try:
        return archive_kind(head_bytes(member)) is not None
    except ProfileError:
        return False  # told when its format is looked for


def _without(label: str, error: ProfileError) -> str:
    return str(error).removeprefix(f"{label}: ")
