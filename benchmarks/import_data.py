"""Profiles of any size, shaped as a real training step in the PyTorch profiler's JSON writes them.

Deterministic: the same arguments give the same bytes. A step has, per layer and direction, two matrix multiplications and two
elementwise kernels, each with its nested CPU operators, a runtime call and the arrow from it to its kernel; a gradient all-reduce a
layer on a stream of its own with the arguments that NCCL kernels carry; host-to-device copies; memory instants; annotations.
Times are decimal microseconds, with nanoseconds behind the point, about a base time.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_%s_align8>(cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_%s_align8::Params)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::%s<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::%s<c10::BFloat16>, std::array<char*, 3ul>)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
PID, COMPUTE, COMMUNICATION, COPY = 4242, 7, 20, 24


def write_profile(
    path: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    events: int | None = None,
    size_bytes: int | None = None,
    layers: int = 24,
) -> int:
    """Write one rank's profile until it has about this many events, or bytes.

    Returns:
        Events written.
    """
    device = {"id": rank % 8, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936}
    head = {
        "schemaVersion": 1,
        "deviceProperties": [device | {"computeMajor": 9, "computeMinor": 0, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "record_shapes": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1751410836000000000,
    }
    step = Step(rank, ranks, layers)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for rows in step.all():
            file.write(",\n".join(rows))
            written += len(rows)
            is_enough = written >= (events or 1 << 62) or file.tell() >= (size_bytes or 1 << 62)
            file.write("\n" if is_enough else ",\n")
            if is_enough:
                break
        file.write('], "traceName": "synthetic.pt.trace.json"}\n')
    return written


class Step:
    """Writes step after step; times go on, in ns."""

    def __init__(self, rank: int, ranks: int, layers: int) -> None:
        self.rank, self.ranks, self.layers = rank, ranks, layers
        self.random = random.Random(rank)
        self.shared = random.Random(1_000_003)
        self.host_ns = 500_000_000 + 37 * rank
        self.streams = {COMPUTE: 0, COMMUNICATION: 0, COPY: 0}
        self.serial = 0
        self.rows: list[str] = []

    def all(self) -> Iterator[list[str]]:
        """Rows of the metadata, then of each step."""
        names = {PID: "python", self.rank: f"GPU {self.rank}"}
        yield [
            f'{{"ph": "M", "name": "process_name", "pid": {pid}, "tid": 0, "ts": 0, "args": {{"name": "{name}"}}}}'
            for pid, name in names.items()
        ]
        number = 10
        while True:
            self.rows = []
            start_ns = self.host_ns
            self._step()
            self._slice("user_annotation", f"ProfilerStep#{number}", PID, start_ns, self.host_ns)
            yield self.rows
            number += 1

    def _step(self) -> None:
        self._copy(3_145_728)
        for direction in ("forward", "backward"):
            for layer in range(self.layers):
                for kind in ("tn", "nn"):
                    self._operator("aten::linear", "aten::addmm", GEMM % (kind, kind), 60_000)
                    name = ("GeluCUDAKernelImpl", "CUDAFunctor_add")[layer % 2]
                    self._operator("aten::gelu", "aten::add", ELEMENTWISE % (name, name), 9_000)
                if direction == "backward":
                    self._all_reduce(25_165_824 + 4096 * layer)
        # every rank waits for the others before the next step
        self.host_ns = max(self.host_ns, *self.streams.values()) + 40_000

    def _operator(self, outer: str, inner: str, kernel: str, length_ns: int) -> None:
        start = self.host_ns
        self.serial += 2
        launch = start + 9_000 + self.random.randrange(3_000)
        end = launch + 6_000 + self.random.randrange(2_000)
        record = f'"External id": {self.serial}, "Record function id": 0, {_INPUTS}, "Ev Idx": {self.serial}'
        self._slice("cpu_op", outer, PID, start, end + 3_000, record)
        self._slice("cpu_op", inner, PID, start + 2_000, end + 1_000, record)
        if self.serial % 8 == 0:
            self.rows.append(
                f'{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": {PID}, "tid": {PID}, "ts": {us(start)}, "args": {{"Total Reserved": 121634816, "Total Allocated": {91505152 + self.serial}, "Bytes": 144384, "Addr": 128184607182336, "Device Id": 0, "Device Type": 1}}}}'
            )
        length = length_ns + self.random.randrange(length_ns // 4)
        self._launched("cudaLaunchKernel", "kernel", kernel, COMPUTE, launch, length, _SHAPE)
        self.host_ns = end + 3_500

    def _all_reduce(self, count: int) -> None:
        """Ends on all ranks together, to within two microseconds, where the slowest one lets it."""
        ready = self.streams[COMPUTE]
        end = ready + 150_000 + self.shared.randrange(40_000)
        message = f'"Collective name": "allreduce", "In msg nelems": {count}, "Out msg nelems": {count}, "Group size": {self.ranks}, "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]", '
        self.streams[COMMUNICATION] = max(self.streams[COMMUNICATION], ready)
        start = self.streams[COMMUNICATION]
        length = max(20_000, end - start)
        self._launched(
            "cudaLaunchKernelExC",
            "kernel",
            NCCL,
            COMMUNICATION,
            self.host_ns,
            length,
            message + _SHAPE,
        )
        self.host_ns += 6_000

    def _copy(self, size: int) -> None:
        args = f'"bytes": {size}, "memory bandwidth (GB/s)": 24.6'
        name = "Memcpy HtoD (Pinned -> Device)"
        self._launched("cudaMemcpyAsync", "gpu_memcpy", name, COPY, self.host_ns, 128_000, args)
        self.host_ns += 20_000

    def _launched(
        self, call: str, category: str, name: str, stream: int, at: int, length: int, args: str
    ) -> None:
        """A runtime call, what it launches, and the arrow between them."""
        self.serial += 1
        number = self.serial
        start = max(at + 4_500, self.streams[stream] + 900)
        self.streams[stream] = start + length
        self._slice(
            "cuda_runtime",
            call,
            PID,
            at,
            at + 3_800,
            f'"External id": {number - 1}, "cbid": 211, "correlation": {number}',
        )
        place = f'"External id": {number - 1}, "queued": 0, "device": {self.rank}, "context": 1, "stream": {stream}, "correlation": {number}, '
        self._slice(category, name, self.rank, start, start + length, place + args, stream)
        self.rows += [
            f'{{"ph": "s", "id": {number}, "pid": {PID}, "tid": {PID}, "ts": {us(at)}, "cat": "ac2g", "name": "ac2g"}}',
            f'{{"ph": "f", "id": {number}, "pid": {self.rank}, "tid": {stream}, "ts": {us(start)}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}',
        ]

    def _slice(
        self,
        category: str,
        name: str,
        pid: int,
        start: int,
        end: int,
        args: str = "",
        tid: int = PID,
    ) -> None:
        self.rows.append(
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid}, "ts": {us(start)}, "dur": {us(end - start)}, "args": {{{args}}}}}'
        )


_INPUTS = '"Concrete Inputs": ["", "", "1"], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], "Input Strides": [[4096, 1], [4096, 1], []], "Input Dims": [[8192, 4096], [4096, 4096], []]'
_SHAPE = '"registers per thread": 255, "shared memory": 147456, "blocks per SM": 3.8787878, "warps per SM": 31.030302, "grid": [16, 32, 1], "block": [256, 1, 1], "est. achieved occupancy %": 48'


def us(ns: int) -> str:
    """Decimal microseconds of ns, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--events", type=int)
    parser.add_argument("--megabytes", type=float)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    size = None if given.megabytes is None else int(given.megabytes * 1e6)
    for rank in range(given.ranks):
        path = given.directory / f"rank{rank}.pt.trace.json"
        events = write_profile(
            path, rank=rank, ranks=given.ranks, events=given.events, size_bytes=size
        )
        print(f"{path}: {events} events, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
