"""How is a trace made small for an archive, reading the same?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.tracer.files import directory_beside, sync
from trnprof.tracer.manifest import MANIFEST, check_replaceable, read_fragments
from trnprof.tracer.reader import open_trace
from trnprof.tracer.seal import write_sealed
from trnprof.tracer.transfer import Destination, transfer_writer

_PEAKS = "peaks.arrow"
_OTHER = (MANIFEST, "workload.arrow")


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
        TraceError: ``path`` is not a readable trace.
        OutputExistsError: ``out`` exists and ``force`` was not given.
        WriteError: it could not be written; everything is as before then.
    """
    source = open_trace(path).path
    target = source if out is None else Path(out)
    check_replaceable(target, force=force or out is None)
    with directory_beside(target) as root:
        for fragment in read_fragments(source)[0]:
            transfer_writer(source, fragment, Destination(root, fragment["writer"], {}, "zstd"))
        if (source / _PEAKS).exists():
            with pa.memory_map(str(source / _PEAKS)) as file:
                peaks = ipc.open_file(file).read_all()
            write_sealed(root / _PEAKS, peaks.schema, peaks.to_batches(), "zstd")
        for name in _OTHER:
            if (source / name).exists():
                shutil.copyfile(source / name, root / name)
                sync(root / name)
    return target
