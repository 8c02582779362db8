"""How fast is the scheduler, beside its readable twin and beside SimPy on the same queueing problem?

Eight engines work through their queues in order; every task waits for one or two recent tasks of any engine.

    python benchmarks/bench_scheduler.py --tasks 1000000
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import simpy

from trnprof.emulator import reference, scheduler
from trnprof.emulator.graph_builder import GraphBuilder
from trnprof.emulator.taskgraph import I64, TaskGraph

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

ENGINES = 8
TWIN_TASKS = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks", type=int, default=1_000_000, help="tasks for the compiled scheduler"
    )
    tasks = parser.parse_args().tasks
    used_bytes, compile_s = memory_bytes(tasks), compile_seconds()
    small = engine_queues(min(tasks, TWIN_TASKS))
    first_s, compiled = timed(lambda: scheduler.schedule(small))
    reference_s, readable = timed(lambda: reference.schedule(small))
    simpy_s, simpy_ends = timed(lambda: simpy_end_ps(small))
    same = np.array_equal(compiled.end_ps, readable.end_ps) and np.array_equal(
        compiled.end_ps, simpy_ends
    )
    if not same:
        sys.exit("the three disagree on when tasks end")

    graph = engine_queues(tasks)
    compiled_s = min(timed(lambda: scheduler.schedule(graph))[0] for _ in range(3))
    rates = {
        f"compiled   ({tasks} tasks)": tasks / compiled_s,
        f"reference  ({len(small)} tasks)": len(small) / reference_s,
        f"simpy      ({len(small)} tasks)": len(small) / simpy_s,
    }
    for name, rate in rates.items():
        print(f"{name:30s}{rate:14,.0f} tasks/s")
    compiled_rate, _, simpy_rate = rates.values()
    print(f"compiled / simpy {compiled_rate / simpy_rate:27.0f} x")
    print(f"first call, nothing cached {compile_s:17.2f} s")
    print(f"first call, compiled before {first_s:16.2f} s")
    print(f"memory, the graph {graph_bytes(graph) / tasks:26.0f} B a task")
    print(f"memory, scheduling it {used_bytes / tasks:22.0f} B a task (rise of the peak)")


def engine_queues(tasks: int) -> TaskGraph:
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    for engine in range(ENGINES):
        builder.server(f"engine {engine}", in_order=True)
    duration = rng.integers(1_000, 1_000_000, tasks)
    index = builder.add_tasks(duration, [(rng.integers(0, ENGINES, tasks), duration)])
    for targets, reach in ((index[1:], 32), (index[1::2], 256)):
        sources = targets - rng.integers(1, np.minimum(targets, reach) + 1)
        builder.add_dependencies(targets, sources, rng.integers(0, 3, len(targets)) * 2_000)
    return builder.build()


def simpy_end_ps(graph: TaskGraph) -> I64:
    """An engine is a process that takes its tasks from a Store, waits for their dependencies and works."""
    environment = simpy.Environment()
    done = [environment.event() for _ in range(len(graph))]
    ends = np.zeros(len(graph), np.int64)
    offsets, durations = graph.dependency_offsets.tolist(), graph.duration_ps.tolist()
    dependencies, lags = graph.dependencies.tolist(), graph.lag_ps.tolist()

    def engine(queue: simpy.Store) -> Generator[Any, Any, None]:
        while queue.items:
            task = yield queue.get()
            for edge in range(offsets[task], offsets[task + 1]):
                ended = yield done[dependencies[edge]]
                if ended + lags[edge] > environment.now:
                    yield environment.timeout(ended + lags[edge] - environment.now)
            yield environment.timeout(durations[task])
            ends[task] = environment.now
            done[task].succeed(environment.now)

    for server in range(ENGINES):
        queue = simpy.Store(environment)
        queue.items.extend(np.flatnonzero(graph.server_ids == server).tolist())
        environment.process(engine(queue))
    environment.run()
    return ends


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def memory_bytes(tasks: int) -> int:
    """Rise of the peak of a fresh process that schedules a graph which another one has built.

    To be measured first: on Linux the peak of a new process begins at the size of its parent.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        in_new_process(save_graph, path, tasks)
        return in_new_process(peak_rise_bytes, path)


def compile_seconds() -> float:
    with tempfile.TemporaryDirectory() as folder:
        return in_new_process(first_call_seconds, folder)


def in_new_process(
    work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def first_call_seconds(cache: str) -> float:
    os.environ["NUMBA_CACHE_DIR"] = cache
    return timed(lambda: scheduler.schedule(engine_queues(100)))[0]


def save_graph(path: Path, tasks: int) -> None:
    scheduler.schedule(engine_queues(100))  # so that the process that measures compiles nothing
    np.savez(path, **vars(engine_queues(tasks)))


def peak_rise_bytes(path: Path) -> int:
    scheduler.schedule(engine_queues(100))
    with np.load(path) as arrays:
        graph = TaskGraph(**arrays)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scheduler.schedule(graph)
    rise: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return rise * (1 if sys.platform == "darwin" else 1024)


def graph_bytes(graph: TaskGraph) -> int:
    return sum(array.nbytes for array in vars(graph).values())


if __name__ == "__main__":
    main()
