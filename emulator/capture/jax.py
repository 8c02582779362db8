"""How is a JAX program captured from inside its own process? Each compilation and each call of what was compiled is seen.

JAX calls compiled functions from C++ once it has seen them; that short cut is closed here, so that each call passes
``ExecuteReplicated.__call__``. The four places of JAX's inside that this needs are named in ``_places``, and were the same in all versions that
were tried (docs/recording.md).
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from trnprof.emulator.capture.calls import CALL
from trnprof.emulator.capture.hlo.program import Program
from trnprof.emulator.capture.host_spans import HostSpans
from trnprof.emulator.capture.jax_arrays import Arrays, array_of
from trnprof.emulator.capture.jax_fake import FakeArrays, runs_truly
from trnprof.emulator.capture.jax_groups import mesh_of, process_group
from trnprof.emulator.capture.jax_programs import Compiled, Programs
from trnprof.emulator.capture.jax_rows import Template
from trnprof.emulator.capture.launch_settings import Settings, write_state
from trnprof.emulator.capture.log import CaptureLog
from trnprof.emulator.capture.steps import Steps
from trnprof.emulator.capture.store import Row
from trnprof.emulator.workload import TensorRef
from trnprof.tracer import recorder
from trnprof.tracer.errors import CaptureError

MINIMUM: Final = (0, 6, 0)
"""The oldest JAX that was tried."""
_DEVICES: Final = "--xla_force_host_platform_device_count"
_RANK: Final = 0
_FAKE: Final = (
    "large functions of JAX were compiled but not run: values that the program asked for are 0"
)


def start_capture(settings: Settings) -> JaxCapture:
    """Watch this process from now on, until it ends.

    Raises:
        CaptureError: this version of JAX cannot be watched.
    """
    capture = JaxCapture(settings)
    capture.install()
    return capture


class JaxCapture:
    """The capture of this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log = CaptureLog(settings.trace_dir)
        self.programs = Programs(self.log.note, _RANK)
        self.arrays = Arrays()
        self.steps = Steps(self._end_step)
        self.spans = HostSpans(settings.trace_dir)
        self.state = "ready"  # then recording, or off
        self._templates: dict[int, Template] = {}
        self._groups: dict[tuple[Any, ...], int] = {}
        self._roles: set[int] = set()
        self._fakes: Any = FakeArrays() if settings.fake else None
        self._fake_numbers: set[int | None] = set()
        self._elsewhere = 0
        self._lock = threading.RLock()
        self._earlier_exception = getattr(sys, "last_value", None)

    def install(self) -> None:
        """Begin to watch.

        Raises:
            CaptureError: this version of JAX cannot be watched.
        """
        try:
            pjit, pxla = _places()
            self.programs.watch()
        except (ImportError, AttributeError) as error:
            wanted = ".".join(map(str, MINIMUM))
            raise CaptureError(
                f"jax {jax.__version__} cannot be watched ({error}): pip install 'trnprof[jax]' (jax {wanted} or newer)"
            ) from error
        _ask_for_devices(self.settings.world_size)
        pjit._get_fastpath_data = lambda *_args, **_kwargs: None
        pxla.MeshExecutable.create_cpp_call = lambda *_args, **_kwargs: None
        execute = pxla.ExecuteReplicated.__call__

        @functools.wraps(execute)
        def watched(executed: Any, *args: Any) -> Any:
            return self._call(execute, executed, args)

        pxla.ExecuteReplicated.__call__ = watched
        recorder.on_step(self._marker)
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._after_fork)

    def finish(self) -> None:
        """The program is over: write what is left."""
        if self.state != "recording":
            return
        is_interrupted = getattr(sys, "last_value", None) is not self._earlier_exception
        self.steps.finish(is_interrupted)
        self.state = "off"
        if self._elsewhere:
            self.log.note(
                f"{self._elsewhere} calls ran on devices other than the captured one and are not recorded"
            )
        self.spans.stop()
        self.log.close(is_interrupted)

    def _call(self, execute: Callable[..., Any], executed: Any, args: tuple[Any, ...]) -> Any:
        if self.state == "off" or not self._begin():
            return execute(executed, *args)
        compiled = self._guarded(lambda: self.programs.of(executed.xla_executable))
        if compiled is None or compiled.program is None:
            self._elsewhere += compiled is not None
            return execute(executed, *args)
        is_faked = self._is_faked(executed, args)
        self.spans.enter(compiled.program.name)
        results = self._fakes.results(executed) if is_faked else execute(executed, *args)
        self.spans.leave()
        self._guarded(lambda: self._record(compiled, executed, args, results))
        if is_faked:
            self._fake_numbers.update(map(self.arrays.number, map(array_of, results)))
        return results

    def _is_faked(self, executed: Any, args: Sequence[Any]) -> bool:
        """Whether a call only seems to run."""
        if self._fakes is None:
            return False
        numbers = {self.arrays.number(array_of(a)) for a in args}
        return not runs_truly(executed, not numbers.isdisjoint(self._fake_numbers))

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """The action, its failure kept from the program: the capture ends there."""
        if self.state == "off":
            return None
        try:
            with self._lock:
                return action()
        except Exception as failure:
            self.state = "off"
            self.log.fail(failure)
            return None

    def _begin(self) -> bool:
        """The first call: claim the capture of the run, or leave it to whoever has it."""
        if self.state == "recording":
            return True
        with self._lock:
            if self.state != "ready":
                return bool(self.state == "recording")
            if not self.log.claim():
                self.state = "off"
                return False
            self._check_world()
            self.state = "recording"
        self.log.open()
        if self._fakes is not None:
            self.log.note(_FAKE)
        if jax.device_count() > 1:
            self.log.world(jax.device_count(), _RANK)
        if self.settings.steps is not None:
            self.log.window(*self.settings.steps)
        if self.settings.host_spans:
            self.spans.start()
            # the recorder seals itself at exit: our last spans must end before, so register after it (last in, first out)
            atexit.unregister(self.finish)
            atexit.register(self.finish)
        return True

    def _check_world(self) -> None:
        """The ranks asked for are the devices there are; otherwise the program ends here."""
        asked, found = self.settings.world_size, jax.device_count()
        if asked is None or asked == found:
            return
        write_state(
            self.settings.trace_dir,
            f"--world-size {asked}, but the program has {found} JAX devices: leave out --world-size, or the program's own {_DEVICES}",
        )
        self.state = "off"
        sys.exit(2)

    def _record(
        self, compiled: Compiled, executed: Any, args: Sequence[Any], results: Sequence[Any]
    ) -> None:
        program = compiled.program
        assert program is not None
        arguments = [array_of(a) for i, a in enumerate(args) if i in executed.kept_var_idx]
        if executed.mut:
            arguments += executed.mut.in_mut
        tokens = len(program.parameters) - len(arguments)
        arguments = [None] * tokens + arguments
        template = self._template(compiled, program, [*arguments, *results])
        self.log.add(Row("cut", program.name, CALL))
        rows = template.call(self.arrays, arguments, results, self.steps.number, self._told)
        for row in rows:
            self.log.add(row)
        self.steps.operations += len(rows)

    def _template(self, compiled: Compiled, program: Program, values: Sequence[Any]) -> Template:
        known = self._templates.get(id(compiled))
        if known is None:
            meshes = {id(m): m for m in map(mesh_of, map(array_of, values)) if m is not None}
            groups = [
                self._group(ranks, alike, compiled.devices, list(meshes.values()))
                for ranks, alike in program.groups
            ]
            known = self._templates[id(compiled)] = Template(program, groups)
        return known

    def _group(
        self, ranks: tuple[int, ...], alike: Any, devices: tuple[int, ...], meshes: Sequence[Any]
    ) -> int:
        """Number of a group; the first time it is written."""
        group = process_group(ranks, alike, devices, meshes, len(self._groups))
        key = (group.ranks, group.siblings)
        if key not in self._groups:
            self._groups[key] = len(self._groups)
            self.log.group(self._groups[key], group)
        return self._groups[key]

    def _told(self, ref: TensorRef, number: int, is_resident: bool) -> None:
        """The role of a tensor, when it is news."""
        if is_resident:
            fields = (ref.shape, ref.dtype, ref.nbytes, ref.storage_nbytes, ref.role)
            self.log.residents([(number, *fields, ref.contiguous)])
        elif number not in self._roles:
            self.log.role(number, ref.role)
        self._roles.add(number)

    def _end_step(self, number: int, label: str, source: str) -> None:
        self.log.step(number, label, source)
        self.spans.end_step(number)

    def _marker(self, label: str) -> None:
        if self.state == "recording":
            self._guarded(lambda: self.steps.mark("marker", label))

    def _after_fork(self) -> None:
        self.state = "off"


def _places() -> tuple[Any, Any]:
    """The modules of JAX whose functions are replaced, with all of these in them.

    Raises:
        ImportError, AttributeError: one is not there.
    """
    from jax._src import pjit
    from jax._src.interpreters import pxla

    for owner, name in (
        (pjit, "_get_fastpath_data"),
        (pxla.MeshExecutable, "create_cpp_call"),
        (pxla.ExecuteReplicated, "__call__"),
    ):
        getattr(owner, name)
    if tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3]) < MINIMUM:
        raise ImportError("it is too old")
    return pjit, pxla


def _ask_for_devices(world_size: int | None) -> None:
    """As many virtual CPU devices as ranks are asked for, unless the program's environment says how many; XLA reads this later."""
    flags = os.environ.get("XLA_FLAGS", "")
    if world_size is not None and _DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_DEVICES}={world_size}".strip()
    if not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")
