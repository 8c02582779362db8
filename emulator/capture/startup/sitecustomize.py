"""How does the capture get into a program that knows nothing of it? Python imports this module at start-up.

It runs the sitecustomize that it hides, if there is one, takes its folder off the path again, and waits for torch or JAX to
be imported. Whatever goes wrong is one line on stderr; the program goes on.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "TRNPROF_CAPTURE"
STATE_NAME = "capture.state"


class FrameworkFinder:
    """Lets the usual finders find torch or JAX, and starts its capture once it is imported."""

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self.name = name
        self.start = start

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of the framework, its loader made to report; None for anything else."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                loader.__dict__.pop("exec_module", None)
                run(module)
                guarded(self.start)

            loader.exec_module = exec_module
        return spec


def start_torch() -> None:
    """Start the capture of torch with the settings that the launcher left."""
    text = os.environ.get(VARIABLE)
    if text:
        from trnprof.emulator.capture.launch_settings import CLAIM_NAME, Settings

        settings = Settings.from_json(text)
        if (settings.trace_dir / CLAIM_NAME).exists():
            from trnprof.emulator.capture.torch_left import watch_left_process

            watch_left_process(settings.trace_dir, host_spans=settings.host_spans)
        else:
            from trnprof.emulator.capture.torch import start_capture as start

            start(settings)


def start_jax() -> None:
    """Start the capture of JAX with the settings that the launcher left."""
    text = os.environ.get(VARIABLE)
    if text:
        from trnprof.emulator.capture.launch_settings import Settings

        settings = Settings.from_json(text)
        from trnprof.emulator.capture.jax import start_capture as start

        start(settings)


def tell_started() -> None:
    """Let the launcher know that this bootstrap ran."""
    import json

    path = os.path.join(json.loads(os.environ[VARIABLE])["dir"], STATE_NAME)
    if os.path.exists(path):
        handle = os.open(path, os.O_WRONLY)
        os.write(handle, b"s")
        os.close(handle)


def guarded(action: Any) -> None:
    """Do something that may fail without a word to the program."""
    try:
        action()
    except Exception as failure:
        reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
        sys.stderr.write(f"trnprof: nothing is captured in process {os.getpid()}: {reason}\n")


def run_hidden() -> None:
    """Run the next sitecustomize on the path, as if this one were not there."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    own = sys.modules.pop("sitecustomize", None)
    spec = importlib.util.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        if own is not None:
            sys.modules["sitecustomize"] = own
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, FrameworkFinder("torch", start_torch))
    sys.meta_path.insert(0, FrameworkFinder("jax", start_jax))
    guarded(tell_started)
    guarded(run_hidden)
