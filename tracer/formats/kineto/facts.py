"""What does a PyTorch profile say of itself: base time, rank, devices, versions?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trnprof.tracer.formats.gpu_peaks import Gpu
from trnprof.tracer.formats.kineto.state import Ints
from trnprof.tracer.ingest.stage import Facts

YEAR_2001_NS: Final = 10**18
"""Times beyond are Unix times; no machine has been up for 30 years."""
_MOST_RANKS: Final = 1 << 24
_KEPT_TEXT: Final = 1 << 14
_NOT_KEPT: Final = ("traceEvents", "deviceProperties")


def read_facts(header: Mapping[str, Any], start_ns: Ints, facts: Facts) -> None:
    """Fill in facts.

    Args:
        header: top-level members of the file.
        start_ns: of the events.
        facts: of the source.
    """
    facts.base_unix_ns = base_unix_ns(header.get("baseTimeNanoseconds"), start_ns)
    distributed = header.get("distributedInfo")
    if isinstance(distributed, Mapping):
        facts.rank = _whole(distributed.get("rank"), _MOST_RANKS)
        world_size = _whole(distributed.get("world_size"), _MOST_RANKS)
        facts.world_size = world_size or None
    host = header.get("host_name")
    facts.host = host if isinstance(host, str) else ""
    kept = {
        str(key): value
        for key, value in header.items()
        if key not in _NOT_KEPT and len(str(value)) <= _KEPT_TEXT
    }
    facts.metadata["kineto"] = kept


def base_unix_ns(stated: Any, start_ns: Ints) -> int | None:
    """Unix time of zero of the profile's times; None if nobody knows.

    Args:
        stated: ``baseTimeNanoseconds``.
        start_ns: of the events.

    >>> base_unix_ns(1_700_000_000_000_000_000, np.array([5_000])), base_unix_ns(None, np.array([1_700_000_000_000_000_000]))
    (1700000000000000000, 0)
    >>> base_unix_ns("1700000000000000000", np.array([1_700_000_000_000_000_000])), base_unix_ns(None, np.array([5]))
    (0, None)
    """
    if len(start_ns) and int(np.median(start_ns)) > YEAR_2001_NS:
        return 0
    return _whole(stated, 1 << 62)


def device_properties(header: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """What the profile says of each device, by its number."""
    stated = header.get("deviceProperties")
    found: dict[int, Mapping[str, Any]] = {}
    for place, each in enumerate(stated if isinstance(stated, list) else []):
        if isinstance(each, Mapping):
            number = _whole(each.get("id"), 1 << 30)
            found[place if number is None else number] = each
    return found


def describe_system(
    properties: Mapping[int, Mapping[str, Any]], gpus: list[Gpu]
) -> dict[str, Any] | None:
    """The machine for the manifest, as far as it is known: from the profile, and peaks by the name of the device."""
    models = [str(p.get("name")) for p in properties.values() if p.get("name")]
    if not models:
        return None
    known = next(iter(properties.values()))
    gpu = next((g for g in gpus if g.name), gpus[0] if gpus else Gpu())
    chip: dict[str, Any] = {
        "cores": known.get("numSms"),
        "hbm_bytes": known.get("totalGlobalMem") or gpu.memory_bytes,
        "hbm_bytes_per_s": gpu.bytes_per_s,
        "peaks_of": gpu.name or None,
        "peaks_source": gpu.source or None,
        "absent": dict(gpu.absent) or None,
    }
    return {"name": models[0], "chip": {k: v for k, v in chip.items() if v is not None}}


def _whole(value: Any, most: int) -> int | None:
    text = (
        str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    )
    return int(text) if text.isdecimal() and len(text) < 20 and int(text) < most else None
