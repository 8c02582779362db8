"""How does a JAX program run that is too large to run? Compiled functions return arrays without values, which take no memory.

A fake array is a whole one of JAX with its sharding, all its shards views of one stretch of zeros that the system has promised but not given.
What is small and works on real arrays alone runs truly: random keys, counters, learning rates.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
from jax._src import core
from jax._src.sharding_impls import physical_sharding

SMALL_BYTES: Final = 16 << 20
"""A function on real arrays whose results are no larger, over all devices, runs truly."""


class FakeArrays:
    """Makes arrays of zeros."""

    def __init__(self) -> None:
        self._zeros = mmap.mmap(-1, mmap.PAGESIZE)
        self._shards: dict[tuple[Any, ...], Any] = {}

    def results(self, executed: Any) -> list[Any]:
        """What an ``ExecuteReplicated`` would return."""
        handler = executed.out_handler
        pairs = zip(handler.out_avals, handler.out_shardings, strict=True)
        return [self._array(aval, sharding) for aval, sharding in pairs]

    def _array(self, aval: Any, sharding: Any) -> Any:
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            base = self._array(core.physical_aval(aval), physical_sharding(aval, sharding))
            return jax.random.wrap_key_data(base, impl=aval.dtype._impl)
        shape = sharding.shard_shape(aval.shape)
        devices = sharding._addressable_device_assignment
        shards = [self._shard(shape, np.dtype(aval.dtype), device) for device in devices]
        return jax.make_array_from_single_device_arrays(aval.shape, sharding, shards)

    def _shard(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Any) -> Any:
        """A shard of one device; all of a shape, datatype and device are one."""
        key = (shape, dtype, device)
        if key not in self._shards:
            count = int(np.prod(shape, dtype=np.int64))
            nbytes = max(1, count * dtype.itemsize)
            if len(self._zeros) < nbytes:
                self._zeros = mmap.mmap(-1, nbytes)  # arrays keep the earlier one alive
            values = np.frombuffer(self._zeros, dtype, count).reshape(shape)
            self._shards[key] = jax.device_put(values, device)
        return self._shards[key]


def runs_truly(executed: Any, is_fed_fakes: bool) -> bool:
    """Whether a call is small enough, and knows all of its values.

    Args:
        executed: the ``ExecuteReplicated``.
        is_fed_fakes: one of its arguments is a fake array.
    """
    if executed.mut is not None:
        return True
    avals: Sequence[Any] = executed.out_handler.out_avals
    shardings: Sequence[Any] = executed.out_handler.out_shardings
    nbytes = 0
    for aval, sharding in zip(avals, shardings, strict=True):
        itemsize = getattr(aval.dtype, "itemsize", 8)
        nbytes += int(np.prod(sharding.shard_shape(aval.shape))) * itemsize * sharding.num_devices
    return not is_fed_fakes and nbytes <= SMALL_BYTES
