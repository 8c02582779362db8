"""Profiles of invented TPU and GPU runs, as XProf records them."""

from __future__ import annotations

from typing import Any

from tests.tracer.formats.xspaces import MESSAGES, PlaneMaker, Ref, Space

START_NS = 1_000_000
NS = 1000


def core_details(global_core: int) -> bytes:
    return bytes(MESSAGES["CoreDetails"](global_core_id=global_core).SerializeToString())


def tpu(space: Space, ordinal: int, *, global_core: int) -> PlaneMaker:
    """Two steps of 1000 ns: a matmul of 400, an all-reduce of 100 and a copy; a while loop around the second one's work."""
    plane = space.plane(
        f"/device:TPU:{ordinal}",
        peak_teraflops_per_second=918.0,
        peak_hbm_bw_gigabytes_per_second=1640.0,
        device_type_string=Ref("TPU v6 lite"),
        core_details=core_details(global_core),
    )
    steps, modules = plane.line("Steps", START_NS), plane.line("XLA Modules", START_NS)
    ops, later = plane.line("XLA Ops", START_NS), plane.line("Async XLA Ops", START_NS)
    scopes = plane.line("TensorFlow Name Scope", START_NS)
    matmul = plane.kind(
        "%fusion.1 = bf16[128,512]{1,0} fusion(bf16[128,256]{1,0} %p.1, bf16[256,512]{1,0} %p.2), kind=kOutput",
        "fusion.1",
        hlo_category=Ref("convolution fusion"),
        program_id=7,
        flops=33_554_432,
        model_flops=33_000_000,
        bytes_accessed=458_752,
        tf_op=Ref("jit(step)/layer/dot_general"),
        source=Ref("model.py:12"),
    )
    reduce = plane.kind(
        "%all-reduce.2 = f32[1024]{0} all-reduce(f32[1024]{0} %x), replica_groups={{0,1}}",
        "all-reduce.2",
        hlo_category=Ref("all-reduce"),
        program_id=7,
        bytes_accessed=4096,
    )
    loop = plane.kind("%while.1", "while.1", hlo_category=Ref("while"), program_id=7, flops=10**12)
    for step in range(2):
        at = step * 1_000 * NS
        plane.event(steps, str(step + 10), at, 1_000 * NS)
        plane.event(modules, "jit_step(7)", at, 900 * NS, run_id=100 + step, program_id=7)
        plane.event(scopes, "layer", at, 800 * NS)
        if step:
            plane.event(ops, loop, at, 700 * NS)
        plane.event(ops, matmul, at + 100 * NS, 400 * NS)
        plane.event(ops, reduce, at + 500 * NS, 100 * NS)
        plane.event(later, "copy-start.3", at + 50 * NS, 200 * NS)
        plane.event(later, "all-gather-start.4", at + 600 * NS, 150 * NS)
    return plane


def tpu_space() -> Space:
    space = Space()
    space.message.hostnames.append("worker-1")
    for ordinal in range(2):
        tpu(space, ordinal, global_core=4 + ordinal)
    host = space.plane("/host:CPU")
    line = host.line("main", START_NS - 500)
    for step in range(2):
        for ordinal in range(2):
            stats: dict[str, Any] = {"run_id": 100 + step, "device_ordinal": ordinal, "queue_id": 0}
            at = (step * 1_000 + 10 * ordinal) * NS
            host.event(line, "DoEnqueueProgram", at, 5 * NS, **stats)
            host.event(line, "CompleteCallbacks", at + 900 * NS, 5 * NS, **stats)
    return space


def gpu_space() -> Space:
    space = Space()
    plane = space.plane(
        "/device:GPU:0", memory_bandwidth=3_352_000_000_000, device_vendor=Ref("NVIDIA")
    )
    stream = plane.line("Stream #13(Kernel,MemcpyH2D)", START_NS)
    plane.event(
        stream,
        "loop_add_fusion",
        0,
        100 * NS,
        correlation_id=5,
        hlo_op=Ref("add.3"),
        hlo_module=Ref("jit_f"),
        tf_op=Ref("jit(f)/add"),
    )
    plane.event(
        stream,
        "MemcpyH2D",
        200 * NS,
        50 * NS,
        correlation_id=6,
        memcpy_details=Ref("kind_src:pinned kind_dst:device size:655360 dest:0 async:1"),
    )
    plane.event(
        stream,
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        300 * NS,
        80 * NS,
        correlation_id=7,
        hlo_op=Ref("all-reduce-start.1"),
        hlo_module=Ref("jit_f"),
    )
    derived = plane.line("XLA Ops", START_NS)
    plane.event(derived, "add.3", 0, 100 * NS)
    host = space.plane("/host:CPU")
    line = host.line("main", START_NS - 1000)
    for at, (number, name) in enumerate(
        ((5, "cuLaunchKernel"), (6, "cuMemcpyHtoDAsync"), (7, "cuLaunchKernelExC"))
    ):
        host.event(line, name, at * 100 * NS, 10 * NS, correlation_id=number)
    return space
