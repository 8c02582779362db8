"""How do the steps of an algorithm become messages? A collector of whole steps, and a merger of the parts of a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.collectives.messages import Blocks, Messages
from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.tracer.errors import CollectiveError

MAX_MESSAGES: Final = 1 << 25
MAX_DEPENDENCIES: Final = 1 << 27
"""Of a collective: with both at their most, its arrays take about 2.5 GB."""


@dataclass(frozen=True)
class _Batch:
    """Messages added together: they are alike in all but who, when and which block."""

    source: I64
    target: I64
    step: I64
    first: I64
    dependencies: I64
    segments: int
    stride: int
    copies: int
    is_reduced: bool
    reads_hbm: bool
    writes_hbm: bool


@dataclass
class Steps:
    """Collects the messages of one part of the buffer. Ranks are numbered as suits the algorithm; ``positions`` says who they are.

    Attributes:
        positions: int32[ranks], the position in the group of each rank of the algorithm's numbering; segment i belongs to ``positions[i]``.
        segment_bytes: of each segment.
        is_whole: the part is one segment, which belongs to no rank.
        replicas: a folded group (see ``Group``) has so many ranks for each that is here.
        is_backward: the instances of a folded group are counted the other way round (0, -1, -2, …).
        count: messages so far, so the id of the next one.
    """

    positions: I32
    segment_bytes: int
    is_whole: bool = False
    replicas: int = 1
    is_backward: bool = False
    count: int = 0
    _dependencies: int = 0
    _batches: list[_Batch] = field(default_factory=list)

    @property
    def _ranks(self) -> str:
        ranks = f"{len(self.positions):,} ranks"
        return ranks if self.replicas == 1 else f"the {ranks} of one instance"

    def reserve(self, messages: int, dependencies: int) -> None:
        """Refuse what would not fit into memory, before anything is made.

        Raises:
            CollectiveError: too many messages or dependencies in all.
        """
        if self.count + messages > MAX_MESSAGES:
            raise CollectiveError(
                f"more than {MAX_MESSAGES:,} messages among {self._ranks}: "
                "choose an algorithm with fewer steps, or fewer ranks"
            )
        if self._dependencies + dependencies > MAX_DEPENDENCIES:
            raise CollectiveError(
                f"more than {MAX_DEPENDENCIES:,} dependencies between messages of {self._ranks}: "
                "choose ring or halving-doubling, or fewer ranks"
            )

    def add(
        self,
        step: int | I64,
        source: I64,
        target: I64,
        first: int | I64,
        dependencies: I64,
        *,
        segments: int = 1,
        stride: int = 1,
        copies: int = 1,
        is_reduced: bool = False,
        reads_hbm: bool = True,
        writes_hbm: bool = True,
    ) -> None:
        """Add messages, whose ids count on from ``count`` in C order.

        Args:
            step: of each; like source and first, broadcast to the shape of the targets, int64[...].
            source: rank of each sender.
            target: rank of each receiver; where the group is folded, its number among those of all instances.
            first: first segment that each carries.
            dependencies: int64[..., k], ids of messages; broadcast too.
            segments: how many each carries.
            stride: from one of its segments to the next.
            copies: of each segment (all_to_all: from how many ranks a message carries what it has for one).
            is_reduced: whether receivers add them.
            reads_hbm: see ``Messages``.
            writes_hbm: see ``Messages``.
        """
        shape = np.broadcast_shapes(target.shape, np.shape(step), np.shape(first))
        each = dependencies.shape[-1]
        self._batches.append(
            _Batch(
                np.broadcast_to(source, shape).ravel(),
                np.broadcast_to(target, shape).ravel(),
                np.broadcast_to(np.asarray(step, np.int64), shape).ravel(),
                np.broadcast_to(np.asarray(first, np.int64), shape).ravel(),
                np.broadcast_to(dependencies, (*shape, each)).reshape(prod(shape), each),
                segments,
                stride,
                copies,
                is_reduced,
                reads_hbm,
                writes_hbm,
            )
        )
        messages = len(self._batches[-1].source)
        self.count += messages
        self._dependencies += messages * each

    def messages(self) -> Messages:
        """All that was added, in the order of adding."""
        batches = self._batches
        counts = np.array([len(batch.source) for batch in batches], np.int64)
        segments = np.repeat(np.array([batch.segments for batch in batches], np.int64), counts)
        copies = np.array([batch.copies for batch in batches], np.int64)
        strides = np.array([batch.stride for batch in batches], np.int32)
        owners = np.zeros(0, np.int32) if self.is_whole else self.positions
        target, ranks = _joined([batch.target for batch in batches]), len(self.positions)
        each = np.array([batch.dependencies.shape[1] for batch in batches], np.int64)
        return Messages(
            source=self.positions[_joined([batch.source for batch in batches])],
            target=self.positions[target if self.replicas == 1 else target % ranks],
            bytes=segments * np.repeat(copies, counts) * self.segment_bytes,
            step=_joined([batch.step for batch in batches]).astype(np.int32),
            is_reduced=_flags([batch.is_reduced for batch in batches], counts),
            dependency_offsets=offsets_of(np.repeat(each, counts)),
            dependencies=_joined([batch.dependencies.ravel() for batch in batches]),
            blocks=Blocks(
                np.zeros(self.count, np.int32),
                _joined([batch.first for batch in batches]).astype(np.int32),
                np.repeat(strides, counts),
                segments.astype(np.int32),
                (owners,),
            ),
            reads_hbm=_flags([batch.reads_hbm for batch in batches], counts),
            writes_hbm=_flags([batch.writes_hbm for batch in batches], counts),
            whole_target=None if self.replicas == 1 else self._whole(target),
        )

    def _whole(self, target: I64) -> I64:
        """Numbers among the ranks of all instances, in the order of the group."""
        here = len(self.positions)
        instance = target // here
        if self.is_backward:
            instance = -instance % self.replicas
        return instance * here + self.positions[target % here]


def merge(parts: Sequence[Steps]) -> Messages:
    """The messages of parts of a buffer that run side by side, sorted by step and, within a step, by part.

    Raises:
        CollectiveError: too many messages or dependencies in all.
    """
    messages = sum(steps.count for steps in parts)
    for steps in parts:
        steps.reserve(messages - steps.count, 0)
    made = [steps.messages() for steps in parts]
    step = _joined([part.step for part in made])
    if len(made) == 1 and bool((np.diff(step) >= 0).all()):
        return made[0]
    order = np.argsort(step, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    firsts = np.cumsum([0, *(len(part) for part in made)])
    counts = np.concatenate([np.diff(part.dependency_offsets) for part in made])
    dependencies = place[
        _joined([part.dependencies + first for part, first in zip(made, firsts, strict=False)])
    ]
    offsets = offsets_of(counts[order])
    old = offsets_of(counts)[:-1][order] - offsets[:-1]
    gather = np.arange(len(dependencies)) + np.repeat(old, counts[order])
    blocks = [part.blocks for part in made if part.blocks is not None]
    return Messages(
        source=np.concatenate([part.source for part in made])[order],
        target=np.concatenate([part.target for part in made])[order],
        bytes=np.concatenate([part.bytes for part in made])[order],
        step=step[order].astype(np.int32),
        is_reduced=np.concatenate([part.is_reduced for part in made])[order],
        dependency_offsets=offsets,
        dependencies=dependencies[gather],
        blocks=Blocks(
            np.repeat(np.arange(len(made), dtype=np.int32), [len(part) for part in made])[order],
            np.concatenate([block.first for block in blocks])[order],
            np.concatenate([block.stride for block in blocks])[order],
            np.concatenate([block.count for block in blocks])[order],
            tuple(block.owners[0] for block in blocks),
        ),
        reads_hbm=np.concatenate([part.reads_hbm for part in made if part.reads_hbm is not None])[
            order
        ],
        writes_hbm=np.concatenate(
            [part.writes_hbm for part in made if part.writes_hbm is not None]
        )[order],
        whole_target=None
        if made[0].whole_target is None
        else _joined([part.whole_target for part in made if part.whole_target is not None])[order],
    )


def _joined(arrays: Sequence[NDArray[np.integer[Any]]]) -> I64:
    if not arrays:
        return np.zeros(0, np.int64)
    if len(arrays) == 1:
        return arrays[0].astype(np.int64, copy=False)
    return np.concatenate(arrays).astype(np.int64, copy=False)


def _flags(values: Sequence[bool], counts: I64) -> NDArray[np.bool_]:
    return np.repeat(np.array(values, np.bool_), counts)
