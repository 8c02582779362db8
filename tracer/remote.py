"""How is a trace read that lies in an object store? Its small files are copied here, shards when they are first read, wherever that is.

Any URL that fsspec knows: ``s3://bucket/run.trnprof``, ``gs://…``, ``file:///…``. Who may read it and where the store is, is told by the environment,
as its own tools have it (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …). Copies lie in TRNPROF_CACHE, else in ~/.cache/trnprof, by address
and version of each file: what has changed in the store is copied anew. Nothing removes them but a person.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from trnprof.tracer.errors import MissingExtraError, TraceError
from trnprof.tracer.schema import STREAMED, TABLES
from trnprof.tracer.shards import empty_frame

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/{1,3}(.*)", re.DOTALL)
_EXTRAS: Final = {"s3fs": "s3"}
"""The extra of trnprof that brings what reads a store."""
_LATER: Final = tuple(f"{table}/" for table in STREAMED)


def url_of(path: str | os.PathLike[str]) -> str | None:
    """The URL that a path stands for (``Path`` makes one slash of two); None: it is a path."""
    found = _URL.fullmatch(os.fspath(path))
    if found is None or len(found[1]) < 2:
        return None
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{found[2].strip('/')}"


@dataclass(frozen=True)
class Remote:
    """A trace in a store, and the directory here that has its small files.

    Attributes:
        url: of the trace.
        root: the directory.
        versions: by path within the trace, what names the version of each file.
    """

    url: str
    root: Path
    versions: Mapping[str, str]

    def is_left(self, path: Path) -> bool:
        """Whether a file is in the store only."""
        return path.relative_to(self.root).as_posix() in self.versions and not path.exists()

    def frame(self, table: str, path: Path) -> pl.LazyFrame:
        """The rows of a sealed shard, copied when first read, by whoever reads it: a worker too."""
        name = path.relative_to(self.root).as_posix()
        source = partial(_rows, f"{self.url}/{name}", self.versions[name])
        return register_io_source(source, schema=empty_frame(TABLES[table]).schema)


def fetched(url: str) -> Remote:
    """Copy the small files of a trace.

    Raises:
        TraceError: there is nothing, or it cannot be read.
        MissingExtraError: what reads such URLs is not installed.
    """
    store, place = _store(url)
    try:
        store.invalidate_cache()
        found = store.find(place, detail=True)
    except Exception as error:  # every store has its own
        raise _unreadable(url, error) from None
    if not found:
        raise TraceError(f"no such trace: {url} (nothing lies there)")
    strip = len(place.rstrip("/")) + 1
    versions = {path[strip:]: _version(info) for path, info in found.items()}
    stamp = hashlib.sha256("\n".join([url, *sorted(versions), *sorted(versions.values())]).encode())
    root = _cache() / stamp.hexdigest()[:16] / url.rsplit("/", 1)[-1]
    for path in found:
        name = path[strip:]
        if not name.startswith(_LATER) or not name.endswith(".arrow") or ".rows." in name or ".tracks." in name:  # fmt: skip
            _copy(store, path, root / name, url)
    return Remote(url, root, versions)


def _rows(
    url: str,
    version: str,
    with_columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """Scan a shard that is copied first, if it is not here."""
    local = _cache() / "shards" / hashlib.sha256(f"{url}\n{version}".encode()).hexdigest()
    if not local.exists():
        store, place = _store(url)
        _copy(store, place, local, url)
    rows = pl.scan_ipc(local, glob=False)
    if predicate is not None:
        rows = rows.filter(predicate)
    if with_columns is not None:
        rows = rows.select(with_columns)
    yield (rows if n_rows is None else rows.head(n_rows)).collect(engine="streaming")


def _store(url: str) -> tuple[Any, str]:
    """What reads a URL, and the path that it has there."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("fsspec", "s3") from None
    try:
        store, place = fsspec.url_to_fs(url)
    except ImportError as error:
        name = error.name or "s3fs"
        if name in _EXTRAS:
            raise MissingExtraError(name, _EXTRAS[name]) from None
        raise TraceError(f"{url}: {str(error).splitlines()[0]}") from None
    except ValueError as error:
        raise TraceError(f"{url}: {str(error).splitlines()[0]}") from None
    return store, place


def _copy(store: Any, place: str, local: Path, url: str) -> None:
    """Copy a file beside and rename it into its place: of several that do so, one wins, and all are right."""
    if local.exists():
        return
    try:
        local.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, beside = tempfile.mkstemp(dir=local.parent)
        os.close(handle)
        try:
            store.get_file(place, beside)
            os.replace(beside, local)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except Exception as error:
        raise _unreadable(url, error) from None


def _version(info: Mapping[str, Any]) -> str:
    keys = ("size", "ETag", "etag", "LastModified", "mtime", "created")
    return "|".join(str(info[k]) for k in keys if info.get(k) is not None)


def _cache() -> Path:
    chosen = os.environ.get("TRNPROF_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnprof"


def _unreadable(url: str, error: Exception) -> TraceError:
    text = str(error).strip().splitlines()
    reason = text[0] if text else type(error).__name__
    return TraceError(f"cannot read {url}: {reason}")
