"""What does JAX's ``op_name`` say? Module path and phase of an operation.

It is a path such as ``jit(step)/transpose(jvp(Model))/layers_0/mlp/dot_general``: transforms and the scopes that they were applied in, the scopes
of ``jax.named_scope`` (flax opens one a module), and the primitive.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_FRAMES: Final = frozenset(
    "while body cond closed_call core_call checkpoint remat rematted_computation custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr "
    "shard_map pjit xla_call named_call core_closed_call remat_call cond_branch".split()
)
_BRANCH: Final = re.compile(r"branch_\d+_fun|branch_\d+")
_WRAPPED: Final = re.compile(r"(\w+)\((.*)\)")
_DERIVATIVES: Final = ("jvp", "transpose", "vmap", "remat", "checkpoint")


@lru_cache(maxsize=1 << 14)
def module_path(op_name: str) -> str:
    """The scopes of an operation, joined by dots; "" outside of any."""
    scopes: list[str] = []
    for part in _split(op_name.split(";")[0])[:-1]:
        scopes += _split(_scope(part))
    return ".".join(s for s in scopes if s and s not in _FRAMES and not _BRANCH.fullmatch(s))


def is_backward(op_name: str) -> bool:
    """Whether an operation differentiates another (what is computed anew for it, too)."""
    return "transpose(" in op_name


def is_differentiated(op_name: str) -> bool:
    """Whether an operation belongs to the forward pass of what is differentiated."""
    return "jvp(" in op_name and not is_backward(op_name)


def _scope(part: str) -> str:
    """The scope in a transform: ``transpose(jvp(Model))`` is Model; a jitted function is none."""
    while found := _WRAPPED.fullmatch(part):
        if found[1] not in _DERIVATIVES:
            return ""
        part = found[2]
    return part


def _split(path: str) -> list[str]:
    """The parts of a path, slashes within parentheses left alone."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            parts.append(path[start:index])
            start = index + 1
    parts.append(path[start:])
    return parts
