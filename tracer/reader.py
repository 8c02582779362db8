"""What does a trace directory hold? Joins the parts of all writers, sealed or not, into one view."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from trnprof.tracer.errors import TraceError
from trnprof.tracer.lookup import rows_of_events
from trnprof.tracer.manifest import FRAGMENTS, is_trace, read_fragments, read_manifest
from trnprof.tracer.nearest import nearest
from trnprof.tracer.problems import Problem, warning
from trnprof.tracer.remote import Remote, fetched, url_of
from trnprof.tracer.replicas import expanded
from trnprof.tracer.schema import STREAMED, TABLES
from trnprof.tracer.shards import (
    Bases,
    Shard,
    empty_frame,
    open_file,
    rebased,
    shard_number,
    writer_files,
)

_ON_A_CLOCK = ("tracks", "steps")
"""Tables whose rows name a clock of their writer."""
_IN_MEMORY = ("tracks", "groups", "steps")


@dataclass(frozen=True)
class Trace:
    """A trace, opened. Small tables are in memory, the others (``ops`` too: an import has millions of rows) lazy.

    Attributes:
        path: the directory.
        manifest: the coordinator's ``manifest.json``, ``{}`` when it is missing.
        fragments: one a writer in order of number, with the ``track_base``, ``op_base`` and ``group_base`` that were added.
        events: columns of ``schema.EVENTS``, dictionary columns as ``pl.Categorical``, ids rebased; so for the others.
        problems: what was met while opening.
        shards: the files, each with its rows.
        url: of the store that it was read from; "" where it was a directory.
    """

    path: Path
    manifest: Mapping[str, Any]
    fragments: tuple[Mapping[str, Any], ...]
    events: pl.LazyFrame
    tracks: pl.DataFrame
    ops: pl.LazyFrame
    groups: pl.DataFrame
    steps: pl.DataFrame
    peaks: pl.DataFrame
    flows: pl.LazyFrame
    counters: pl.LazyFrame
    problems: tuple[Problem, ...] = ()
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    url: str = ""

    @property
    def system(self) -> Mapping[str, Any]:
        """The machine, as the manifest describes it; ``{}`` if nothing does."""
        return self.manifest.get("system") or {}

    @property
    def name(self) -> str:
        """What a person opens it by: its URL, else its directory."""
        return self.url or str(self.path)

    @property
    def is_simulation(self) -> bool:
        """Whether the device events come from the emulator."""
        return bool(self.manifest.get("is_simulation", False))

    @cached_property
    def survey(self) -> pl.DataFrame:
        """What lies on each track (``survey.survey``): read once."""
        from trnprof.tracer.survey import survey  # here: it imports Trace

        return survey(self)

    def surveyed(self, mapper: Callable[..., Iterator[pl.DataFrame]]) -> Self:
        """The same trace with its survey made by what runs a function over pieces elsewhere (``analysis.mapping``)."""
        from trnprof.tracer.survey import survey  # here: it imports Trace

        again = replace(self)
        again.__dict__["survey"] = survey(self, mapper)
        return again

    def validate(self) -> list[Problem]:
        """Everything that is wrong with the trace: what opening met, and what reading every row finds."""
        from trnprof.tracer.validate import validate  # here: it imports Trace

        return validate(self)


def open_trace(path: str | os.PathLike[str], *, expand: bool = False) -> Trace:
    """Open a trace directory, whole or not.

    Sealed shards are only mapped: opening does not read their rows. Of a recording that was killed, the whole batches are
    read; what was lost is told in ``problems``.

    Args:
        path: the directory, or the URL of one in a store (``remote``).
        expand: have rows for every rank, those of folded ones being repeated (see ``replicas.expanded``). Analyzers weigh instead.

    Raises:
        TraceError: there is no trace, a fragment or the manifest is malformed, or it has a schema version that is not read.
    """
    url = url_of(path)
    remote = None if url is None else fetched(url)
    root = Path(path) if remote is None else remote.root
    if remote is not None and not is_trace(root):
        raise TraceError(f"{url} is not a trace: it has no {FRAGMENTS}/")
    _check_is_trace(root)
    manifest = read_manifest(root)
    fragments, empty = read_fragments(root)
    if not fragments and not empty and not manifest:
        raise TraceError(f"{root} is an empty trace: no writer has started in it")
    problems = [
        warning("unsealed", str(file), f"writer {file.stem} was stopped before it wrote anything")
        for file in empty
    ]
    problems += _manifest_problems(root, manifest, fragments)
    shards: list[Shard] = []
    tables: dict[str, list[pl.DataFrame]] = {t: [] for t in _IN_MEMORY}
    joined: list[Mapping[str, Any]] = []
    bases, clocks = Bases(), dict[int, Mapping[str, Any]]()
    for fragment in fragments:
        parts, found = _open_writer(root, fragment, bases, remote)
        problems += found
        shards += parts
        small = {t: _collect([s for s in parts if s.table == t], t) for t in tables}
        renamed, own_clocks = _joined_clocks(fragment["clocks"], clocks)
        for table in _ON_A_CLOCK if renamed else ():
            small[table] = small[table].with_columns(pl.col("clock_id").replace(renamed))
        for table, frame in small.items():
            tables[table].append(frame)
        own = {"track_base": bases.track, "op_base": bases.op, "group_base": bases.group}
        joined.append({**fragment, **own, "clocks": own_clocks})
        bases = _next_bases(bases, {**small, "ops": _lazy(parts, "ops")})
    peaks, found = _open_peaks(root)
    problems += found
    small_frames = {t: _stack([f for f in frames if f.height], t) for t, frames in tables.items()}
    trace = Trace(
        path=root,
        url=url or "",
        manifest=manifest,
        fragments=tuple(joined),
        events=_lazy(shards, "events"),
        ops=_lazy(shards, "ops"),
        flows=_lazy(shards, "flows"),
        counters=_lazy(shards, "counters"),
        peaks=peaks,
        problems=tuple(problems),
        shards=tuple(s for s in shards if s.table in STREAMED),
        **small_frames,
    )
    return expanded(trace) if expand else trace


def locate_events(trace: Trace, event_ids: ArrayLike) -> pl.DataFrame:
    """The rows of given events, in order of id.

    Args:
        trace: where they are.
        event_ids: ids, any order, repeated or not; null is not allowed.

    Returns:
        Rows with the columns of ``trace.events``, one an id that exists. In a sealed shard they are gathered through its rows
        index, without reading other rows.
    """
    ids = np.unique(np.asarray(event_ids, dtype=np.uint64))
    parts = [s for s in trace.shards if s.table == "events"]
    if not parts:
        wanted = pl.Series("event_id", ids, pl.UInt64)
        return (
            trace.events.filter(pl.col("event_id").is_in(wanted.implode()))
            .sort("event_id")
            .collect()
        )
    found = list(rows_of_events(parts, ids))
    return pl.concat([empty_frame(TABLES["events"]), *found]).sort("event_id")


def _check_is_trace(root: Path) -> None:
    if not root.exists():
        raise TraceError(f"no such trace: {root}{_suggestion(root)}")
    if not root.is_dir():
        raise TraceError(
            f"{root} is a file, not a trace: a trace is a directory NAME.trnprof (an exported profile must be imported first)"
        )
    if is_trace(root):
        return
    if not any(root.iterdir()):
        raise TraceError(f"{root} is not a trace: the directory is empty")
    inner = sorted(p.name for p in root.iterdir() if p.is_dir() and is_trace(p))
    hint = f"; did you mean {root / inner[0]}?" if inner else ""
    raise TraceError(f"{root} is not a trace: it has no {FRAGMENTS}/{hint}")


def _suggestion(root: Path) -> str:
    parent = root.parent
    names = sorted(p.name for p in parent.glob("*.trnprof")) if parent.is_dir() else []
    near = nearest(root.name, names, 0.3) or nearest(f"{root.name}.trnprof", names, 0.3)
    return f"; did you mean {parent / (near or names[0])}?" if names else ""


def _manifest_problems(
    root: Path, manifest: Mapping[str, Any], fragments: Sequence[Mapping[str, Any]]
) -> Iterator[Problem]:
    if not manifest:
        message = "manifest.json is missing: the recording was stopped before its end; the machine is unknown"
        yield warning("no_manifest", str(root), message)
    present = {f["writer"] for f in fragments}
    for name in manifest.get("fragments", ()):
        if name not in present:
            message = f"manifest.json names writer {name}, but its fragment is missing: its rows are left out"
            yield Problem("error", "missing_fragment", f"{FRAGMENTS}/{name}.json", message)
    for fragment in fragments:
        if not fragment["sealed"]:
            message = f"writer {fragment['writer']} was not sealed: it still runs or was killed; rows after its last flush are missing"
            yield warning("unsealed", f"{FRAGMENTS}/{fragment['writer']}.json", message)


def _open_writer(
    root: Path, fragment: Mapping[str, Any], bases: Bases, remote: Remote | None
) -> tuple[list[Shard], list[Problem]]:
    shards, problems = [], []
    for table, path, entry in writer_files(root, fragment):
        if remote is not None and entry is not None and remote.is_left(path):
            frame, is_mapped = remote.frame(table, path), False
        else:
            frame, is_mapped, found = open_file(TABLES[table], path, entry)
            problems += found
        number = shard_number(fragment, table, path)
        rows = rebased(table, frame, bases)
        shards.append(Shard(table, path, fragment["writer"], number, entry, bases, rows, is_mapped))
    return shards, problems


def _joined_clocks(
    own: Sequence[Mapping[str, Any]], known: dict[int, Mapping[str, Any]]
) -> tuple[dict[int, int], list[Mapping[str, Any]]]:
    """Give a clock id that an earlier writer uses for another clock the next free number: the changes, the clocks."""
    renamed: dict[int, int] = {}
    clocks: list[Mapping[str, Any]] = []
    for clock in own:
        wanted = clock["clock_id"]
        meaning = {k: v for k, v in clock.items() if k != "clock_id"}
        if wanted in known and known[wanted] != meaning:
            renamed[wanted] = max([*known, *(c["clock_id"] for c in own)]) + 1
        known[renamed.get(wanted, wanted)] = meaning
        clocks.append({**clock, "clock_id": renamed.get(wanted, wanted)})
    return renamed, clocks


def _next_bases(bases: Bases, tables: Mapping[str, pl.DataFrame | pl.LazyFrame]) -> Bases:
    def after(table: str, column: str, base: int) -> int:
        last = tables[table].lazy().select(pl.col(column).max()).collect().item()
        return base if last is None else int(last) + 1

    return Bases(
        after("tracks", "track_id", bases.track),
        after("ops", "op_id", bases.op),
        after("groups", "group_id", bases.group),
    )


def _open_peaks(root: Path) -> tuple[pl.DataFrame, list[Problem]]:
    path = root / "peaks.arrow"
    if not path.is_file():
        return empty_frame(TABLES["peaks"]), []
    entry = {"bytes": path.stat().st_size, "rows": 0}
    frame, _, problems = open_file(TABLES["peaks"], path, entry)
    return frame.collect(), problems


def _collect(shards: Sequence[Shard], table: str) -> pl.DataFrame:
    return _stack([s.frame.collect() for s in shards], table)


def _stack(frames: Sequence[pl.DataFrame], table: str) -> pl.DataFrame:
    return pl.concat([empty_frame(TABLES[table]), *frames])


def _lazy(shards: Sequence[Shard], table: str) -> pl.LazyFrame:
    """All rows of a table that is not held in memory; neighbouring mapped shards of one writer are one scan."""
    frames: list[pl.LazyFrame] = []
    mapped: list[Shard] = []
    for shard in [s for s in shards if s.table == table]:
        if mapped and (not shard.is_mapped or shard.writer != mapped[0].writer):
            frames.append(_scan(mapped))
            mapped = []
        if shard.is_mapped:
            mapped.append(shard)
        else:
            frames.append(shard.frame)
    if mapped:
        frames.append(_scan(mapped))
    return pl.concat(frames) if frames else empty_frame(TABLES[table]).lazy()


def _scan(shards: Sequence[Shard]) -> pl.LazyFrame:
    scan = pl.scan_ipc([s.path for s in shards], glob=False)
    return rebased(shards[0].table, scan, shards[0].bases)
