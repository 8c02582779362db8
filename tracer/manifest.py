"""Who writes into a trace directory, under which number, and what does each say about its files?

``manifest.d/<writer>.json`` is a writer's fragment, ``manifest.d/.number-<n>`` its claim on number n. Both are created with
O_EXCL, which is atomic between processes and hosts: whoever creates the claim owns the number, and with it the shards
``n << 12`` up to ``(n + 1) << 12``. A claim is never given back while the directory lives, except by a writer whose name turns
out to be taken.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trnprof.tracer.errors import OutputExistsError, TraceError, WriteError
from trnprof.tracer.files import (
    directory_beside,
    exists_already,
    followed,
    make_directory,
    move_away,
    write_json,
    writing,
)
from trnprof.tracer.schema import SCHEMA_VERSION, SHARD_BITS, STREAMED, WRITER_SHARD_BITS
from trnprof.tracer.version import __version__
from trnprof.tracer.whole_files import read_whole

FRAGMENTS: Final = "manifest.d"
MANIFEST: Final = "manifest.json"
MAX_WRITERS: Final = 1 << (SHARD_BITS - WRITER_SHARD_BITS)
READ_VERSIONS: Final = tuple(v for v in (SCHEMA_VERSION - 1, SCHEMA_VERSION) if v >= 1)
"""Schema versions a reader accepts: the one written and the one before."""

_WRITER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_CLAIM: Final = ".number-"


@dataclass(frozen=True)
class Clock:
    """A clock that the times of some tracks are on.

    Attributes:
        clock_id: what ``tracks.clock_id`` refers to.
        kind: ``device`` or ``host``.
        epoch_unix_ns: Unix time of its zero, if anybody knows it.
    """

    clock_id: int
    kind: str
    epoch_unix_ns: int | None = None


def create_trace_directory(path: str | os.PathLike[str], *, force: bool) -> Path:
    """An empty trace directory at ``path``.

    Args:
        path: where; parents are created, and a symbolic link is followed.
        force: replace what is there, if it is a trace; anything else but an empty directory is never removed.

    Raises:
        OutputExistsError: something is there and ``force`` was not given, or it is not a trace; or another process makes it
            at the same time.
        WriteError: it cannot be created.
    """
    target = Path(path)
    try:
        str(target).encode("utf-8")
    except UnicodeEncodeError:
        raise WriteError(f"{str(target)!a} is not valid UTF-8; choose another name") from None
    check_replaceable(target, force=force)
    place = followed(target)
    with writing(target):
        if force and is_trace(place):
            move_away(place)
        try:
            make_directory(place / FRAGMENTS, target)
        except FileExistsError:
            raise _taken(target, force=force) from None
    return target


def _taken(target: Path, *, force: bool) -> OutputExistsError:
    """The error where another process has made the same trace meanwhile."""
    if not force:
        return exists_already(target)
    return OutputExistsError(f"{target}: another process writes it too; choose another path")


@contextmanager
def trace_beside(path: Path, *, force: bool) -> Iterator[Path]:
    """A new directory beside ``path``, for a trace that takes its place when the block ends well.

    Args:
        path: where; parents are created, and a symbolic link is followed.
        force: replace what is there, if it is a trace; anything else but an empty directory is never removed.

    Raises:
        OutputExistsError: something is there, or has come meanwhile, and ``force`` was not given, or it is not a trace.
        WriteError: it could not be written; ``path`` is as before then.
    """
    check_replaceable(path, force=force)
    with directory_beside(path, force=force) as beside:
        yield beside
        check_replaceable(path, force=force)


def check_replaceable(target: Path, *, force: bool) -> None:
    """Refuse an output path at which something is that may not be replaced.

    Raises:
        OutputExistsError: as for ``create_trace_directory``.
        WriteError: its name is too long, or what is there cannot be looked at.
    """
    with writing(target):
        found = _found_at(target)
        if found == "nothing":
            return
        if found == "other":
            raise OutputExistsError(f"{target} exists and is not a trace; choose another path")
        if not force:
            raise exists_already(target)


def _found_at(target: Path) -> Literal["nothing", "trace", "other"]:
    """What is at an output path: nothing (or an empty directory), a trace, or something else.

    Other processes may replace a trace meanwhile: what was moved away while it was looked at is not what is there.
    """
    while target.exists():
        with suppress(FileNotFoundError):
            before = target.stat()
            if target.is_dir() and not any(target.iterdir()):
                return "nothing"
            if is_trace(target):
                return "trace"
            if os.path.samestat(before, target.stat()):
                return "other"
    return "nothing"


def is_trace(path: Path) -> bool:
    """Whether a directory holds a trace, whole or not."""
    return (path / FRAGMENTS).is_dir()


def claim(path: Path, writer: str, number: int | None = None) -> int:
    """Create the fragment of ``writer`` and claim a number: the one given, else $RANK if that is free, else the lowest free one.

    Raises:
        WriteError: the name is not usable as a file name or taken, every number is, or the directory is not writable.
    """
    if not _WRITER_NAME.fullmatch(writer):
        raise WriteError(
            f"writer name {writer!r}: use 1 to 100 letters, digits, '_', '-', '.', not starting with '-' or '.'"
        )
    directory = path / FRAGMENTS
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if number is None:
            number = _claim_number(directory)
        else:
            claim_exactly(path, writer, number)
        if not _create(directory / f"{writer}.json"):
            (directory / f"{_CLAIM}{number}").unlink(missing_ok=True)
            raise WriteError(
                f"{path}: a writer named {writer!r} is there already; use another writer name or another directory"
            )
    return number


def claim_exactly(path: Path, writer: str, number: int) -> None:
    """Take ``number`` for ``writer``, where somebody hands the numbers out.

    Raises:
        WriteError: it is taken, or the directory is not writable.
    """
    directory = path / FRAGMENTS
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if not _create(directory / f"{_CLAIM}{number}"):
            raise WriteError(f"{path}: number {number} of writer {writer!r} is taken")


def write_fragment(path: Path, fragment: Mapping[str, Any]) -> None:
    """Replace the fragment of ``fragment["writer"]`` atomically."""
    write_json(path / FRAGMENTS / f"{fragment['writer']}.json", fragment)


def new_fragment(
    writer: str, number: int, clocks: Sequence[Clock], command: Sequence[str] | None
) -> dict[str, Any]:
    """The fragment of a writer that has written nothing yet."""
    return {
        "schema": SCHEMA_VERSION,
        "tool_version": __version__,
        "writer": writer,
        "number": number,
        "command": list(command) if command is not None else None,
        "clocks": [
            {"clock_id": c.clock_id, "kind": c.kind, "epoch_unix_ns": c.epoch_unix_ns}
            for c in clocks
        ],
        "shards": [],
        "sealed": False,
        "warnings": [],
    }


def write_manifest(
    path: str | os.PathLike[str],
    *,
    is_simulation: bool = False,
    command: Sequence[str] | None = None,
    system: Mapping[str, Any] | None = None,
    emulation: Mapping[str, Any] | None = None,
    reproducible: bool = False,
    notes: Sequence[str] = (),
    **more: Any,
) -> None:
    """Write ``manifest.json``: the coordinator's last act.

    Args:
        path: the trace directory.
        is_simulation: whether the device events come from the emulator.
        command: what was recorded; left out when reproducible.
        system: description of the machine, in full.
        emulation: how it was emulated.
        reproducible: leave out what differs between two runs.
        notes: remarks for people.
        more: further keys, JSON-ready (seed, …).

    Raises:
        WriteError: it could not be written.
    """
    directory = Path(path)
    document = {
        "schema": SCHEMA_VERSION,
        "tool_version": __version__,
        "is_simulation": is_simulation,
        "command": list(command) if command is not None and not reproducible else None,
        "system": system,
        "emulation": emulation,
        "reproducible": reproducible,
        "fragments": sorted(p.stem for p in (directory / FRAGMENTS).glob("[!.]*.json")),
        "notes": list(notes),
    }
    write_json(directory / MANIFEST, document | more)


def read_manifest(path: Path) -> dict[str, Any]:
    """The coordinator's manifest, ``{}`` if there is none.

    Raises:
        TraceError: malformed, or of a schema version that is not read.
    """
    file = path / MANIFEST
    if not file.exists():
        return {}
    document = _read_json(file, "manifest")
    expected: dict[str, type | tuple[type, ...]] = {
        "is_simulation": bool,
        "fragments": list,
        "notes": list,
        "system": (dict, type(None)),
        "emulation": (dict, type(None)),
    }
    for key, type_ in expected.items():
        if key in document and not isinstance(document[key], type_):
            raise TraceError(
                f"{file}: malformed manifest: {key!r} has a value of the wrong type; restore the file from a copy"
            )
    return document


def read_fragments(path: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Every writer's fragment in order of number, and the files that are still empty.

    An empty fragment is a writer that was stopped before it wrote anything.

    Raises:
        TraceError: a fragment is malformed or of a schema version that is not read.
    """
    fragments, empty = [], []
    for file in sorted((path / FRAGMENTS).glob("*.json")):
        if file.name.startswith("."):
            continue
        if not file.stat().st_size:
            empty.append(file)
            continue
        fragments.append(_check_fragment(file, _read_json(file, "fragment")))
    fragments.sort(key=lambda f: (f["number"], f["writer"]))
    return fragments, empty


def _check_fragment(file: Path, fragment: dict[str, Any]) -> dict[str, Any]:
    expected: dict[str, type] = {
        "writer": str,
        "number": int,
        "clocks": list,
        "shards": list,
        "sealed": bool,
        "warnings": list,
    }
    for key, type_ in expected.items():
        if not isinstance(fragment.get(key), type_):
            raise TraceError(
                f"{file}: malformed fragment: {key!r} is missing or not a {type_.__name__}; restore the file from a copy"
            )
    if fragment["writer"] != file.stem:
        raise TraceError(
            f"{file}: malformed fragment: it is of writer {fragment['writer']!r}; restore the file from a copy"
        )
    if not 0 <= fragment["number"] < MAX_WRITERS:
        raise TraceError(
            f"{file}: malformed fragment: number {fragment['number']} is not within 0..{MAX_WRITERS - 1}; restore the file from a copy"
        )
    if not all(
        isinstance(c, dict) and isinstance(c.get("clock_id"), int) for c in fragment["clocks"]
    ):
        raise TraceError(
            f"{file}: malformed fragment: a clock lacks clock_id; restore the file from a copy"
        )
    for index, shard in enumerate(fragment["shards"]):
        if not _is_shard(shard, fragment["writer"]):
            raise TraceError(
                f"{file}: malformed fragment: shards[{index}] lacks or distorts table, file, rows or bytes; restore the file from a copy"
            )
    return fragment


def _is_shard(shard: Any, writer: str) -> bool:
    """Whether an entry has what readers rely on, and names only files of its writer (a trace may come from anywhere)."""
    if not isinstance(shard, dict) or not isinstance(shard.get("table"), str):
        return False
    counts = [shard.get("rows"), shard.get("bytes")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return False
    table = shard["table"]
    ordinal = r"-\d+" if table in STREAMED else ""
    stem = re.escape(f"{table}/{writer}") + ordinal
    suffixes = {"file": "", "rows_index": r"\.rows", "tracks_index": r"\.tracks"}
    return all(
        isinstance(shard.get(key), str) and re.fullmatch(rf"{stem}{suffix}\.arrow", shard[key])
        for key, suffix in suffixes.items()
        if key == "file" or shard.get(key) is not None
    )


def _read_json(file: Path, what: str) -> dict[str, Any]:
    try:
        document = json.loads(read_whole(file).decode("utf-8"))
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{file}: malformed {what}: {error.msg} at line {error.lineno} column {error.colno}; restore the file from a copy"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{file}: malformed {what}: not UTF-8 at byte {error.start}; restore the file from a copy"
        ) from error
    except RecursionError as error:
        raise TraceError(
            f"{file}: malformed {what}: nested too deep; restore the file from a copy"
        ) from error
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror or error}") from error
    if not isinstance(document, dict):
        raise TraceError(
            f"{file}: malformed {what}: not a JSON object; restore the file from a copy"
        )
    version = document.get("schema")
    if version not in READ_VERSIONS:
        raise TraceError(
            f"{file}: trace schema {version!r}, but trnprof {__version__} reads "
            f"{' and '.join(map(str, READ_VERSIONS))}; use the trnprof version that wrote it"
            f" ({document.get('tool_version', 'unknown')})"
        )
    return document


def _claim_number(directory: Path) -> int:
    rank = os.environ.get("RANK", "")
    wanted = int(rank) if rank.isdecimal() and int(rank) < MAX_WRITERS else None
    if wanted is not None and _create(directory / f"{_CLAIM}{wanted}"):
        return wanted
    for number in range(MAX_WRITERS):
        if _create(directory / f"{_CLAIM}{number}"):
            return number
    raise WriteError(
        f"{directory}: all {MAX_WRITERS} writer numbers are taken; use another directory"
    )


def _create(file: Path) -> bool:
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True
