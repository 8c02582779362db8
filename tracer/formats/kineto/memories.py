"""From which memory to which does a copy of a PyTorch profile go?"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.copy_names import memory_codes_of_copy
from trnprof.tracer.formats.kineto.kinds import Kind
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.schema import MEMORIES

HBM: Final = MEMORIES.index("hbm")
HOST: Final = MEMORIES.index("host")
UNKNOWN: Final = -1

_DIRECTIONS: Final = {"DEVICE_TO_HOST": (HBM, HOST), "HOST_TO_DEVICE": (HOST, HBM)}


def copy_ends(
    block: EventBlock, names: pa.DictionaryArray, kind: NDArray[np.int8]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Where copies and memsets come from and go to, as places in ``schema.MEMORIES``; UNKNOWN where nobody says.

    Args:
        block: device events.
        names: of them.
        kind: of them; kernels get UNKNOWN.
    """
    words = names.dictionary.to_pylist()
    ends = np.array(
        [*(memory_codes_of_copy(word or "") for word in words), (UNKNOWN, UNKNOWN)], np.int8
    )
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
