"""What did XLA compile? The module of one device, as it is after SPMD partitioning and before the host's compiler works on it.

Each compilation is asked to dump its module after the pass ``spmd-partitioning`` (XLA's own options ``xla_dump_to`` and ``xla_dump_hlo_pass_re``,
set for that compilation alone). There, collectives exist and operations still are the program's: what the CPU compiler does next (widening
bfloat16 to float32, fusing, calling its libraries) has no meaning for another device. A program for one device has no such pass and is taken
before all passes.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
from jax._src import compiler

from trnprof.emulator.capture.hlo.module import parse_module
from trnprof.emulator.capture.hlo.program import Program, program_of

_PASS: Final = "spmd-partitioning"
_LOADED: Final = "an executable was loaded, not compiled: its operations are those that the CPU compiler left of it"


@dataclass(frozen=True)
class Compiled:
    """An executable, and what one device does in it.

    Attributes:
        executable: XLA's; kept, so that its identity is not used again.
        program: of the captured device; None if it takes no part.
        devices: ids by position in replica groups.
    """

    executable: Any
    program: Program | None
    devices: tuple[int, ...]


@dataclass(frozen=True)
class _Found:
    """A compilation: the dumped module, devices [replicas][partitions]."""

    executable: Any
    module: bytes | None
    devices: tuple[int, ...]
    replicas: int


class Programs:
    """All programs of this process.

    Attributes:
        note: takes remarks.
    """

    def __init__(self, note: Callable[[str], object], device: int = 0) -> None:
        self.note = note
        self._device = device
        self._found: dict[int, _Found] = {}
        self._read: dict[int, Compiled] = {}

    def watch(self) -> None:
        """From now on keep the module of each compilation; none comes from a cache on disk."""
        jax.config.update("jax_enable_compilation_cache", False)
        compile_ = compiler.compile_or_get_cached

        @functools.wraps(compile_)
        def dumping(
            backend: Any, computation: Any, devices: Any, options: Any, *args: Any, **kwargs: Any
        ) -> Any:
            overrides = list(options.env_option_overrides)
            with tempfile.TemporaryDirectory(prefix="trnprof-hlo-") as folder:
                options.env_option_overrides = overrides + _dump_options(folder)
                try:
                    made = compile_(backend, computation, devices, options, *args, **kwargs)
                finally:
                    options.env_option_overrides = overrides
                numbers = tuple(int(d.id) for d in devices.flatten())
                found = _Found(made, _dumped(Path(folder)), numbers, int(options.num_replicas))
            self._found[id(made)] = found
            self._read.pop(id(made), None)
            return made

        compiler.compile_or_get_cached = dumping

    def of(self, executable: Any) -> Compiled:
        """What an executable does.

        Raises:
            CaptureError: its module cannot be read.
        """
        known = self._read.get(id(executable))
        if known is None:
            known = self._read[id(executable)] = self._compiled(executable)
        return known

    def _compiled(self, executable: Any) -> Compiled:
        found = self._found.pop(id(executable), None)
        if found is None:
            numbers = tuple(int(d.id) for d in executable.local_devices())
            found = _Found(executable, None, numbers, 1)
        if self._device not in found.devices:
            return Compiled(executable, None, found.devices)
        if found.module is None:
            self.note(_LOADED)
            data = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
        else:
            data = found.module
        module = parse_module(data, is_hlo=found.module is not None)
        partitions = len(found.devices) // found.replicas
        rank = found.devices.index(self._device)
        program = program_of(module, found.replicas, partitions, rank)
        for text in program.notes:
            self.note(text)
        return Compiled(executable, program, found.devices)


def _dump_options(folder: str) -> list[tuple[str, Any]]:
    return [
        ("xla_dump_to", folder),
        ("xla_dump_hlo_pass_re", _PASS),
        ("xla_dump_hlo_as_proto", True),
        ("xla_dump_hlo_as_text", False),
    ]


def _dumped(folder: Path) -> bytes | None:
    """The module after partitioning, or before all passes where there is nothing to partition."""
    for pattern in (f"*.after_{_PASS}*.hlo.pb", "*.before_optimizations.hlo.pb"):
        files = sorted(folder.glob(pattern))
        if files:
            return files[-1].read_bytes()
    return None
