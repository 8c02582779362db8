"""How is one source read into a stage, and what is said of how it ended?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from trnprof.tracer.batches import ColumnError
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.checks import audit_stage
from trnprof.tracer.ingest.pool import told
from trnprof.tracer.ingest.source import ByteStream, Format, Source
from trnprof.tracer.ingest.stage import Stage


@dataclass(frozen=True)
class ReadSource:
    """A source that was read.

    Attributes:
        format: name of its format.
        stage: what it brought; closed.
    """

    format: str
    stage: Stage


def read_source(
    source: Source, format: Format, directory: Path, index: int
) -> ReadSource | ProfileError:
    """Read one source.

    Args:
        source: the source.
        format: its format.
        directory: where the stage lies; must not exist.
        index: number of the source, for the progress.

    Returns:
        What it brought, or why nothing of it can be used.
    """
    streams: list[_Counted] = []
    try:
        with Stage(directory, source.label) as stage:

            def counted() -> ByteStream:
                streams.append(_Counted(source.open(), index, stage))
                return streams[-1]

            format.read(replace(source, open=counted), stage)
        for stream in streams:
            if stream.truncated and not stage.audit.has("truncated"):
                stage.audit.add(
                    "truncated",
                    "error",
                    source.label,
                    f"the file ends early ({stream.truncated}): what came before it was kept",
                    unreliable="totals, and everything after the cut",
                )
        for trailing in {stream.trailing for stream in streams} - {None}:
            stage.audit.add("trailing_data", "warning", source.label, f"{trailing} and was ignored")
        if not (stage.rows or stage.first_counter_ns is not None or stage.facts.metrics):
            _tell_empty(stage)
        audit_stage(stage)
    except ProfileError as error:
        return error
    except (ColumnError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        return ProfileError(
            f"{source.label}: its columns are not those of {format.name} ({reason}); record or export it anew"
        )
    finally:
        for stream in streams:
            stream.close()
    return ReadSource(format.name, stage)


def _tell_empty(stage: Stage) -> None:
    if not stage.audit.has("no_events"):
        message = "the profile has no events, counters or figures"
        stage.audit.add("no_events", "warning", stage.label, message, unreliable="everything")


@dataclass
class _Counted:
    """A stream that tells how far the reading is."""

    inner: ByteStream
    index: int
    stage: Stage
    truncated: str | None = field(init=False, default=None)
    trailing: str | None = field(init=False, default=None)
    position: int = field(init=False, default=0)

    def read(self, size: int) -> bytes:
        """See ``ByteStream``."""
        data = self.inner.read(size)
        self.truncated, self.position = self.inner.truncated, self.inner.position
        self.trailing = getattr(self.inner, "trailing", None)
        told(self.index, self.position, self.stage.rows)
        return data

    def close(self) -> None:
        """See ``ByteStream``."""
        self.inner.close()
