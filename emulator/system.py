"""What is the machine? Frozen dataclasses, filled from ``systems/*.toml`` or a user's own file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trnprof.emulator.figures import Description, Figure, is_figure, read_description
from trnprof.tracer.errors import SystemDescriptionError

SYSTEM_SCHEMA = 1


@dataclass(frozen=True)
class TensorEngine:
    """The systolic array: [K <= rows, M <= columns] stationary, [K, N <= moving_columns] moving."""

    clock_ghz: float
    rows: int
    columns: int
    moving_columns: int
    minimum_interval_cycles: int
    latency_ns: float
    ramp_ns: float
    ramp_start: float
    cycles_per_column: Mapping[str, float]

    def peak_flops(self, dtype: str = "bfloat16") -> float:
        """FLOP/s of dense matmuls: rows x columns x 2 x clock / cycles a column (NKI guides, engine table)."""
        cycles = self.cycles_per_column[dtype]
        return self.rows * self.columns * 2 * self.clock_ghz * 1e9 / cycles


@dataclass(frozen=True)
class VectorEngine:
    """128 lanes; cycles are per element and partition, by operand width and place."""

    clock_ghz: float
    minimum_interval_cycles: int
    latency_ns: float
    copy_cycles_32bit: float
    copy_cycles_16bit: float
    copy_cycles_psum_16bit: float
    tensor_tensor_cycles_32bit: float
    tensor_tensor_cycles_16bit: float
    reduce_cycles_32bit: float
    reduce_cycles_16bit: float


@dataclass(frozen=True)
class ScalarEngine:
    """The activation engine: one element a cycle and partition, functions from tables."""

    clock_ghz: float
    minimum_interval_cycles: int
    latency_ns: float
    cycles: float
    table_load_ns: float


@dataclass(frozen=True)
class GpSimdEngine:
    """The general-purpose engine."""

    clock_ghz: float
    fixed_cycles: int
    cycles: float
    latency_ns: float


@dataclass(frozen=True)
class DmaEngines:
    """The DMA engines of one core and the way they are set going."""

    engines: int
    queues: int
    read_bytes_per_s_per_engine: float
    write_bytes_per_s_per_engine: float
    piece_ns: float
    issue_ns: float
    queue_slot_ns: float
    start_read_ns: float
    start_write_ns: float
    start_software_ns: float
    engine_stagger_ns: float
    done_read_ns: float
    done_write_ns: float
    done_software_ns: float
    transpose_fraction: float
    maximum_packet_bytes: int

    @property
    def read_bytes_per_s(self) -> float:
        """All engines together, HBM to SBUF."""
        return self.engines * self.read_bytes_per_s_per_engine

    @property
    def write_bytes_per_s(self) -> float:
        """All engines together, SBUF to HBM."""
        return self.engines * self.write_bytes_per_s_per_engine


@dataclass(frozen=True)
class Core:
    """One NeuronCore."""

    name: str
    base_clock_ghz: float
    sbuf_partitions: int
    sbuf_bytes_per_partition: int
    sbuf_usable_bytes_per_partition: int
    psum_bytes_per_partition: int
    psum_banks: int
    semaphore_ns: float
    tensor: TensorEngine
    vector: VectorEngine
    scalar: ScalarEngine
    gpsimd: GpSimdEngine
    dma: DmaEngines


@dataclass(frozen=True)
class Chip:
    """One chip: its cores share its HBM evenly."""

    name: str
    cores: int
    hbm_bytes: int
    hbm_stacks: int
    hbm_bytes_per_s: float
    marketing_flops_bfloat16: float
    power_w: float | None


@dataclass(frozen=True)
class Topology:
    """How chips are joined; ``link_bytes_per_s`` is one link in one direction, by dimension."""

    kind: str
    sizes: tuple[int, ...]
    link_bytes_per_s: tuple[float, ...]
    hop_ns: float
    scale_out_bytes_per_s: float

    @property
    def chips(self) -> int:
        """Number of chips."""
        count = 1
        for size in self.sizes:
            count *= size
        return count


@dataclass(frozen=True)
class System:
    """One described machine, with where each figure comes from."""

    name: str
    description: str
    core: Core
    chip: Chip
    topology: Topology
    figures: Mapping[str, Figure]
    sources: Mapping[str, str]

    @property
    def hbm_bytes_per_core(self) -> int:
        """Capacity that one core (LNC 1) can count on."""
        return self.chip.hbm_bytes // self.chip.cores

    @property
    def hbm_bytes_per_s_per_core(self) -> float:
        """What one core's HBM stack can deliver: Neuron Explorer's denominator of MBU (410 GB/s on Trainium1, 725 on 2)."""
        return self.chip.hbm_bytes_per_s / self.chip.hbm_stacks

    @property
    def estimates(self) -> list[str]:
        """Dotted keys of the figures that nobody published."""
        return [key for key, figure in self.figures.items() if figure.estimate]

    def describe(self) -> dict[str, Any]:
        """The whole description as plain data, for the manifest."""
        return {
            "name": self.name,
            "description": self.description,
            "core": asdict(self.core) | {"hbm_bytes_per_s": self.hbm_bytes_per_s_per_core},
            "chip": asdict(self.chip),
            "topology": asdict(self.topology) | {"chips": self.topology.chips},
            "estimates": self.estimates,
            "sources": dict(self.sources),
            "figures": {key: asdict(figure) for key, figure in self.figures.items()},
        }


def list_systems() -> list[str]:
    """Names of the systems that come with trnprof."""
    folder = files("trnprof.emulator.systems")
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def load_system(name_or_path: str) -> System:
    """A system by name, or from a user's own TOML file.

    Raises:
        SystemDescriptionError: unknown name (the nearest are suggested), unreadable file, missing or wrong key.
    """
    return _build(_load(name_or_path))


def _load(name_or_path: str) -> Description:
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        description = read_description(Path(name_or_path))
    elif name_or_path in list_systems():
        description = read_description(
            Path(str(files("trnprof.emulator.systems") / f"{name_or_path}.toml"))
        )
    else:
        known = list_systems()
        near = difflib.get_close_matches(name_or_path, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SystemDescriptionError(
            f"unknown system {name_or_path!r}: {hint}known are {', '.join(known)}, or give a .toml file"
        )
    base = description.table.pop("extends", None)
    if base is None:
        return description
    if not isinstance(base, str) or base not in list_systems():
        raise description.fail(
            "extends", f"expected one of {', '.join(list_systems())}, found {base!r}"
        )
    description.table = _merge(_load(base).table, description.table)
    return description


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The base with what the own description says otherwise; figures are replaced whole."""
    merged = dict(base)
    for key, value in own.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        inner = both_tables and not is_figure(value)
        merged[key] = _merge(merged[key], value) if inner else value
    return merged


def _build(description: Description) -> System:
    if description.table.get("schema") != SYSTEM_SCHEMA:
        raise description.fail(
            "schema", f"expected {SYSTEM_SCHEMA}, found {description.table.get('schema')!r}"
        )
    for key in description.table:
        if key not in _TOP_LEVEL:
            raise description.fail(key, f"unknown key; known are {', '.join(_TOP_LEVEL)}")
    figures = description.figures()
    cycles = description.numbers("core.tensor.cycles_per_column")
    if "bfloat16" not in cycles:
        raise description.fail("core.tensor.cycles_per_column.bfloat16", "missing")
    core = description.read(
        Core,
        "core",
        tensor=description.read(TensorEngine, "core.tensor", cycles_per_column=cycles),
        vector=description.read(VectorEngine, "core.vector"),
        scalar=description.read(ScalarEngine, "core.scalar"),
        gpsimd=description.read(GpSimdEngine, "core.gpsimd"),
        dma=description.read(DmaEngines, "core.dma"),
    )
    _require_positive(description, figures)
    topology = description.read(Topology, "topology")
    if 0 in topology.sizes:
        raise description.fail("topology.sizes", "must be positive, found 0")
    names = {key: description.table.get(key) for key in ("name", "description")}
    for key, value in names.items():
        if not isinstance(value, str) or not value:
            raise description.fail(key, "missing, or not text")
    return System(
        name=str(names["name"]),
        description=str(names["description"]),
        core=core,
        chip=description.read(Chip, "chip"),
        topology=topology,
        figures=figures,
        sources=_sources(description),
    )


def _sources(description: Description) -> dict[str, str]:
    sources = description.table.get("sources", {})
    if not isinstance(sources, dict):
        raise description.fail("sources", "expected a table of tags and documents")
    return {str(tag): str(document) for tag, document in sources.items()}


_TOP_LEVEL = (
    "schema",
    "name",
    "description",
    "extends",
    "sources",
    "core",
    "chip",
    "topology",
)
_MAY_BE_ZERO = ("_ns", "ramp_start", "fixed_cycles")


def _require_positive(description: Description, figures: Mapping[str, Figure]) -> None:
    """Clocks, sizes and bandwidths are divisors: none may be 0."""
    for key, figure in figures.items():
        values = figure.value if isinstance(figure.value, list) else [figure.value]
        for value in values:
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if not value > 0 and not (value == 0 and key.endswith(_MAY_BE_ZERO)):
                raise description.fail(key, f"must be positive, found {value}")
