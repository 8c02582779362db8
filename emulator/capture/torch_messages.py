"""What do ranks that are each played tell each other? Objects, and values of small tensors; and from what is it seen that ranks differ.

Ranks of a group differ if a stage of a pipeline is made for it, if an object or a value is received from one of it, or if what is sent
around it does not go as far along the group as what is received. In a group of two that cannot be told: the other one is played too.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from trnprof.emulator.capture.peers import MOST_PLAYED, PeerEndedError, Peers, Siblings
from trnprof.emulator.capture.torch_collectives import Asked, asked, spec_of
from trnprof.emulator.capture.torch_groups import Groups, siblings
from trnprof.emulator.capture.torch_known import KnownValues, is_small
from trnprof.emulator.collectives.messages import SEND_RECV

Ranks = tuple[int, ...]


class Messages:
    """Messages from one rank to another.

    Attributes:
        number: of the latest one, among those from its sender to its receiver.
    """

    def __init__(
        self, peers: Peers, groups: Callable[[], Groups | None], refuse: Callable[[str], NoReturn]
    ) -> None:
        self.number = 0
        self._peers = peers
        self._groups = groups
        self._refuse = refuse
        self._numbers: Counter[str] = Counter()
        self._shifts: Counter[tuple[Ranks, int, int]] = Counter()
        self._siblings: dict[Ranks, Siblings] = {}

    def follow(self, func: Any, args: tuple[Any, ...], known: KnownValues) -> None:
        """An operator has run: if it sends or receives, number the message, and pass on values that are known."""
        spec = spec_of(func.namespace, func._opname)
        if spec is None or spec.kind != SEND_RECV:
            return
        call = asked(spec, args)
        if call.kind != SEND_RECV:
            return
        ranks = dist.get_process_group_ranks(call.group)
        source, target = ranks[call.root], ranks[call.target]
        channel = f"values {tuple(ranks)} {source}>{target}"
        self.number = self._numbers[channel]
        self._numbers[channel] += 1
        self._count(call)
        (tensor,) = args[spec.reads[0] if spec.reads else spec.writes[0]]
        if not is_small(tensor) or len(ranks) > MOST_PLAYED:
            return
        if spec.reads:
            found = known.find(tensor)
            with unset_fake_temporarily():
                self._peers.post(channel, b"" if found is None else _bytes_of(found.values))
        else:
            self._expect(tensor, call.group, channel, source, known)

    def differ(self, group: Any) -> None:
        """The ranks of a group do each something else."""
        ranks = self._known(group)
        self._peers.differ(ranks, self._siblings[ranks])

    def decide(self) -> None:
        """What was sent and received by now must have gone as far along its group."""
        for ranks in {ranks for (ranks, _, _), count in self._shifts.items() if count}:
            self._peers.differ(ranks, self._siblings[ranks])
        self._shifts.clear()

    def post_objects(self, kind: str, group: Any, objects: Any, target: int = -1) -> None:
        """Leave objects for a rank, or for all of a group."""
        try:
            with unset_fake_temporarily():
                data = pickle.dumps(objects)
        except Exception:  # what cannot be sent matters only if somebody waits for it
            data = b""
        self._peers.post(_channel(kind, group, self._peers.rank, target), data)

    def read_objects(self, kind: str, group: Any, source: int, target: int = -1) -> Any:
        """What a rank left; waits for it."""
        channel = _channel(kind, group, source, target)
        data = self._wait(channel, self._peers.skip(channel), source)
        if not data:
            self._refuse(f"{kind}: rank {source} gives an object that cannot be pickled")
        with unset_fake_temporarily():
            return pickle.loads(data)

    def skip_objects(self, kind: str, group: Any, source: int) -> None:
        """What a rank leaves is not read this time."""
        self._peers.skip(_channel(kind, group, source, -1))

    def is_played(self, rank: int) -> bool:
        """Whether another rank runs on its own, so that it can be asked."""
        return rank != self._peers.rank and self._peers.is_played(rank)

    def _known(self, group: Any) -> Ranks:
        """Ranks of a group, whose siblings are kept: a program may end its groups before it ends."""
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._siblings:
            groups = self._groups()
            self._siblings[ranks] = siblings(groups.made if groups is not None else [ranks], ranks)
        return ranks

    def _count(self, call: Asked) -> None:
        """Note how far along its group a message goes; ranks of a group of two are taken to differ."""
        size = call.group.size()
        if size == 2:
            self.differ(call.group)
            return
        shift = (call.target - call.root) % size
        sent = 1 if call.root == call.group.rank() else -1
        self._shifts[self._known(call.group), shift, call.nbytes] += sent

    def _expect(
        self, tensor: torch.Tensor, group: Any, channel: str, source: int, known: KnownValues
    ) -> None:
        """Values of a received tensor are fetched when they are asked for."""
        number, dtype = self._peers.skip(channel), tensor.dtype
        shape = tuple(tensor.shape)

        def fetch() -> torch.Tensor | None:
            self.differ(group)
            data = self._wait(channel, number, source)
            return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else None

        known.expect(tensor, fetch)

    def _wait(self, channel: str, number: int, source: int) -> bytes:
        try:
            return self._peers.read(channel, number, source)
        except PeerEndedError as failure:
            self._refuse(str(failure))


def _bytes_of(values: torch.Tensor) -> bytes:
    flat = values.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def _channel(kind: str, group: Any, source: int, target: int) -> str:
    return f"{kind} {tuple(dist.get_process_group_ranks(group))} {source}>{target}"
