"""What is a file that is no profile, and what turns it into one?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trnprof.tracer.ingest.source import Head

_NSYS: Final = "nsys export --type sqlite FILE, then import the .sqlite"
_PICKLE: Final = (
    "a Python pickle, which is never read (it could run anything); "
    "write the profile with prof.export_chrome_trace(FILE) or tensorboard_trace_handler"
)
_BY_NAME: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        (".ntff",),
        "a Neuron profile as it was captured; turn it into tables with neuron-explorer view -n NEFF -s NTFF "
        "--output-format parquet, then import their directory",
    ),
    (
        (".neff",),
        "a compiled Neuron program; profile it with neuron-explorer capture -n NEFF, then neuron-explorer view -n NEFF -s NTFF "
        "--output-format parquet",
    ),
    ((".nsys-rep", ".qdrep"), f"a report of Nsight Systems; turn it into tables with {_NSYS}"),
    (
        (".qdstrm",),
        f"an unfinished report of Nsight Systems; nsys import FILE makes a report of it, then {_NSYS}",
    ),
    (
        (".ncu-rep",),
        "a report of Nsight Compute, which has counters of single kernels and no timeline; record with nsys profile",
    ),
    (
        (".csv", ".tsv"),
        f"a table of text, such as nsys stats prints; import the profile that it was made of: {_NSYS}",
    ),
    (
        (".et",),
        "an execution trace of Chakra, which says what is to run, not when it ran; name the files alone, or run them with "
        "trnprof emulate FILE.et… --system NAME",
    ),
    ((".pkl", ".pickle", ".pt", ".pth", ".ckpt"), _PICKLE),
)
_BY_START: Final[tuple[tuple[Callable[[bytes], bool], str], ...]] = (
    (lambda d: d[:1] == b"\x80" and d[1:2] in b"\x02\x03\x04\x05", _PICKLE),
    (
        lambda d: d.lstrip()[:200].lower().startswith((b"<!doctype html", b"<html")),
        "a web page; was a log-in or error page downloaded in place of the profile?",
    ),
    (
        lambda d: d.startswith(b"version https://git-lfs"),
        "a pointer of Git LFS; fetch the file itself with git lfs pull",
    ),
    (
        lambda d: d.startswith(b"\x89HDF"),
        f"an HDF5 file; if Nsight Systems wrote it, export it anew: {_NSYS}",
    ),
    (
        lambda d: d.startswith(b"SQLite format 3\0"),
        "an SQLite database, but with none of the tables that nsys or rocprofv3 write",
    ),
    (
        lambda d: d.startswith((b"PAR1", b"ARROW1")),
        "a table; a profile in tables is imported as their directory (from an archive: unpack it first)",
    ),
    (lambda d: d.startswith(b"\x7fELF"), "a program"),
    (
        lambda d: d.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["),
        "JSON, but neither trace events nor anything else that is known stands at its start",
    ),
)


def hint(head: Head) -> str:
    """What a file of no known format is, and what to do with it; empty if nobody knows.

    Args:
        head: its name and first bytes.
    """
    for endings, text in _BY_NAME:
        if head.name.endswith(endings):
            return text
    return next((text for matches, text in _BY_START if matches(head.data)), "")
