"""Which messages are a permute, or a send and its receive?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.fabric.fabric import I64


def permute(ranks: int, bytes: int, replicas: int = 1) -> Messages:
    """Every position sends the buffer to the next one, the last to the first; no messages where there is one rank.

    Args:
        ranks: of the group.
        bytes: of the buffer.
        replicas: how many times the group is folded (see ``Group``).
    """
    here = ranks // replicas
    source = np.arange(here if ranks > 1 else 0)
    target = (source + 1) % ranks
    messages = independent(source, target % here, np.full(len(source), bytes))
    return messages if replicas == 1 else replace(messages, whole_target=target)


def send_recv(ranks: int, bytes: int, root: int) -> Messages:
    """The root sends the buffer to the next position; no message where there is one rank."""
    source = np.full(1 if ranks > 1 else 0, root)
    return independent(source, (source + 1) % ranks, np.full(len(source), bytes))


def independent(source: I64, target: I64, bytes: I64) -> Messages:
    """Messages that wait for nothing, in one step."""
    count = len(source)
    return Messages(
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        bytes=bytes.astype(np.int64),
        step=np.zeros(count, np.int32),
        is_reduced=np.zeros(count, np.bool_),
        dependency_offsets=np.zeros(count + 1, np.int64),
        dependencies=np.zeros(0, np.int64),
    )
