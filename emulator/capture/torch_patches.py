"""What of torch is wrapped for the capture? The few calls that no hook reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def patch_module_calls(
    enter: Callable[[Any, Any], Any], leave: Callable[[Any, bool], object]
) -> None:
    """Report each call of a module; ``leave(module, it_returned)`` only where ``enter`` said True.

    Not torch's global hooks: with those, torch.compile warns into the program's output.
    """
    call = torch.nn.Module.__call__

    @functools.wraps(call)
    def reported_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not enter(self, args):
            return call(self, *args, **kwargs)
        try:
            result = call(self, *args, **kwargs)
        except BaseException:
            leave(self, False)
            raise
        leave(self, True)
        return result

    torch.nn.Module.__call__ = reported_call


def patch_engine(on_backward: Callable[[bool], object]) -> None:
    """Report when the autograd engine begins (True) and ends (False)."""
    run = getattr(torch.autograd, "_engine_run_backward", None)
    if run is None:
        return

    @functools.wraps(run)
    def engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        on_backward(True)
        try:
            return run(*args, **kwargs)
        finally:
            on_backward(False)

    torch.autograd._engine_run_backward = engine_run_backward


def patch_compile(note: Callable[[str], object]) -> None:
    """Let what torch.compile returns run eagerly: compiled code calls no operators that could be seen."""
    compile_ = torch.compile

    @functools.wraps(compile_)
    def eager_compile(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.set_stance("force_eager")
        note("torch.compile was called: what it compiles is captured operator by operator")
        return compile_(*args, **kwargs)

    torch.compile = eager_compile


def patch_profiler(on_step: Callable[[], object]) -> None:
    """Report each ``step()`` of torch.profiler.profile."""
    profile = torch.profiler.profile
    step = profile.step

    @functools.wraps(step)
    def reported_step(self: Any) -> None:
        step(self)
        on_step()

    profile.step = reported_step


def patch_resizing(on_release: Callable[[Any], object]) -> None:
    """Report each storage whose memory is given back while it lives on, as sharded parameters do."""
    resize = torch.UntypedStorage.resize_

    @functools.wraps(resize)
    def reported_resize(self: Any, size: int) -> Any:
        if size == 0:
            on_release(self)
        return resize(self, size)

    torch.UntypedStorage.resize_ = reported_resize
