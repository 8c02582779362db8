"""What do ranks hear when they exchange Python objects? From ranks that are each played what those say, from all others what this rank says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from trnprof.emulator.capture.torch_messages import Messages


class Objects:
    """The object collectives of torch.distributed, without communication."""

    def __init__(
        self,
        messages: Messages | None,
        note: Callable[[str], object],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._messages = messages
        self._note = note
        self._refuse = refuse

    def replacements(self) -> Iterator[tuple[Any, Any]]:
        """Each function of torch with what takes its place."""
        for name in (
            "all_gather_object",
            "gather_object",
            "broadcast_object_list",
            "scatter_object_list",
            "send_object_list",
            "recv_object_list",
        ):
            original = getattr(dist, name)
            yield original, functools.wraps(original)(functools.partial(getattr(self, name)))

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        """Everybody hears everybody."""
        self._gather("all_gather_object", obj, object_list, group)

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        """One hears everybody."""
        self._gather("gather_object", obj, object_gather_list, group)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Everybody hears one."""
        said = self._from_one("broadcast_object_list", object_list, src, group, group_src)
        if said is not None:
            object_list[:] = said

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Everybody hears a part of what one says."""
        given = scatter_object_input_list
        said = self._from_one("scatter_object_list", given, src, group, group_src)
        if said is not None:
            scatter_object_output_list[0] = said[dist.get_rank(group)]
        elif given:
            scatter_object_output_list[0] = given[0]

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        group_dst: int | None = None,
        use_batch: bool = False,
    ) -> None:
        """One other hears this rank."""
        messages = self._between_two("send_object_list")
        group = c10d._group_or_default_group(group)
        target = c10d._canonicalize_group_rank(group, dst, group_dst, return_global=True)
        messages.differ(group)
        messages.post_objects("send_object_list", group, object_list, target)

    def recv_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        use_batch: bool = False,
    ) -> int:
        """This rank hears one other; waits for it."""
        messages = self._between_two("recv_object_list")
        group = c10d._group_or_default_group(group)
        if src is None and group_src is None:
            self._refuse("recv_object_list from any rank: name the rank that sends")
        source: int = c10d._canonicalize_group_rank(group, src, group_src, return_global=True)
        messages.differ(group)
        own = dist.get_rank()
        object_list[:] = messages.read_objects("send_object_list", group, source, own)
        return source

    def _between_two(self, name: str) -> Messages:
        if self._messages is None:
            self._refuse(f"{name} talks to another rank, but the world has only one")
        return self._messages

    def _gather(self, kind: str, own: Any, gathered: list[Any] | None, group: Any) -> None:
        messages = self._messages
        ranks = dist.get_process_group_ranks(c10d._group_or_default_group(group))
        if messages is not None:
            messages.post_objects(kind, group, own)
        if gathered is None:
            return
        for position, rank in enumerate(ranks):
            gathered[position] = own
            if messages is not None and messages.is_played(rank):
                gathered[position] = messages.read_objects(kind, group, rank)
            elif rank != dist.get_rank():
                self._note(
                    f"{kind}: ranks that are not played were taken to give what this one gives"
                )
                if messages is not None:
                    messages.skip_objects(kind, group, rank)

    def _from_one(
        self, kind: str, own: Any, src: int | None, group: Any, group_src: int | None
    ) -> Any:
        """What the one who speaks says; None where nobody can be asked, or it is this rank."""
        group = c10d._group_or_default_group(group)
        given = 0 if src is None and group_src is None else src
        source = c10d._canonicalize_group_rank(group, given, group_src, return_global=True)
        messages = self._messages
        if messages is not None and source == dist.get_rank():
            messages.post_objects(kind, group, own)
        elif messages is not None and messages.is_played(source):
            return messages.read_objects(kind, group, source)
        elif source != dist.get_rank():
            if messages is not None:
                messages.skip_objects(kind, group, source)
            self._note(
                f"{kind}: rank {source} is not played, and was taken to give what this one gives"
            )
        return None
