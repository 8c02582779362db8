"""How is a trace made small for an archive, reading the same?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.tracer.errors import TraceError
from trnprof.tracer.files import sync, writing
from trnprof.tracer.manifest import FRAGMENTS, read_fragments, trace_beside
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.remote import url_of
from trnprof.tracer.schema import TABLES
from trnprof.tracer.seal import write_sealed
from trnprof.tracer.transfer import Destination, transfer_writer
from trnprof.tracer.validate import damaged_files

_PEAKS = "peaks.arrow"
_REWRITTEN = {FRAGMENTS, _PEAKS, *TABLES}
"""What is written anew; everything else (manifest, workload, files of other tools) is carried over."""


def compact(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, force: bool = False
) -> Path:
    """Rewrite a trace with zstd compression inside its files; a recording that was killed is sealed on the way.

    A compacted trace opens and reads the same, but its rows are decompressed instead of mapped.

    Args:
        path: the trace directory.
        out: where the small one goes; None replaces the trace itself, once the new one is whole.
        force: replace the trace that is at ``out``.

    Returns:
        Where the small one is.

    Raises:
        TraceError: ``path`` is not a readable trace, or the URL of one; or it would be replaced while a writer may still run, or with rows lost.
        OutputExistsError: ``out`` exists and ``force`` was not given.
        WriteError: it could not be written; everything is as before then.
    """
    if url_of(path) is not None:
        raise TraceError(f"{url_of(path)} lies in a store: copy it to a directory, compact that")
    trace = open_trace(path)
    source = trace.path
    target = source if out is None else Path(out)
    in_place = target.resolve() == source.resolve()
    if in_place:
        _check_may_replace(trace)
    with trace_beside(target, force=force or out is None) as root:
        for fragment in read_fragments(source)[0]:
            transfer_writer(source, fragment, Destination(root, fragment["writer"], {}, "zstd"))
        if (source / _PEAKS).is_file():
            with pa.memory_map(str(source / _PEAKS)) as file:
                peaks = ipc.open_file(file).read_all()
            write_sealed(root / _PEAKS, peaks.schema, peaks.to_batches(), "zstd")
        for item in sorted(source.iterdir()):
            if item.name not in _REWRITTEN:
                _carry_over(item, root / item.name)
    return target


def _check_may_replace(trace: Trace) -> None:
    """Refuse to replace a trace that somebody may still write, or that would lose what a repair could save."""
    unsealed = [p.message for p in trace.problems if p.kind == "unsealed"]
    if unsealed:
        raise TraceError(f"{trace.path}: {unsealed[0]}; give another output directory")
    damage = [
        p.message
        for p in (*trace.problems, *damaged_files(trace).values())
        if p.severity == "error"
    ]
    if damage:
        raise TraceError(
            f"{trace.path} is damaged ({damage[0]}); give another output directory to keep what can be read"
        )


def _carry_over(item: Path, target: Path) -> None:
    with writing(target):
        if item.is_dir():
            shutil.copytree(item, target)
        else:
            shutil.copyfile(item, target)
            sync(target)
