"""Which loop of the program goes round, where no marker says so: one that generates tokens, or one over batches of a DataLoader?

A method named ``generate`` of a module that calls this module again and again is such a loop, whoever wrote it: each call is a
step, the first of them the prefill. What these loops mark are cuts: they count when nothing better has marked steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data


class _Generation:
    """One call of ``generate``.

    Attributes:
        owner: the module whose method it is.
        begun: a forward has begun: of the owner, or of a part of it, such as an encoder.
        calls: forwards of the owner so far.
    """

    def __init__(self, owner: torch.nn.Module) -> None:
        self.owner = owner
        self.begun = False
        self.calls = 0


class Loops:
    """Turns forwards in a generating loop, and batches, into cuts.

    Args:
        cut: takes the kind of a cut and the label of the step that begins.
        is_watched: whether the thread that calls is the recorded one.
    """

    def __init__(self, cut: Callable[[str, str], object], is_watched: Callable[[], bool]) -> None:
        self._cut = cut
        self._is_watched = is_watched
        self._running: list[_Generation] = []
        self._has_generated = False
        self._classes: set[type] = set()
        self._wrapped: set[Any] = set()

    def install(self) -> None:
        """From now on."""
        self._patch_generate()
        self._patch_loader()

    def before_forward(self, module: torch.nn.Module) -> None:
        """The forward of an outermost module begins."""
        if not self._running:
            if self._has_generated:
                self._cut("generate", "")
            return
        loop = self._running[-1]
        is_owner = module is loop.owner
        if not loop.begun:
            loop.begun = self._has_generated = True
            self._cut("generate", "prefill")
        elif is_owner and loop.calls:
            self._cut("generate", f"decode {loop.calls}")
        loop.calls += is_owner

    def _patch_generate(self) -> None:
        """Wrap the method of each class of modules when the first of them is made."""
        init = torch.nn.Module.__init__

        @functools.wraps(init)
        def reported_init(module: Any, *args: Any, **kwargs: Any) -> None:
            kind = type(module)
            if kind not in self._classes:
                self._classes.add(kind)
                self._wrap(kind)
            init(module, *args, **kwargs)

        torch.nn.Module.__init__ = reported_init

    def _wrap(self, kind: type) -> None:
        owner = next((base for base in kind.__mro__ if "generate" in vars(base)), None)
        generate = None if owner is None else vars(owner)["generate"]
        if owner is None or not callable(generate) or generate in self._wrapped:
            return

        @functools.wraps(generate)
        def reported_generate(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_watched():
                return generate(module, *args, **kwargs)
            self._running.append(_Generation(module))
            try:
                return generate(module, *args, **kwargs)
            finally:
                self._running.pop()

        self._wrapped.add(reported_generate)
        owner.generate = reported_generate  # type: ignore[attr-defined]

    def _patch_loader(self) -> None:
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        following = iterator.__next__

        @functools.wraps(following)
        def reported_next(batches: Any) -> Any:
            batch = following(batches)
            if self._is_watched():
                self._cut("loader", "")
            return batch

        iterator.__next__ = reported_next
