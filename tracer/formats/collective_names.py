"""Which kernels are collectives by their names, and what do these names say: the operation, algorithm and datatype?

For profiles that do not say it themselves. Further names are taken from the environment:
``TRNPROF_COLLECTIVE_KERNELS='my_allgather|fused_moe_dispatch'``, a regular expression.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnprof.tracer.errors import ProfileError

COLLECTIVE_KERNELS: Final = (
    r"(?i)\b(nccl|rccl|hccl|msccl|oneccl)\w*Kernel|ncclDevKernel|ncclKernel|mscclKernel|ncclSymk"
    r"|deep_ep|\b(inter|intra)node(_ll)?::|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nvshmem|rocshmem"
)
GENERATED_KERNELS: Final = r"^triton_(poi|per|red|tem|for)_fused_"
"""Kernels that a compiler made and named after the operators around: no collectives, whatever their names hold."""
VARIABLE: Final = "TRNPROF_COLLECTIVE_KERNELS"
POINT_TO_POINT: Final = ("Send", "Recv", "SendRecv")
"""Operations between two ranks: they end at different times on each, and have no ordinal in their group."""

# ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…) since 2.19, ncclKernel_AllReduce_RING_LL_Sum_float(…) before
_OPERATION: Final = r"(?i)(?:nccl|rccl|hccl|msccl)(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAllPivot|AllToAll)"
_FUNCTION: Final = r"^(?:void )?((?:\(anonymous namespace\)|[^<(])+)"
_MAX_FUNCTION: Final = 80
_ALGORITHM: Final = r"_((?:RING|TREE|COLLNET|NVLS|PAT)[A-Z0-9_]*?)(?:_[A-Z][a-z]|[^A-Za-z0-9_]|$)"
_DTYPE: Final = r"_(?:Sum|Prod|Min|Max|MinMax|Avg|PreMulSum|SumPostDiv)_([a-z]+\d*(?:_e\dm\d|_t)?)"
_DTYPES: Final = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
}


def collective_kernels() -> str:
    """Regular expression of kernels of collectives, with the names that the user adds.

    Raises:
        ProfileError: what the user adds is no regular expression.
    """
    added = os.environ.get(VARIABLE, "").strip()
    if not added:
        return COLLECTIVE_KERNELS
    try:
        pc.match_substring_regex(pa.array([""]), added)
    except pa.ArrowInvalid as error:
        raise ProfileError(f"{VARIABLE}={added!r} is no regular expression: {error}") from error
    return f"{COLLECTIVE_KERNELS}|{added}"


def is_collective_kernel(names: pa.StringArray, pattern: str | None = None) -> NDArray[np.bool_]:
    """Which names are of kernels of collectives; none is where there is no name.

    Args:
        names: of kernels.
        pattern: what ``collective_kernels`` gave, if it was asked already.

    Raises:
        ProfileError: what the user adds is no regular expression.
    """
    matches = pc.match_substring_regex(names, collective_kernels() if pattern is None else pattern)
    generated = pc.match_substring_regex(names, GENERATED_KERNELS)
    found: NDArray[np.bool_] = (
        pc.and_not(matches, generated).fill_null(False).to_numpy(zero_copy_only=False)
    )
    return found


def kernel_operation(kernel: pl.Expr) -> pl.Expr:
    """The collective that kernels of NCCL, RCCL and their kin are named after, such as ``AllReduce``; null where the name has none.

    >>> names = pl.Series(["ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE(ncclDevComm*)", "ncclDevKernel_Generic(ncclDevComm*)"])
    >>> pl.select(kernel_operation(pl.lit(names))).to_series().to_list()
    ['ReduceScatter', None]
    """
    return kernel.str.extract(_OPERATION)


def kernel_function(kernel: pl.Expr) -> pl.Expr:
    """The name of kernels without template arguments and parameters, cut to 80 characters.

    >>> names = pl.Series(["void deep_ep::dispatch<8>(int*)", "(anonymous namespace)::gather(int)"])
    >>> pl.select(kernel_function(pl.lit(names))).to_series().to_list()
    ['deep_ep::dispatch', '(anonymous namespace)::gather']
    """
    return kernel.str.extract(_FUNCTION).str.slice(0, _MAX_FUNCTION)


def kernel_algorithm(kernel: pl.Expr) -> pl.Expr:
    """Algorithm and protocol in the names of kernels, such as ``RING_LL128``; null where there is none.

    >>> names = pl.Series(["ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm*)", "ncclKernel_AllReduce_RING_LL_Sum_float()"])
    >>> pl.select(kernel_algorithm(pl.lit(names))).to_series().to_list()
    ['TREE_LL', 'RING_LL']
    """
    return kernel.str.extract(_ALGORITHM)


def kernel_dtype(kernel: pl.Expr) -> pl.Expr:
    """Datatype in the names of kernels, as PyTorch calls it; null where there is none.

    >>> names = pl.Series(["ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t()"])
    >>> pl.select(kernel_dtype(pl.lit(names))).to_series().to_list()
    ['bfloat16', 'int8']
    """
    return kernel.str.extract(_DTYPE).str.strip_suffix("_t").replace(_DTYPES)
