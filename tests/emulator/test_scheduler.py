"""Do both schedulers agree, and do they agree with what the semantics, closed forms and SimPy say?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator import reference, scheduler
from trnprof.emulator.graph_builder import GraphBuilder
from trnprof.emulator.graph_check import MAX_NAMED
from trnprof.emulator.taskgraph import Schedule, ServerState, TaskGraph
from trnprof.tracer.errors import GraphError

Scheduler = Callable[..., Schedule]
both = pytest.mark.parametrize(
    "schedule", [reference.schedule, scheduler.schedule], ids=["reference", "compiled"]
)
SERVERS = (True, True, True, False, False)  # in order or not
small = st.integers(0, 4)


@st.composite
def graphs(
    draw: st.DrawFn,
    servers: tuple[bool, ...] = SERVERS,
    most_held: int = 3,
    occupancy: st.SearchStrategy[int] = small,
    acyclic: bool = True,
) -> TaskGraph:
    """Small times, so that ties are the rule; lags from the start of the task waited for to beyond its end."""
    builder = GraphBuilder()
    for index, in_order in enumerate(servers):
        builder.server(f"s{index}", in_order)
    durations = draw(st.lists(small, max_size=24))
    count = len(durations)
    for task in range(count):
        held = draw(st.lists(st.integers(0, len(servers) - 1), unique=True, max_size=most_held))
        sources = st.integers(0, task - 1) if acyclic else st.integers(0, count - 1)
        edges = st.lists(st.tuples(sources, st.integers(-4, 4)), max_size=3)
        after = [
            (source, max(lag, -durations[source]))
            for source, lag in (draw(edges) if task or not acyclic else [])
        ]
        builder.add_task(
            durations[task],
            [(server, draw(occupancy)) for server in held],
            after,
            release_ps=draw(st.sampled_from([0, 0, 3, 11])),
            release_blocker=draw(st.integers(-1, 5)),
        )
    return builder.build()


@st.composite
def states(draw: st.DrawFn) -> ServerState | None:
    if draw(st.booleans()):
        return None
    pairs = draw(
        st.lists(st.tuples(small, st.integers(-1, 9)), min_size=len(SERVERS), max_size=len(SERVERS))
    )
    free, last = np.array(pairs, np.int64).T
    return ServerState(np.ascontiguousarray(free), np.ascontiguousarray(last))


def assert_same(one: Schedule, other: Schedule) -> None:
    for name in ("start_ps", "end_ps", "ready_ps", "blocker"):
        assert getattr(one, name).dtype == np.int64
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert one.state.free_ps.tolist() == other.state.free_ps.tolist()
    assert one.state.last_task.tolist() == other.state.last_task.tolist()


def dependencies_of(graph: TaskGraph, task: int) -> list[tuple[int, int]]:
    edges = slice(graph.dependency_offsets[task], graph.dependency_offsets[task + 1])
    return list(zip(graph.dependencies[edges].tolist(), graph.lag_ps[edges].tolist(), strict=True))


def held_by(graph: TaskGraph, task: int) -> dict[int, int]:
    pairs = slice(graph.server_offsets[task], graph.server_offsets[task + 1])
    return dict(
        zip(graph.server_ids[pairs].tolist(), graph.occupancy_ps[pairs].tolist(), strict=True)
    )


def users(graph: TaskGraph, server: int) -> list[int]:
    return [task for task in range(len(graph)) if server in held_by(graph, task)]


def arrivals(graph: TaskGraph, run: Schedule, state: ServerState) -> list[int]:
    """When each is ready and its queues are free, from the finished schedule."""
    keys: list[int] = run.ready_ps.tolist()
    for server in np.flatnonzero(graph.in_order).tolist():
        free = int(state.free_ps[server])
        for task in users(graph, server):
            keys[task] = max(keys[task], free)
            free = int(run.start_ps[task]) + held_by(graph, task)[server]
    return keys


# --- the twins ---


@given(graphs(), states())
@settings(max_examples=200, deadline=None)
def test_twins_agree(graph: TaskGraph, state: ServerState | None) -> None:
    first = scheduler.schedule(graph, state)
    assert_same(first, reference.schedule(graph, state))
    assert_same(first, scheduler.schedule(graph, state))


@given(graphs(acyclic=False))
@settings(max_examples=100, deadline=None)
def test_twins_agree_on_cycles(graph: TaskGraph) -> None:
    outcomes: list[Schedule | str] = []
    for schedule in (reference.schedule, scheduler.schedule):
        try:
            outcomes.append(schedule(graph, names=lambda task: f"t{task}"))
        except GraphError as error:
            outcomes.append(str(error))
    one, other = outcomes
    if isinstance(one, Schedule) and isinstance(other, Schedule):
        assert_same(one, other)
    else:
        assert one == other


def test_twins_agree_on_a_large_graph_whatever_the_memory_layout() -> None:
    rng = np.random.default_rng(7)
    builder = GraphBuilder()
    for index in range(8):
        builder.server(f"s{index}", in_order=index < 6)
    count = 5_000
    tasks = builder.add_tasks(
        rng.integers(0, 50, count),
        [(rng.integers(0, 6, count), rng.integers(0, 50, count)), (rng.integers(6, 8, count), 9)],
        release_ps=rng.integers(0, 20_000, count),
    )
    builder.add_dependencies(
        tasks[1:], tasks[1:] - rng.integers(1, np.minimum(tasks[1:], 60) + 1), 5
    )
    graph = builder.build()
    expected = reference.schedule(graph)
    assert_same(scheduler.schedule(graph), expected)
    signatures = _signatures()
    strided = replace(
        graph,
        duration_ps=np.repeat(graph.duration_ps, 2)[::2],
        lag_ps=graph.lag_ps.astype(np.int32),
    )
    for field in fields(strided):
        getattr(strided, field.name).flags.writeable = False
    assert_same(scheduler.schedule(strided), expected)
    assert _signatures() == signatures == 1


def _signatures() -> int:
    from trnprof.emulator import scheduler_kernel

    loop: Any = scheduler_kernel.place_tasks
    return len(loop.signatures)


# --- properties ---


@given(graphs(occupancy=st.integers(1, 4)), states())
@settings(max_examples=120, deadline=None)
def test_semantics(graph: TaskGraph, given_state: ServerState | None) -> None:
    count = len(SERVERS)
    state = given_state or ServerState(np.zeros(count, np.int64), np.full(count, -1, np.int64))
    run = scheduler.schedule(graph, given_state)
    start, end = run.start_ps.tolist(), run.end_ps.tolist()
    assert end == (run.start_ps + graph.duration_ps).tolist()
    for task in range(len(graph)):
        met = [end[source] + lag for source, lag in dependencies_of(graph, task)]
        assert run.ready_ps[task] == max([int(graph.release_ps[task]), *met])
        assert start[task] >= run.ready_ps[task]
    previous: list[dict[int, int]] = [{} for _ in range(len(graph))]
    for server in range(count):
        served = sorted(users(graph, server), key=lambda task: start[task])
        if graph.in_order[server]:
            assert served == sorted(served)
        free, holder = int(state.free_ps[server]), -2 - int(state.last_task[server])
        for task in served:
            assert start[task] >= free
            previous[task][server] = holder if free == start[task] else -1
            free, holder = start[task] + held_by(graph, task)[server], task
        assert (run.state.free_ps[server], run.state.last_task[server]) == (free, holder)
    for task in range(len(graph)):
        assert run.blocker[task] == _blocker(graph, run, task, list(previous[task].values()))
        reserved = [start[task] == state.free_ps[k] for k in held_by(graph, task)]
        if run.blocker[task] == -1:  # nothing holds it up but time itself
            assert start[task] == graph.release_ps[task] or any(reserved)


def _blocker(graph: TaskGraph, run: Schedule, task: int, holders: list[int]) -> int:
    start = run.start_ps[task]
    binding = [
        source for source, lag in dependencies_of(graph, task) if run.end_ps[source] + lag == start
    ]
    if binding:
        return min(binding)
    if graph.release_ps[task] == start and graph.release_blocker[task] >= 0:
        return int(-2 - graph.release_blocker[task])
    own = [holder for holder in holders if holder >= 0]
    earlier = [-2 - holder for holder in holders if holder <= -2]
    return min(own) if own else -2 - min(earlier) if earlier else -1


@given(graphs(), states())
@settings(max_examples=100, deadline=None)
def test_shared_servers_serve_in_order_of_arrival(
    graph: TaskGraph, given_state: ServerState | None
) -> None:
    free = ServerState(np.zeros(len(SERVERS), np.int64), np.full(len(SERVERS), -1, np.int64))
    run = scheduler.schedule(graph, given_state)
    keys = arrivals(graph, run, given_state or free)
    for server in np.flatnonzero(~graph.in_order).tolist():
        for one in users(graph, server):
            for other in users(graph, server):
                if keys[one] < keys[other]:
                    assert run.start_ps[one] + held_by(graph, one)[server] <= run.start_ps[other]


@given(graphs(servers=(False, False), most_held=1))
@settings(max_examples=80, deadline=None)
def test_a_lone_shared_server_is_never_idle_while_a_task_waits(graph: TaskGraph) -> None:
    run = scheduler.schedule(graph)
    for server in range(2):
        busy = {
            time
            for task in users(graph, server)
            for time in range(run.start_ps[task], run.start_ps[task] + held_by(graph, task)[server])
        }
        for task in users(graph, server):
            assert busy.issuperset(range(run.ready_ps[task], run.start_ps[task]))


@given(graphs(servers=(True, True, True)), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_queues_alone_are_a_longest_path_and_know_no_numbering(
    graph: TaskGraph, random: Any
) -> None:
    run = scheduler.schedule(graph)
    expected: list[int] = []
    free = [0, 0, 0]
    for task in range(len(graph)):  # index order is a topological order here: max-plus, no events
        held = held_by(graph, task)
        met = [
            expected[source] + int(graph.duration_ps[source]) + lag
            for source, lag in dependencies_of(graph, task)
        ]
        expected.append(max([int(graph.release_ps[task]), *met, *(free[k] for k in held)]))
        for server, occupancy in held.items():
            free[server] = expected[task] + occupancy
    assert run.start_ps.tolist() == expected

    order = list(range(len(graph)))  # new index -> old: swap neighbours that share no queue
    for _ in range(3 * len(order)):
        at = random.randrange(max(1, len(order) - 1))
        pair = order[at : at + 2]
        if len(pair) == 2 and not held_by(graph, pair[0]).keys() & held_by(graph, pair[1]).keys():
            order[at : at + 2] = pair[::-1]
    assert scheduler.schedule(renumbered(graph, order)).start_ps.tolist() == [
        expected[old] for old in order
    ]


def renumbered(graph: TaskGraph, order: list[int]) -> TaskGraph:
    new = {old: index for index, old in enumerate(order)}
    builder = GraphBuilder()
    for index, in_order in enumerate(graph.in_order.tolist()):
        builder.server(f"s{index}", in_order)
    for old in order:
        after = [(new[source], lag) for source, lag in dependencies_of(graph, old)]
        builder.add_task(
            int(graph.duration_ps[old]),
            held_by(graph, old).items(),
            after,
            int(graph.release_ps[old]),
        )
    return builder.build()


def test_numbering_is_immaterial_without_ties() -> None:
    rng = np.random.default_rng(3)
    builder = GraphBuilder()
    shared = [builder.server(name, in_order=False) for name in ("a", "b", "c")]
    for task in range(300):
        held = [
            (k, int(rng.integers(1 << 30))) for k in rng.choice(shared, 2, replace=False).tolist()
        ]
        after = [(int(rng.integers(task)), int(rng.integers(1 << 30)))] if task else []
        builder.add_task(
            int(rng.integers(1 << 30)), held, after, release_ps=int(rng.integers(1 << 36))
        )
    graph = builder.build()
    order = rng.permutation(300).tolist()
    run, again = scheduler.schedule(graph), scheduler.schedule(renumbered(graph, order))
    assert again.start_ps.tolist() == run.start_ps[order].tolist()
    assert (run.start_ps > run.ready_ps).any()


# --- carried state ---


@given(graphs(servers=(True, True, True)), st.integers(0, 24))
@settings(max_examples=100, deadline=None)
def test_queues_alone_can_be_scheduled_in_two_steps(graph: TaskGraph, cut: int) -> None:
    graph, cut = replace(graph, release_blocker=np.full(len(graph), -1)), min(cut, len(graph))
    whole = scheduler.schedule(graph)
    first, second = split(graph, cut, whole)
    head = scheduler.schedule(first)
    tail = scheduler.schedule(second, scheduler.carry_state(head.state, np.arange(cut)))
    assert np.concatenate([head.start_ps, tail.start_ps]).tolist() == whole.start_ps.tolist()
    assert np.concatenate([head.ready_ps, tail.ready_ps]).tolist() == whole.ready_ps.tolist()
    final = scheduler.carry_state(tail.state, np.arange(cut, len(graph)))
    assert final.free_ps.tolist() == whole.state.free_ps.tolist()
    assert final.last_task.tolist() == whole.state.last_task.tolist()
    bound = [
        *head.blocker.tolist(),
        *(b + cut if b >= 0 else -2 - b if b < -1 else -1 for b in tail.blocker.tolist()),
    ]
    for task, (one, other) in enumerate(zip(bound, whole.blocker.tolist(), strict=True)):
        if one != other:  # a tie between a task before the cut and one behind it
            assert other < cut <= one
            assert task >= cut


def split(graph: TaskGraph, cut: int, whole: Schedule) -> tuple[TaskGraph, TaskGraph]:
    """Two graphs; dependencies of the second on the first become releases."""
    first, second = GraphBuilder(), GraphBuilder()
    for index, in_order in enumerate(graph.in_order.tolist()):
        first.server(f"s{index}", in_order)
        second.server(f"s{index}", in_order)
    for task in range(len(graph)):
        duration, held = int(graph.duration_ps[task]), held_by(graph, task).items()
        release = int(graph.release_ps[task]), -1
        edges = dependencies_of(graph, task)
        if task < cut:
            first.add_task(duration, held, edges, release[0])
            continue
        met = [(int(whole.end_ps[source]) + lag, -source) for source, lag in edges if source < cut]
        if met and max(met)[0] >= release[0]:
            release = max(met)[0], -max(met)[1]
        inner = [(source - cut, lag) for source, lag in edges if source >= cut]
        second.add_task(duration, held, inner, *release)
    return first.build(), second.build()


@both
def test_state_and_release_are_told_from_tasks_of_this_graph(schedule: Scheduler) -> None:
    builder = GraphBuilder()
    tensor, vector = builder.server("tensor", True), builder.server("vector", True)
    builder.server("untouched", True)
    builder.add_task(10, [(tensor, 10)])
    builder.add_task(10, [(tensor, 10), (vector, 5)])
    builder.add_task(1, release_ps=7, release_blocker=4)
    builder.add_task(1, [(vector, 1)], release_ps=400)
    state = ServerState(np.array([100, 110, 3]), np.array([7, 8, 9]))
    run = schedule(builder.build(), state)
    assert run.start_ps.tolist() == [100, 110, 7, 400]
    assert run.blocker.tolist() == [-2 - 7, 0, -2 - 4, -1]
    assert run.state.last_task.tolist() == [1, 3, -2 - 9]
    carried = scheduler.carry_state(run.state, np.array([20, 21, 22, 23]))
    assert carried.last_task.tolist() == [21, 23, 9]
    with pytest.raises(GraphError, match="carry_state"):
        schedule(builder.build(), run.state)


# --- closed forms ---


@both
def test_a_chain_is_the_sum(schedule: Scheduler) -> None:
    durations, lags = np.arange(1, 101), np.arange(99)
    builder = GraphBuilder()
    tasks = builder.add_tasks(durations)
    builder.add_dependencies(tasks[1:], tasks[:-1], lags)
    run = schedule(builder.build())
    assert run.end_ps[-1] == durations.sum() + lags.sum()
    assert run.blocker.tolist() == list(range(-1, 99))


@both
@pytest.mark.parametrize("in_order", [True, False])
def test_one_server_follows_lindley(schedule: Scheduler, in_order: bool) -> None:
    """Deterministic service (M/D/1): start_i = max over j <= i of arrival_j + (i - j) D."""
    rng = np.random.default_rng(1)
    service = 100
    arrival = np.cumsum(rng.exponential(110, 500)).astype(np.int64)
    builder = GraphBuilder()
    server = builder.server("queue", in_order)
    builder.add_tasks(np.full(500, service), [(server, service)], release_ps=arrival)
    index = np.arange(500)
    expected = np.maximum.accumulate(arrival - index * service) + index * service
    assert schedule(builder.build()).start_ps.tolist() == expected.tolist()


@both
@pytest.mark.parametrize(("load", "compute"), [(30, 100), (100, 30), (70, 70)])
def test_a_double_buffered_pipeline(schedule: Scheduler, load: int, compute: int) -> None:
    """Load i needs the buffer of compute i - 2; n tiles take load + compute + (n - 1) max(load, compute)."""
    builder = GraphBuilder()
    dma, tensor = builder.server("dma", True), builder.server("tensor", True)
    tiles = 50
    for tile in range(tiles):
        buffer = [(2 * tile - 3, 0)] if tile >= 2 else []
        loaded = builder.add_task(load, [(dma, load)], buffer)
        builder.add_task(compute, [(tensor, compute)], [(loaded, 0)])
    run = schedule(builder.build())
    assert run.end_ps[-1] == load + compute + (tiles - 1) * max(load, compute)


@both
def test_single_buffering_serialises(schedule: Scheduler) -> None:
    builder = GraphBuilder()
    dma, tensor = builder.server("dma", True), builder.server("tensor", True)
    for tile in range(20):
        loaded = builder.add_task(30, [(dma, 30)], [(2 * tile - 1, 0)] if tile else [])
        builder.add_task(100, [(tensor, 100)], [(loaded, 0)])
    assert schedule(builder.build()).end_ps[-1] == 20 * 130


@both
def test_what_is_reserved_is_not_filled_in(schedule: Scheduler) -> None:
    """A: 0..10 on x. B, next, holds x and y: 10..14. C, on y alone, waits behind B though y is free until 10."""
    builder = GraphBuilder()
    x, y = builder.server("x", False), builder.server("y", False)
    builder.add_task(10, [(x, 10)])
    builder.add_task(4, [(x, 4), (y, 4)])
    builder.add_task(3, [(y, 3)])
    run = schedule(builder.build())
    assert run.start_ps.tolist() == [0, 10, 14]
    assert run.blocker.tolist() == [-1, 0, 1]


@both
def test_a_queue_head_blocks_those_behind_it(schedule: Scheduler) -> None:
    builder = GraphBuilder()
    queue, hbm = builder.server("queue", True), builder.server("hbm", False)
    slow = builder.add_task(50)
    builder.add_task(5, [(queue, 5)], [(slow, 1)])
    builder.add_task(5, [(queue, 5), (hbm, 2)])
    builder.add_task(9, [(hbm, 9)])
    run = schedule(builder.build())
    assert run.start_ps.tolist() == [0, 51, 56, 0]
    assert run.blocker.tolist() == [-1, 0, 1, -1]
    assert run.ready_ps.tolist() == [0, 51, 0, 0]


@both
@pytest.mark.parametrize("hops", [[10, 10, 10], [10, 4, 7], [4, 10, 20], [20, 1, 1]])
def test_negative_lags_cut_through(schedule: Scheduler, hops: list[int]) -> None:
    """A link passes on what has come: it begins one latency after the link before it and ends no sooner after its end."""
    latency = 3
    builder = GraphBuilder()
    for hop, time in enumerate(hops):
        lag = latency - min(hops[hop - 1], time)
        builder.add_task(
            time,
            [(builder.server(f"link {hop}", in_order=False), time)],
            [(hop - 1, lag)] if hop else [],
        )
    start, end = [0], [hops[0]]
    for time in hops[1:]:
        start.append(max(start[-1] + latency, end[-1] + latency - time))
        end.append(start[-1] + time)
    run = schedule(builder.build())
    assert (run.start_ps.tolist(), run.end_ps.tolist()) == (start, end)
    assert run.blocker.tolist() == [-1, *range(len(hops) - 1)]


@both
def test_ties_go_to_dependencies_then_to_the_lowest(schedule: Scheduler) -> None:
    builder = GraphBuilder()
    a, b = builder.server("a", True), builder.server("b", True)
    builder.add_task(10, [(a, 10)])
    builder.add_task(10, [(b, 10)])
    builder.add_task(7)
    builder.add_task(1, [(b, 1), (a, 1)])
    builder.add_task(1, [(a, 1)], [(2, 4), (2, 4), (1, 0)])
    run = schedule(builder.build())
    assert run.start_ps.tolist() == [0, 0, 0, 10, 11]
    assert run.blocker.tolist() == [-1, -1, -1, 0, 2]


@both
def test_nothing_to_do(schedule: Scheduler) -> None:
    run = schedule(GraphBuilder().build())
    assert len(run.start_ps) == len(run.state.free_ps) == 0


# --- SimPy ---


def test_simpy_agrees() -> None:
    """Tasks request every shared server together and queue by arrival; the engines are processes that work in order."""
    rng = np.random.default_rng(11)
    builder = GraphBuilder()
    engines = [builder.server(f"e{k}", True) for k in range(3)]
    shared = [builder.server(f"s{k}", False) for k in range(2)]
    for task in range(400):
        held = [
            int(rng.choice(engines)),
            *rng.choice(shared, int(rng.integers(0, 3)), replace=False).tolist(),
        ]
        after = (
            [(int(rng.integers(max(0, task - 9), task)), int(rng.integers(1 << 30)))]
            if task
            else []
        )
        builder.add_task(
            int(rng.integers(1 << 30)), [(k, int(rng.integers(1, 1 << 30))) for k in held], after
        )
    graph = builder.build()
    assert scheduler.schedule(graph).end_ps.tolist() == _simpy_ends(graph)


def _simpy_ends(graph: TaskGraph) -> list[int]:
    environment = simpy.Environment()
    done = [environment.event() for _ in range(len(graph))]
    resources = [simpy.Resource(environment) for _ in range(len(graph.in_order))]
    ends = [0] * len(graph)

    def release(resource: simpy.Resource, request: Any, after: int) -> Any:
        yield environment.timeout(after)
        resource.release(request)

    def finish(task: int) -> Any:
        yield environment.timeout(int(graph.duration_ps[task]))
        ends[task] = int(environment.now)
        done[task].succeed()

    def engine(server: int) -> Any:
        for task in users(graph, server):
            for source, lag in dependencies_of(graph, task):
                yield done[source]
                yield environment.timeout(max(0, ends[source] + lag - int(environment.now)))
            held = held_by(graph, task)
            requests = {k: resources[k].request() for k in held if k != server}
            yield environment.all_of(list(requests.values()))
            environment.process(finish(task))
            for k, request in requests.items():
                environment.process(release(resources[k], request, held[k]))
            yield environment.timeout(held[server])

    for server in np.flatnonzero(graph.in_order).tolist():
        environment.process(engine(server))
    environment.run()
    return ends


# --- errors ---


@both
def test_cycles_are_named(schedule: Scheduler) -> None:
    builder = GraphBuilder()
    builder.add_tasks([1, 1, 1, 1, 1])
    builder.add_dependencies([1, 2, 3, 4], [3, 1, 2, 2])
    names = ["free", "a", "b", "c", "behind"]
    with pytest.raises(GraphError) as error:
        schedule(builder.build(), names=names)
    assert str(error.value) == (
        "tasks wait for each other in a cycle: task 1 (a) waits for task 3 (c), task 3 (c) waits for task 2 (b),"
        " task 2 (b) waits for task 1 (a)"
    )
    builder = GraphBuilder()
    queue = builder.server("queue", True)
    builder.add_task(1, [(queue, 1)], [(1, 0)])
    builder.add_task(1, [(queue, 1)])
    with pytest.raises(
        GraphError,
        match=r"cycle: task 0 waits for task 1, task 1 is queued behind task 0 on server 0$",
    ):
        schedule(builder.build())
    builder = GraphBuilder()
    builder.add_task(1, after=[(0, 0)])
    with pytest.raises(GraphError, match=r"cycle: task 0 \(t0\) waits for itself$"):
        schedule(builder.build(), names=lambda task: f"t{task}")


@both
def test_a_long_cycle_is_cut(schedule: Scheduler) -> None:
    builder = GraphBuilder()
    tasks = builder.add_tasks(np.ones(1000, np.int64))
    builder.add_dependencies(tasks, np.roll(tasks, 1))
    with pytest.raises(GraphError, match=r", …$") as error:
        schedule(builder.build())
    assert str(error.value).count("waits for task") == MAX_NAMED


def _bad(**columns: Any) -> TaskGraph:
    builder = GraphBuilder()
    a, b = builder.server("a", True), builder.server("b", False)
    builder.add_task(5, [(a, 5)])
    builder.add_task(5, [(a, 5), (b, 2)], [(0, 1)])
    return replace(builder.build(), **columns)


@both
@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            _bad(duration_ps=np.array([5, -1])),
            r"task 1 \(y\): duration_ps\[1\] is -1; it must be at least 0",
        ),
        (_bad(release_ps=np.array([-3, 0])), r"task 0 \(x\): release_ps\[0\] is -3"),
        (
            _bad(release_blocker=np.array([-1, -2])),
            r"task 1 \(y\): release_blocker\[1\] is -2; it must be at least -1",
        ),
        (_bad(occupancy_ps=np.array([5, 5, -2])), r"task 1 \(y\): occupancy_ps\[2\] is -2"),
        (
            _bad(lag_ps=np.array([-6])),
            r"task 1 \(y\): lag_ps\[0\] is -6; it must be at least -5, or it starts before task 0 \(x\) does",
        ),
        (
            _bad(server_ids=np.array([0, 0, 2])),
            r"task 1 \(y\): server_ids\[2\] is 2; it must be in 0\.\.1",
        ),
        (_bad(server_ids=np.array([0, 1, 1])), r"task 1 \(y\) holds server 1 twice"),
        (_bad(server_ids=np.array([0, 0, 0])), r"task 1 \(y\) holds server 0 twice"),
        (
            _bad(dependencies=np.array([2])),
            r"task 1 \(y\): dependencies\[0\] is 2; it must be in 0\.\.1",
        ),
        (_bad(dependencies=np.array([-1])), r"task 1 \(y\): dependencies\[0\] is -1"),
        (
            _bad(server_offsets=np.array([0, 4, 3])),
            r"server_offsets\[2\] is 3, less than the 4 before it",
        ),
        (
            _bad(server_offsets=np.array([0, 1, 2])),
            "server_offsets runs from 0 to 2; it must run from 0 to 3",
        ),
        (
            _bad(dependency_offsets=np.array([0, 1])),
            "dependency_offsets has 2 entries; it must have 3",
        ),
        (_bad(occupancy_ps=np.array([5])), "occupancy_ps has 1 entries; it must have 3"),
        (_bad(duration_ps=np.array([1.0, 2.0])), "duration_ps is float64"),
        (_bad(duration_ps=np.array([1 << 62, 1 << 62])), "schedule it in steps"),
        (_bad(in_order=np.array([1, 0])), "in_order must be a bool array"),
    ],
)
def test_bad_graphs_are_refused(schedule: Scheduler, graph: TaskGraph, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        schedule(graph, names=["x", "y"])


@both
def test_bad_states_are_refused(schedule: Scheduler) -> None:
    for free, last, message in [
        ([0], [-1], "must have 2"),
        ([0, -5], [-1, -1], r"free_ps\[1\] is -5"),
    ]:
        with pytest.raises(GraphError, match=message):
            schedule(_bad(), ServerState(np.array(free), np.array(last)))


def test_what_is_passed_in_is_left_alone() -> None:
    state = ServerState(np.array([3, 4]), np.array([0, 1]))
    scheduler.schedule(_bad(), state)
    assert (state.free_ps.tolist(), state.last_task.tolist()) == ([3, 4], [0, 1])


# --- the builder, imports ---


def test_blocks_equal_single_tasks() -> None:
    blocks, singles = GraphBuilder(), GraphBuilder()
    for builder in (blocks, singles):
        builder.server("a", True)
        builder.server("b", False)
    tasks = blocks.add_tasks(
        [1, 2, 3], [(0, [4, 5, 6]), ([1, 1, 1], 7)], release_ps=[0, 9, 0], release_blocker=2
    )
    blocks.add_dependencies([2, 1, 2], [0, 0, 1], [8, 9, 10])
    singles.add_task(1, [(0, 4), (1, 7)], release_blocker=2)
    singles.add_task(2, [(0, 5), (1, 7)], [(0, 9)], release_ps=9, release_blocker=2)
    singles.add_task(3, [(0, 6), (1, 7)], [(0, 8), (1, 10)], release_blocker=2)
    assert tasks.tolist() == [0, 1, 2]
    one, other = blocks.build(), singles.build()
    for field in fields(TaskGraph):
        assert getattr(one, field.name).dtype == getattr(other, field.name).dtype
        assert getattr(one, field.name).tolist() == getattr(other, field.name).tolist(), field.name


def test_the_builder_refuses() -> None:
    builder = GraphBuilder()
    assert builder.server("a", True) == builder.server("a", True) == 0
    with pytest.raises(GraphError, match="'a' is in order already"):
        builder.server("a", False)
    with pytest.raises(TypeError, match="float64"):
        builder.add_tasks([1.5])
    assert len(builder) == 0
    builder.add_dependencies(3, 0)
    with pytest.raises(GraphError, match=r"tasks 3\.\.3; there are 0 tasks"):
        builder.build()


def test_numba_waits_for_the_first_schedule() -> None:
    code = "import sys, trnprof.emulator.scheduler as s; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
