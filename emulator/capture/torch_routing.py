"""Which experts do the tokens of a fake run go to? Those of a chosen load: the choices of routers have values, though scores have none.

A router is taken to be a ``topk``, ``argmax`` or ``max`` over at most 1,024 scores of which nothing is known, in a module's forward.
What a program computes from the choices (counts, masks, sorted positions, split sizes) follows from them; what was never read did no harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from trnprof.emulator.capture.moe_load import (
    ROUTING_NOTE,
    MoeLoad,
    chosen_experts,
    tokens_per_expert,
)
from trnprof.emulator.capture.torch_known import MOST_ROUTED, Known, KnownValues
from trnprof.tracer.errors import CaptureError

_MOST_EXPERTS: Final = 1024
_MOST_NAMES: Final = 4


class Router(NamedTuple):
    """A router of the program: path of the module, experts, and choices of a token."""

    path: str
    experts: int
    choices: int


class Routing:
    """Gives the choices of routers values.

    Args:
        load: of the experts.
        known: takes the values.
        place: path of the module whose forward runs; None outside of all.
        refuse: ends the program: the load does not fit it.
    """

    def __init__(
        self,
        load: MoeLoad,
        known: KnownValues,
        place: Callable[[], str | None],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._load, self._known, self._place, self._refuse = load, known, place, refuse
        self._layers: dict[tuple[int, str], int] = {}
        self._chosen: dict[tuple[int, int, int, int], tuple[np.ndarray, float]] = {}
        self._busiest: dict[Router, float] = {}
        self._misfits: dict[Router, str] = {}
        self._read: dict[Router, None] = {}

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An operation has run: if it is a router, its choices get values."""
        asked = _asked(func, args, kwargs, out)
        if asked is None:
            return
        scores, indices, choices, dim = asked
        path = self._place()
        if path is None or not _are_scores(scores, dim, choices) or self._known.find(scores):
            return
        experts = scores.shape[dim]
        tokens = scores.numel() // experts
        if tokens * choices > MOST_ROUTED:
            return
        router = Router(path, experts, choices)
        chosen = self._choices(router, tokens)
        shape = [size for at, size in enumerate(scores.shape) if at != dim]
        with unset_fake_temporarily():
            values = torch.from_numpy(chosen.copy()).view(*shape, choices).movedim(-1, dim)
            values = values.reshape(indices.shape).contiguous()
            laid = torch.empty_strided(indices.shape, indices.stride(), dtype=torch.int64)
            laid.copy_(values)
        self._known.learn(indices, Known(laid, True, frozenset((router,))))

    def _choices(self, router: Router, tokens: int) -> np.ndarray:
        layer = self._layers.setdefault(
            (router.experts, router.path), sum(e == router.experts for e, _ in self._layers)
        )
        key = layer if len(self._load.layers) > 1 else 0, tokens, router.experts, router.choices
        if key not in self._chosen:
            try:
                shares = self._load.shares(layer, router.experts)
            except CaptureError as misfit:
                self._misfits[router] = str(misfit)
                shares = MoeLoad().shares(layer, router.experts)
            counts = tokens_per_expert(shares, tokens, router.choices)
            chosen = chosen_experts(counts, tokens, router.choices)
            self._chosen[key] = chosen, int(counts.max()) / (tokens * router.choices)
        chosen, self._busiest[router] = self._chosen[key]
        return chosen

    def read(self, routers: frozenset[Router]) -> None:
        """The program has read what follows from their choices."""
        for router in routers:
            if router in self._misfits:
                self._refuse(f"{self._misfits[router]} ({router.path or 'the model itself'})")
            self._read[router] = None

    def notes(self) -> list[str]:
        """What was assumed, if anything was read."""
        if not self._read:
            return []
        routers = list(self._read)
        kinds = dict.fromkeys(f"{r.choices} of {r.experts}" for r in routers)
        names = [r.path or "the model itself" for r in routers[:_MOST_NAMES]]
        more = [f"{len(routers) - _MOST_NAMES} more"] if len(routers) > _MOST_NAMES else []
        busiest = max(self._busiest[router] for router in routers)
        return [
            f"{ROUTING_NOTE}: sizes follow from a chosen load, not from data: --moe-load {self._load.text}, {len(routers)} router(s) "
            f"({', '.join(kinds)} experts: {', '.join(names + more)}), the busiest expert gets {busiest:.1%} of all choices; "
            "every rank is taken to route alike"
        ]


def _asked(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> tuple[Any, Any, int, int] | None:
    """Scores, the indices chosen, how many, and the dimension; None for other operators."""
    name = func._opname
    if name not in ("topk", "argmax", "max"):
        return None
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    scores = given["self"]
    dim = given.get("dim", -1)
    if dim is None or not isinstance(scores, FakeTensor) or not scores.dim():
        return None
    if name == "argmax":
        return scores, out, 1, dim % scores.dim()
    if func._overloadname == ("dim" if name == "max" else "default"):
        return scores, out[1], int(given.get("k", 1)), dim % scores.dim()
    return None


def _are_scores(scores: torch.Tensor, dim: int, choices: int) -> bool:
    experts: int = scores.shape[dim]
    is_float: bool = scores.dtype.is_floating_point
    return (
        is_float
        and 1 < experts <= _MOST_EXPERTS
        and 0 < choices <= experts
        and math.prod(scores.shape) > 0
    )
