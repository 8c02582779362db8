"""How is a task graph put together? One task at a time, or a block of them from arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from trnprof.emulator.csr import offsets_of
from trnprof.emulator.taskgraph import I64, TaskGraph
from trnprof.tracer.errors import GraphError


class GraphBuilder:
    """A growing TaskGraph. Tasks are numbered in the order they are added, which is the order of the queues.

    Nothing is checked here beyond shapes: ``schedule`` checks the whole.

    >>> builder = GraphBuilder()
    >>> tensor, hbm = builder.server("Tensor", in_order=True), builder.server("HBM", in_order=False)
    >>> load = builder.add_task(300, servers=[(hbm, 200)])
    >>> matmul = builder.add_task(500, servers=[(tensor, 500)], after=[(load, 50)])
    >>> len(builder.build())
    2
    """

    def __init__(self) -> None:
        self._server_ids: dict[str, int] = {}
        self._in_order: list[bool] = []
        self._durations = array("q")
        self._releases = array("q")
        self._release_blockers = array("q")
        self._server_counts = array("q")
        self._held_servers = array("i")
        self._occupancies = array("q")
        self._targets = array("q")
        self._sources = array("q")
        self._lags = array("q")

    def __len__(self) -> int:
        return len(self._durations)

    @property
    def server_names(self) -> tuple[str, ...]:
        """Names of the servers, by id."""
        return tuple(self._server_ids)

    def server(self, name: str, in_order: bool) -> int:
        """The id of the server of this name, which is added if it is new.

        Raises:
            GraphError: it is there, but of the other kind.
        """
        known = self._server_ids.setdefault(name, len(self._in_order))
        if known == len(self._in_order):
            self._in_order.append(in_order)
        elif self._in_order[known] != in_order:
            raise GraphError(f"server {name!r} is {'shared' if in_order else 'in order'} already")
        return known

    def add_task(
        self,
        duration_ps: int,
        servers: Iterable[tuple[int, int]] = (),
        after: Iterable[tuple[int, int]] = (),
        release_ps: int = 0,
        release_blocker: int = -1,
    ) -> int:
        """Add one task.

        Args:
            duration_ps: its duration.
            servers: (server, occupancy in ps) of each it holds; its event is drawn on the first.
            after: (task, lag in ps) of each it waits for.
            release_ps: its earliest start.
            release_blocker: what set that, an event of an earlier graph; -1 for nothing.

        Returns:
            Its index.
        """
        index = len(self._durations)
        self._durations.append(duration_ps)
        self._releases.append(release_ps)
        self._release_blockers.append(release_blocker)
        count = 0
        for server, occupancy in servers:
            self._held_servers.append(server)
            self._occupancies.append(occupancy)
            count += 1
        self._server_counts.append(count)
        for source, lag in after:
            self._targets.append(index)
            self._sources.append(source)
            self._lags.append(lag)
        return index

    def add_tasks(
        self,
        duration_ps: ArrayLike,
        servers: Sequence[tuple[ArrayLike, ArrayLike]] = (),
        release_ps: ArrayLike = 0,
        release_blocker: ArrayLike = -1,
    ) -> I64:
        """Add a block of tasks.

        Args:
            duration_ps: int[m], their durations.
            servers: (server ids, occupancies in ps) of the first server of each task, of the second, …: int[m] each,
                or one for all.
            release_ps: int[m] or one for all.
            release_blocker: int[m] or one for all.

        Returns:
            Their indices, int64[m].
        """
        durations = np.atleast_1d(np.asarray(duration_ps))
        count, begin = len(durations), len(self)
        columns = [_block(values, (count,)) for pair in servers for values in pair]
        _extend(self._durations, _block(durations, (count,)))
        _extend(self._releases, _block(release_ps, (count,)))
        _extend(self._release_blockers, _block(release_blocker, (count,)))
        _extend(self._server_counts, _block(len(servers), (count,)))
        if servers:
            _extend(self._held_servers, np.stack(columns[::2], axis=1).ravel())
            _extend(self._occupancies, np.stack(columns[1::2], axis=1).ravel())
        return np.arange(begin, begin + count, dtype=np.int64)

    def add_dependencies(
        self, targets: ArrayLike, sources: ArrayLike, lag_ps: ArrayLike = 0
    ) -> None:
        """Let each target wait for its source to end and for the lag to pass.

        Args:
            targets: int[m] or one for all, tasks that wait.
            sources: int[m] or one for all, tasks waited for.
            lag_ps: int[m] or one for all.
        """
        shape = np.broadcast_shapes(np.shape(targets), np.shape(sources), np.shape(lag_ps), (1,))
        _extend(self._targets, _block(targets, shape))
        _extend(self._sources, _block(sources, shape))
        _extend(self._lags, _block(lag_ps, shape))

    def build(self) -> TaskGraph:
        """The graph so far; dependencies of a task in the order they were added.

        Raises:
            GraphError: a dependency was added to a task that does not exist.
        """
        targets = _taken(self._targets)
        if len(targets) and not 0 <= targets.min() <= targets.max() < len(self):
            raise GraphError(
                f"dependencies were added to tasks {targets.min()}..{targets.max()}; there are {len(self)} tasks"
            )
        order = np.argsort(targets, kind="stable")
        return TaskGraph(
            duration_ps=_taken(self._durations),
            release_ps=_taken(self._releases),
            release_blocker=_taken(self._release_blockers),
            server_offsets=offsets_of(_taken(self._server_counts)),
            server_ids=_taken(self._held_servers).astype(np.int32),
            occupancy_ps=_taken(self._occupancies),
            dependency_offsets=offsets_of(np.bincount(targets, minlength=len(self))),
            dependencies=_taken(self._sources)[order],
            lag_ps=_taken(self._lags)[order],
            in_order=np.array(self._in_order, np.bool_),
        )


def _block(values: ArrayLike, shape: tuple[int, ...]) -> I64:
    """Integers in the given shape; a float is refused, not cut off."""
    integers = np.asarray(values)
    if integers.size and integers.dtype.kind not in "iu":
        raise TypeError(f"expected integers, not {integers.dtype}")
    return np.broadcast_to(integers, shape).astype(np.int64)


def _extend(column: array[int], values: I64) -> None:
    column.frombytes(values.astype(column.typecode, casting="same_kind").tobytes())


def _taken(column: array[int]) -> I64:
    return np.array(column, np.int64)
