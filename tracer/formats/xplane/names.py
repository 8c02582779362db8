"""What kind of work is an XLA operation or a GPU activity, by its name and HLO category?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_COLLECTIVE: Final = re.compile(
    r"^%?(?:async-)?(?:ragged-)?(?:all-?reduce|all-?gather|reduce-?scatter|all-?to-?all|collective|partition-?broadcast|send|recv)(?![a-z])"
    r"|nccl|rccl|nvshmem|rocshmem|cross[ _-]?replica|megascale",
    re.IGNORECASE,
)
_COPY: Final = re.compile(
    r"^%?(?:async-)?(?:copy|slice-(?:start|done)|dynamic-(?:update-)?slice-(?:start|done)|infeed|outfeed|memcpy|memset|host-transfer|buffer-transfer)(?:[-._ \d]|$|[A-Z0-9])"
    r"|^host (?:send|recv)|rocclr_(?:copy|fill)buffer|^memory_?(?:copy|set)",
    re.IGNORECASE,
)
_CONTROL_FLOW: Final = re.compile(r"^%?(?:while|conditional|call)(?:[.\d]*)$")
_SYNC: Final = re.compile(r"^%?(?:dependency-wait|barrier|semaphore|sync)", re.IGNORECASE)
_MATMUL: Final = re.compile(r"convolution|\bdot\b|matmul|gemm", re.IGNORECASE)
_SHAPE: Final = re.compile(r"\b(pred|bf16|[sufc]\d+(?:e\d+m\d+[a-z]*)?|f8e\w+)\[([\d,]*)\]")
_OPCODE: Final = re.compile(r"\s([a-z][a-z0-9-]*)\(")
_DTYPES: Final = {"bf16": "bfloat16", "pred": "bool"}
_LETTERS: Final = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
_HLO_CHARACTERS: Final = 4096
_MEMCPY: Final = {
    "h2d": ("host", "hbm"),
    "htod": ("host", "hbm"),
    "d2h": ("hbm", "host"),
    "dtoh": ("hbm", "host"),
    "d2d": ("hbm", "hbm"),
    "dtod": ("hbm", "hbm"),
    "p2p": ("hbm", "remote"),
    "ptop": ("hbm", "remote"),
    "h2h": ("host", "host"),
    "infeed": ("host", "hbm"),
    "outfeed": ("hbm", "host"),
}


@dataclass(frozen=True)
class Shapes:
    """Operands of an HLO instruction: their shapes and datatypes as texts, and the datatype that decides the peak."""

    shapes: str | None = None
    dtypes: str | None = None
    dtype: str | None = None


def device_category(name: str, hlo_category: str = "", hlo_op: str = "") -> str:
    """The category of what runs on a device.

    Args:
        name: of the event: an HLO instruction or a kernel.
        hlo_category: XLA's own class of it, where it is known.
        hlo_op: HLO instruction that a kernel implements.

    >>> device_category("all-reduce-start.3"), device_category("copy-done.1"), device_category("fusion.2")
    ('collective', 'dma', 'compute')
    >>> device_category("fusion.9", "all-reduce fusion"), device_category("send.1", "host send")
    ('collective', 'dma')
    """
    for word in (hlo_category, hlo_op, name):
        if _COPY.search(word):
            return "dma"
        if _COLLECTIVE.search(word):
            return "collective"
    return "sync" if _SYNC.search(name) else "compute"


def is_control_flow(name: str, hlo_category: str) -> bool:
    """Whether it encloses the operations that do the work, whose figures it must not repeat."""
    return hlo_category in ("while", "conditional", "call") or bool(_CONTROL_FLOW.match(name))


def memories(name: str) -> tuple[str | None, str | None]:
    """From where to where a copy goes, by its name.

    >>> memories("MemcpyH2D"), memories("infeed.3"), memories("fusion")
    (('host', 'hbm'), ('host', 'hbm'), (None, None))
    """
    lowered = name.lower()
    for word, places in _MEMCPY.items():
        if word in lowered and (word.endswith("feed") or "memcpy" in lowered or "kind:" in lowered):
            return places
    return None, None


def operands(hlo: str, hlo_category: str) -> Shapes:
    """What an HLO instruction, printed in full, reads.

    >>> operands("%f.1 = f32[8]{0} fusion(bf16[8,2]{1,0} %p, s32[] %q), kind=kLoop", "convolution fusion")
    Shapes(shapes='[8, 2], []', dtypes='bfloat16, int32', dtype='bfloat16')
    """
    text = hlo[:_HLO_CHARACTERS]
    opcode = _OPCODE.search(text)
    if not text.startswith("%") or opcode is None:
        return Shapes()
    found = _SHAPE.findall(text, opcode.end())
    if not found:
        return Shapes()
    shapes = ", ".join(f"[{dimensions.replace(',', ', ')}]" for _, dimensions in found)
    dtypes = [dtype_name(dtype) for dtype, _ in found]
    is_matmul = bool(_MATMUL.search(hlo_category) or _MATMUL.search(opcode[1]))
    return Shapes(shapes, ", ".join(dtypes), dtypes[0] if is_matmul else None)


def dtype_name(hlo_dtype: str) -> str:
    """A datatype as trnprof calls it.

    >>> dtype_name("bf16"), dtype_name("s32"), dtype_name("f8e4m3fn")
    ('bfloat16', 'int32', 'float8_e4m3fn')
    """
    if hlo_dtype in _DTYPES:
        return _DTYPES[hlo_dtype]
    letter, bits, rest = hlo_dtype[0], re.match(r"\d+", hlo_dtype[1:]), ""
    size = bits[0] if bits else ""
    rest = hlo_dtype[1 + len(size) :]
    return f"{_LETTERS.get(letter, letter)}{size}{'_' + rest if rest else ''}"


def source_line(source: object) -> tuple[str | None, int | None]:
    """File and line of ``path/file.py:12``, with or without a column behind it.

    >>> source_line("a/b.py:12"), source_line("a.py:3:7"), source_line("a.py"), source_line(None)
    (('a/b.py', 12), ('a.py', 3), ('a.py', None), (None, None))
    """
    if not isinstance(source, str) or not source:
        return None, None
    found = re.fullmatch(r"(.+?):(\d{1,9})(?::\d+)?(?:-.*)?", source)
    return (found[1], int(found[2])) if found else (source, None)


def number_of(stats: Mapping[str, object], *names: str) -> float | int | None:
    """The first of some statistics that is a number."""
    for name in names:
        value = stats.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None
