"""What does an operator's schema say: its name, what it writes, whether it moves data, which arguments matter?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from trnprof.emulator.capture.torch_collectives import Spec, only_waits, spec_of
from trnprof.emulator.capture.torch_tensors import DTYPE_NAMES

_OVERWRITES: Final = frozenset(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ geometric_ cauchy_ "
    "_foreach_copy_ _foreach_zero_".split()
)
"""In-place operators that do not read what they overwrite."""
_WRITES_UNTOLD: Final = {"fsdp::all_gather_copy_in": (1,)}
"""Positions of arguments that an operator overwrites although its schema does not say so."""
_NO_DATA: Final = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted _unsafe_view lift_fresh "
    "detach_ set_ resize_ record_stream _make_dep_token".split()
)
"""Operators that move no data although their schema does not say so."""
_SKIPPED_ARGUMENTS: Final = frozenset(
    "layout device pin_memory memory_format generator non_blocking implicit out self".split()
)
_LONGEST_LIST: Final = 16


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator overload.

    Attributes:
        name: without namespace for aten.
        is_view: moves no data.
        writes: positions of arguments it writes.
        reads_not: positions of arguments it writes without reading.
        writes_keywords: keyword arguments it writes (``out``): not read either.
        arguments: name of each positional argument to keep, "" for one that is not kept.
        is_composite: made of other operators, which reach the capture only if it is taken apart.
        is_metadata: asks about a tensor, touches no data.
        packet: what the FLOP registry knows it by.
        collective: how to read what it asks of other ranks, None if it asks nothing.
        positions: names of all positional arguments; kept of collectives only.
    """

    name: str
    is_view: bool = False
    writes: tuple[int, ...] = ()
    reads_not: tuple[int, ...] = ()
    writes_keywords: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    is_composite: bool = False
    is_metadata: bool = False
    packet: Any = None
    collective: Spec | None = None
    positions: tuple[str, ...] = ()


def describe(func: Any) -> Operator:
    """What is to be known about an operator; cache it, it takes some microseconds."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Operator(f"higher_order::{func}")
    namespace, name = func.namespace, func._opname
    if (
        namespace == "prim"
    ):  # asked of fake tensors from places in torch that no exception may leave
        return Operator(name, is_metadata=True)
    spec = spec_of(namespace, name)
    if spec is not None:
        return _collective(f"{namespace}::{name}", schema, spec)
    full_name = name if namespace == "aten" else f"{namespace}::{name}"
    untold = _WRITES_UNTOLD.get(full_name, ())
    written = [i for i, a in enumerate(schema.arguments) if _is_written(a) or i in untold]
    positional = tuple(i for i in written if not schema.arguments[i].kwarg_only)
    returned = [r.alias_info for r in schema.returns]
    aliases = bool(returned) and all(a is not None and not a.is_write for a in returned)
    return Operator(
        name=full_name,
        is_view=aliases
        or name in _NO_DATA
        or torch.Tag.inplace_view in func.tags
        or only_waits(namespace, name),
        writes=positional,
        reads_not=positional if name in _OVERWRITES else untold,
        writes_keywords=tuple(schema.arguments[i].name for i in written if i not in positional),
        arguments=tuple("" if a.name in _SKIPPED_ARGUMENTS else a.name for a in schema.arguments),
        is_composite=torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ),
        is_metadata=not _handles_tensors(schema),
        packet=func._overloadpacket,
    )


def _collective(name: str, schema: Any, spec: Spec) -> Operator:
    """An operator of a collective: what it reads and writes, its specification says, for schemas of c10d do not."""
    return Operator(
        name=name,
        writes_keywords=tuple(a.name for a in schema.arguments if a.kwarg_only and _is_written(a)),
        collective=spec,
        positions=tuple(a.name for a in schema.arguments if not a.kwarg_only),
    )


def kept_arguments(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments that are no tensors, as JSON values; long lists, devices and the like are left out."""
    kept = {}
    for name, value in zip(operator.arguments, args, strict=False):
        if name and not isinstance(value, torch.Tensor) and value is not None:
            kept[name] = _json_value(value)
    for name, value in kwargs.items():
        if name not in _SKIPPED_ARGUMENTS and not isinstance(value, torch.Tensor):
            kept[name] = _json_value(value)
    return {name: value for name, value in kept.items() if value is not None}


def _json_value(value: Any) -> Any:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | torch.SymInt):
        return int(value)
    if isinstance(value, float):
        return value if value - value == 0.0 else None  # JSON has no infinity
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    if isinstance(value, list | tuple) and 0 < len(value) <= _LONGEST_LIST:
        items = [_json_value(item) for item in value]
        return items if all(item is not None for item in items) else None
    return None


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _handles_tensors(schema: Any) -> bool:
    """Whether it returns or writes tensors, or reads data out of one."""
    if schema.name in ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"):
        return True
    if any("Tensor" in str(r.type) for r in schema.returns):
        return True
    return any(_is_written(a) for a in schema.arguments)
