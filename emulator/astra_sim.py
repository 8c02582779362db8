"""What machine do ASTRA-sim's own input files describe? Its network (.yml) and its system (.json), to run a workload as it does.

A chip of that machine has one core, of which nothing is known but a peak and the bandwidth of its memory; other figures are those of the
smallest system, and only execution traces, which need no more, are run on it. Semantics as of ASTRA-sim 518bd51 (March 2026).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trnprof.emulator.collectives.algorithms.names import DIRECT, HALVING_DOUBLING, RING, TREE
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
)
from trnprof.emulator.collectives.request import AstraSim
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.topology import Topology
from trnprof.emulator.machine_parts import AstraSimWays, Published
from trnprof.emulator.system import System, load_system
from trnprof.tracer.errors import FabricError, SystemDescriptionError
from trnprof.tracer.whole_files import read_json_object

_BASE: Final = "trn1"
_GB: Final = 2**30
"""Bytes of what its networks call a GB (astra-network-analytical, common/NetworkFunction.cpp); its memories have 1e9."""

_KINDS: Final = {"Ring": "ring", "Switch": "switch", "FullyConnected": "mesh"}
_ALGORITHMS: Final = {
    "ring": RING,
    "oneRing": RING,
    "direct": DIRECT,
    "oneDirect": DIRECT,
    "halvingDoubling": HALVING_DOUBLING,
    "doubleBinaryTree": TREE,
}
_IMPLEMENTATIONS: Final = {
    ALL_REDUCE: "all-reduce-implementation",
    ALL_GATHER: "all-gather-implementation",
    REDUCE_SCATTER: "reduce-scatter-implementation",
    ALL_TO_ALL: "all-to-all-implementation",
}
_LINE: Final = re.compile(r"(\w+)\s*:\s*\[([^\]]*)\]\s*(?:#.*)?")


def names_astra_sim(text: str) -> bool:
    """Whether a system's name is that of ASTRA-sim's two files, as NETWORK.yml,SYSTEM.json."""
    endings = sorted(Path(part).suffix for part in text.split(","))
    return endings in ([".json", ".yml"], [".json", ".yaml"])


def load_astra_sim(text: str) -> System:
    """The machine that a network and a system file describe together.

    Args:
        text: their paths with a comma between them.

    Raises:
        SystemDescriptionError: one cannot be read, or says what is not known here.
    """
    first, second = (Path(part) for part in text.split(","))
    network, system = (second, first) if first.suffix == ".json" else (first, second)
    topology = _topology(network)
    settings = read_json_object(system, SystemDescriptionError, "expected an object of settings")
    peak = _number(system, settings, "peak-perf", 0.0) * 1e12
    memory = _number(system, settings, "local-mem-bw", 0.0) * 1e9
    has_roofline = bool(_number(system, settings, "roofline-enabled", 0))
    if has_roofline and not (peak and memory):
        raise SystemDescriptionError(
            f"{system}: a roofline needs peak-perf (TFLOP/s) and local-mem-bw (GB/s) above 0"
        )
    base = load_system(_BASE)
    tensor = base.core.tensor
    clock_ghz = tensor.clock_ghz * (peak / tensor.peak_flops() if peak else 1.0)
    core = replace(base.core, name="ASTRA-sim NPU", tensor=replace(tensor, clock_ghz=clock_ghz))
    chip = replace(
        base.chip,
        name="ASTRA-sim NPU",
        cores=1,
        hbm_stacks=1,
        hbm_bytes_per_s=memory or base.chip.hbm_bytes_per_s,
        printed_dense_flops={},
    )
    machine = replace(
        base.machine,
        name=f"{network.stem},{system.stem}",
        description=f"as ASTRA-sim's {network.name} and {system.name} describe it",
        chip=chip,
        topology=topology,
        collectives=None,
        published=Published(),
        figures={},
        sources={},
        ways=_ways(system, settings, memory, has_roofline),
    )
    return System(machine, core)


def _ways(
    path: Path, settings: Mapping[str, Any], memory: float, has_roofline: bool
) -> AstraSimWays:
    """How it runs collectives and operations."""
    ways = AstraSim(
        active_chunks=int(_number(path, settings, "active-chunks-per-dimension", 1)),
        endpoint_ps=round(_number(path, settings, "endpoint-delay", 10) * 1000),
        memory_bytes_per_s=memory,
    )
    chunks = int(_number(path, settings, "preferred-dataset-splits", 1))
    algorithms = {
        collective: _implementation(path, settings, key)
        for collective, key in _IMPLEMENTATIONS.items()
        if key in settings
    }
    return AstraSimWays(algorithms, chunks, ways, has_roofline)


def _implementation(path: Path, settings: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = settings[key]
    if not isinstance(names, list) or not names:
        raise SystemDescriptionError(f"{path}: {key}: expected a list of names, found {names!r}")
    unknown = [name for name in names if name not in _ALGORITHMS]
    if unknown:
        known = ", ".join(_ALGORITHMS)
        raise SystemDescriptionError(
            f"{path}: {key}: {unknown[0]!r} is not known here; known are {known}"
        )
    return tuple(_ALGORITHMS[name] for name in names)


def _number(path: Path, settings: Mapping[str, Any], key: str, default: float) -> float:
    value = settings.get(key, default)
    is_number = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    if not is_number:
        raise SystemDescriptionError(f"{path}: {key}: expected a number, found {value!r}")
    return float(value)


def _topology(path: Path) -> Topology:
    """Of a network file: lists of the same length, one entry a dimension."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise SystemDescriptionError(f"cannot read {path}: {reason}") from None
    lists = {m[1]: [part.strip() for part in m[2].split(",")] for m in _LINE.finditer(text)}
    for key in ("topology", "npus_count", "bandwidth", "latency"):
        if key not in lists:
            raise SystemDescriptionError(f"{path}: no list {key}: [ … ]")
    kinds, sizes = lists["topology"], lists["npus_count"]
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        known = ", ".join(_KINDS)
        raise SystemDescriptionError(f"{path}: topology {unknown[0]!r}: known are {known}")
    try:
        bandwidths = [float(value) * _GB for value in lists["bandwidth"]]
        latencies = [float(value) * 1000 for value in lists["latency"]]
        spec = ",".join(f"{_KINDS[kind]}:{size}" for kind, size in zip(kinds, sizes, strict=True))
        return made_up_topology(spec, bandwidths, latencies)
    except (ValueError, FabricError) as error:
        raise SystemDescriptionError(f"{path}: {error}") from None
