"""Run by every Python that ``trnprof record`` starts, before the program: captures it once it has imported torch.

It lies first on PYTHONPATH, so it stands in for any other sitecustomize and runs that one too. Whatever goes wrong here is one
line on stderr; the program goes on.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Lets torch be found as ever, and starts the capture when it has been executed."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN
        """Only for the name torch, once."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_and_start(module):  # type: ignore[no-untyped-def]  # noqa: ANN
            execute(module)
            _start()

        spec.loader.exec_module = exec_and_start  # type: ignore[method-assign]
        return spec


def _start() -> None:
    try:
        from trnprof.emulator.capture.session import start_capture
        from trnprof.emulator.capture.settings import from_environment

        settings = from_environment()
        if settings is not None:
            start_capture(settings)
    except Exception as error:
        print(f"trnprof: capture is off: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


def _run_shadowed_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


_run_shadowed_sitecustomize()
if os.environ.get("TRNPROF_CAPTURE"):
    sys.meta_path.insert(0, _AfterTorch())
