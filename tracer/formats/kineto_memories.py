"""From which memory to which does a copy of a PyTorch profile go?"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.json_scan import EventBlock
from trnprof.tracer.formats.kineto_kinds import Kind

HBM: Final = 0
HOST: Final = 1
REMOTE: Final = 2
UNKNOWN: Final = -1
"""Codes of memories."""
MEMORIES: Final = pa.array(["hbm", "host", "remote"])
"""Their names."""

_LETTERS: Final = {"h": HOST, "d": HBM, "a": HBM, "p": HBM}
_WORDS: Final = {
    "pageable": HOST,
    "pinned": HOST,
    "host": HOST,
    "device": HBM,
    "array": HBM,
    "device static": HBM,
}
_COPY: Final = re.compile(
    r"(?i)\b([hdap])to([hdap])\b|\((.+?) ?-> ?(.+?)\)|copy(host|device)to(host|device)"
)
_DIRECTIONS: Final = {"DEVICE_TO_HOST": (HBM, HOST), "HOST_TO_DEVICE": (HOST, HBM)}


def copy_ends(
    block: EventBlock, names: pa.DictionaryArray, kind: NDArray[np.int8]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Where copies and memsets come from and go to, as codes.

    Args:
        block: device events.
        names: of them.
        kind: of them; kernels get UNKNOWN.
    """
    words = names.dictionary.to_pylist()
    ends = np.array([*(ends_of(word or "") for word in words), (UNKNOWN, UNKNOWN)], np.int8)
    codes = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    source, target = ends[codes, 0], ends[codes, 1]
    directions = block.texts("args.direction")
    if directions.null_count < block.rows:
        said = np.array(
            [_DIRECTIONS.get(d, (UNKNOWN, UNKNOWN)) for d in directions.dictionary.to_pylist()]
            + [(UNKNOWN, UNKNOWN)],
            np.int8,
        )
        at = directions.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        has = at >= 0
        source[has], target[has] = said[at[has], 0], said[at[has], 1]
    is_set, is_copy = kind == Kind.MEMSET, kind == Kind.MEMCPY
    source[~is_copy] = UNKNOWN
    target[is_set] = HBM
    target[~is_set & ~is_copy] = UNKNOWN
    return source, target


def ends_of(name: str) -> tuple[int, int]:
    """Source and target of a copy of this name.

    >>> ends_of("Memcpy HtoD (Pageable -> Device)"), ends_of("Memcpy PtoP (Device -> Device)")
    ((1, 0), (0, 2))
    >>> ends_of("CopyDeviceToHost"), ends_of("Memcpy (Unknown -> Device)")
    ((0, 1), (-1, 0))
    """
    found = _COPY.search(name)
    if not found:
        return UNKNOWN, UNKNOWN
    if found[1]:
        letters = found[1].lower(), found[2].lower()
        target = REMOTE if letters == ("p", "p") else _LETTERS[letters[1]]
        return _LETTERS[letters[0]], target
    if found[3]:
        return _WORDS.get(found[3].lower(), UNKNOWN), _WORDS.get(found[4].lower(), UNKNOWN)
    return _WORDS[found[5].lower()], _WORDS[found[6].lower()]
