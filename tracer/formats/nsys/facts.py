"""What does an Nsight Systems profile say of itself: host, clock, GPUs, ranks, and what its own diagnostics complain about?

Environment variables may hold secrets: of them, only those that tell ranks are looked at, and none is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from trnprof.tracer.formats.gpu_peaks import find_gpu, peak_rows
from trnprof.tracer.formats.launcher_variables import stated_node, stated_rank, stated_world_size
from trnprof.tracer.formats.nsys.collectives import Calls
from trnprof.tracer.formats.nsys.names import process_of
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.tables import Tables, read_small

_ASSIGNMENT: Final = re.compile(r"(?:^|;)\s*([A-Z_]+)=\"?(\d{1,7})\"?\s*(?=;|$)")
_KEPT: Final = {
    "Hostname": "host",
    "OsDescription": "os",
    "NvDriverVersion": "driver",
    "CudaDriverVersion": "cuda_driver",
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
    "HardwarePlatform": "platform",
}
"""Of TARGET_INFO_SYSTEM_ENV, what goes into the manifest."""
_LOSS: Final = re.compile(
    r"(might|may) (be missing|have been lost|not have been collected)|not all|dropped|lost|overflow|truncat|incomplete|"
    r"no \w+ events collected|exceed",
    re.IGNORECASE,
)
_NOT_IMPORTED: Final = {
    "COMPOSITE_EVENTS": "CPU samples",
    "SAMPLING_CALLCHAINS": "frames of CPU samples",
    "SCHED_EVENTS": "thread scheduling events",
    "GENERIC_EVENTS": "generic events",
    "CUDA_CALLCHAINS": "frames of CUDA calls",
    "OSRT_CALLCHAINS": "frames of OS calls",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "CUDA event completions",
    "FECS_EVENTS": "GPU context switches",
    "NET_NIC_METRIC": "network card samples",
    "NIC_METRICS": "network card samples",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "CPU page faults of unified memory",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "GPU page faults of unified memory",
}
_EXPECTED: Final = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "no kernels: was anything run on a GPU, and recorded with --trace=cuda?",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "no CUDA calls",
    "NVTX_EVENTS": "no annotations",
    "StringIds": "no strings: names are missing",
}


def read_facts(state: State) -> dict[int, int]:
    """Fill in host, clock, GPUs and metadata; number of each GPU in the metrics' library → on its host."""
    tables, facts = state.tables, state.stage.facts
    environment = _pairs(tables, "TARGET_INFO_SYSTEM_ENV")
    exported = _pairs(tables, "META_DATA_EXPORT")
    facts.host = environment.get("Hostname", "")
    facts.base_unix_ns = _base(tables, exported)
    facts.metadata["nsight_systems"] = {
        "version": exported.get("EXPORT_PRODUCT_VERSION"),
        "schema": exported.get("EXPORT_SCHEMA_VERSION"),
        "report": exported.get("EXPORT_PARAM_INPUT_FILE"),
        **{ours: environment[theirs] for theirs, ours in _KEPT.items() if theirs in environment},
    }
    _read_variables(state)
    return _read_gpus(state)


def assign_ranks(state: State, calls: Calls) -> None:
    """Give timelines of several ranks in one file their ranks, by MPI, NCCL, or the order of GPUs.

    One process on one GPU is one rank: that of the file.
    """
    facts, stage = state.stage.facts, state.stage
    process_ranks = _stated_ranks(state, calls)
    processes = sorted({process for process, _ in state.unit_rows})
    main_gpu = {p: _main_gpu(state, p) for p in processes}
    if len(processes) == 1:
        gpus = sorted(gpu for _, gpu in state.unit_rows)
        stated = process_ranks.get(processes[0])
        facts.rank = stated if stated is not None else facts.rank
        if len(gpus) > 1:
            _rank_chips(state, {gpu: gpu for gpu in gpus})
        return
    if not processes:
        facts.rank = next(iter(process_ranks.values()), facts.rank)
        return
    if len({process_ranks.get(p) for p in processes} - {None}) < len(processes):
        order = sorted(processes, key=lambda p: (main_gpu[p], p))
        first = int(facts.metadata.get("node", 0)) * len(order)
        process_ranks = {p: first + i for i, p in enumerate(order)}
        stage.audit.add(
            "merged_ranks",
            "warning",
            state.tables.label,
            f"{len(order)} processes used GPUs and do not say their ranks; they are ranks {first} to {first + len(order) - 1} in the "
            "order of their GPUs",
            unreliable="which rank is which",
        )
    facts.rank = min(process_ranks[p] for p in processes)
    for number, owner in state.owners.items():
        if owner in process_ranks:
            timeline = stage.timelines[number]
            stage.timelines[number] = replace(timeline, rank=process_ranks[owner])
    _rank_chips(state, {main_gpu[p]: process_ranks[p] for p in processes})


def tell_missing(state: State) -> None:
    """Findings: tables that are not there, tables that are not imported, and what the profiler itself complained about."""
    tables, audit = state.tables, state.stage.audit
    names = set(tables.names())
    for table, message in _EXPECTED.items():
        if table not in names:
            audit.add(
                "missing_table", "note", state.where(table), f"{message} (there is no such table)"
            )
    for table, what in _NOT_IMPORTED.items():
        if table in names:
            audit.add(
                "not_imported",
                "note",
                state.where(table),
                f"{what} are not imported",
                count=tables.rows(table),
            )
    rows = read_small(tables, "DIAGNOSTIC_EVENT", ints=["severity"], texts=["text"])
    texts = zip(rows.list("severity"), rows.list("text"), strict=True)
    losses = [(r, t) for r, (s, t) in enumerate(texts) if t and (_LOSS.search(t) or s in (2, 3))]
    for text, row in {t: r for r, t in reversed(losses)}.items():
        is_loss = _LOSS.search(text) is not None
        audit.add(
            "dropped_events" if is_loss else "profiler_warning",
            "error" if is_loss else "warning",
            f"{state.where('DIAGNOSTIC_EVENT')}, row {row}",
            f"the profiler says: {' '.join(text.split())}",
            unreliable="totals and everything near the gap" if is_loss else "",
            count=sum(text == other for _, other in losses),
        )


def _pairs(tables: Tables, table: str) -> dict[str, str]:
    rows = read_small(tables, table, texts=["name", "value"])
    return {n: v for n, v in zip(rows.list("name"), rows.list("value"), strict=True) if n and v}


def _base(tables: Tables, exported: Mapping[str, str]) -> int | None:
    """Unix time of zero: exported times are moved by ``--ts-shift``, and are Unix time with ``--ts-normalize=true``."""
    rows = read_small(tables, "TARGET_INFO_SESSION_START_TIME", ints=["utcEpochNs"])
    start: int | None = next((v for v in rows.list("utcEpochNs") if v), None)
    if exported.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        start = 0
    shift = exported.get("EXPORT_CONFIG_TIME_SHIFT", exported.get("EXPORT_PARAM_TIME_SHIFT", "0"))
    if start is None or not re.fullmatch(r"-?\d{1,18}", shift):
        return start
    return start - int(shift)


def _read_variables(state: State) -> None:
    """Rank, size and node from the environment of what was launched."""
    facts = state.stage.facts
    rows = read_small(state.tables, "META_DATA_CAPTURE", texts=["name", "value"])
    pairs = zip(rows.list("name"), rows.list("value"), strict=True)
    texts = [v for n, v in pairs if n and v and n.endswith("ENVIRONMENT_VARIABLE")]
    texts.append(_pairs(state.tables, "TARGET_INFO_SYSTEM_ENV").get("DeviceEnvironment", ""))
    found: dict[str, str] = {}
    for text in texts:
        for name, value in _ASSIGNMENT.findall(text):
            found.setdefault(name, value)
    facts.rank = stated_rank(found)
    facts.world_size = stated_world_size(found)
    node = stated_node(found)
    if node is not None:
        facts.metadata["node"] = node


def _read_gpus(state: State) -> dict[int, int]:
    tables = state.tables
    ints = ["id", "pwGpuId", "cuDevice", "memoryBandwidth", "totalMemory", "smCount", "clockRate"]
    rows = read_small(tables, "TARGET_INFO_GPU", ints=ints, texts=["name"])
    columns = {c: rows.list(c) for c in (*ints, "name")}
    pw_gpu: dict[int, int] = {}
    chip: dict[str, Any] = {}
    for i in range(rows.count):
        number = columns["id"][i] if columns["id"][i] is not None else i
        name, bandwidth = columns["name"][i], columns["memoryBandwidth"][i]
        if columns["pwGpuId"][i] is not None:
            pw_gpu[columns["pwGpuId"][i]] = number
        if name:
            memory, units = columns["totalMemory"][i], columns["smCount"][i]
            state.gpus[number] = find_gpu(name, memory_bytes=memory, units=units)
            chip.setdefault("name", name)
        if bandwidth and bandwidth > 0:
            state.gpu_bytes_per_s[number] = float(bandwidth)
            chip.setdefault("hbm_bytes_per_s", bandwidth)
        for theirs, ours in (
            ("totalMemory", "hbm_bytes"),
            ("smCount", "sms"),
            ("clockRate", "clock_hz"),
        ):
            if columns[theirs][i]:
                chip.setdefault(ours, columns[theirs][i])
    state.stage.facts.peaks = peak_rows({f"GPU {n}": gpu for n, gpu in state.gpus.items()})
    if chip:
        state.stage.facts.system = {"name": chip.get("name", "GPU"), "chip": chip}
    rows = read_small(tables, "TARGET_INFO_CUDA_DEVICE", ints=["gpuId", "cudaId", "pid"])
    known = zip(rows.list("pid"), rows.list("cudaId"), rows.list("gpuId"), strict=True)
    state.gpu_of.update({(p & 0xFFFFFF, c): g for p, c, g in known if None not in (p, c, g)})
    return pw_gpu


def _stated_ranks(state: State, calls: Calls) -> dict[int, int]:
    """Process → rank: by MPI, else by NCCL's largest communicator that is of every process' own rank."""
    rows = read_small(state.tables, "MPI_RANKS", ints=["globalPid", "rank"])
    if rows.count:
        processes = process_of(rows.ints("globalPid")).tolist()
        return {p: r for p, r in zip(processes, rows.list("rank"), strict=True) if r is not None}
    known = calls.has_communicator & (calls.ranks > 0) & (calls.rank >= 0)
    best: dict[int, tuple[int, int]] = {}
    processes = process_of(calls.thread[known]).tolist()
    for process, size, rank in zip(
        processes, calls.ranks[known].tolist(), calls.rank[known].tolist(), strict=True
    ):
        if size > best.get(process, (0, 0))[0]:
            best[process] = (size, rank)
    world = state.stage.facts.world_size or 0
    largest = max((size for size, _ in best.values()), default=0)
    if best and largest >= world:
        state.stage.facts.world_size = largest
    return {p: rank for p, (size, rank) in best.items() if size == largest and largest >= world}


def _main_gpu(state: State, process: int) -> int:
    return max((n, -g, g) for (p, g), n in state.unit_rows.items() if p == process)[2]


def _rank_chips(state: State, ranks: Mapping[int, int]) -> None:
    """Ranks of GPUs and of what stands under them and has none yet."""
    for number, timeline in enumerate(state.stage.timelines):
        chip = timeline.chip
        if chip is not None and chip in ranks and timeline.rank is None:
            state.stage.timelines[number] = replace(timeline, rank=ranks[chip])
