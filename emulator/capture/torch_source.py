"""Which line of the user's code issued an operation?"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

import torch

import trnprof

_SITE = ("site-packages", "dist-packages")
_OWN = tuple(
    os.path.dirname(os.path.realpath(module.__file__)) + os.sep
    for module in (torch, trnprof)
    if module.__file__
)
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_is_internal: dict[str, bool] = {}


def caller_line() -> tuple[str, int]:
    """File and line of the innermost frame outside torch, the standard library and trnprof; ("", 0) if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        internal = _is_internal.get(file)
        if internal is None:
            internal = _is_internal[file] = _internal(file)
        if not internal:
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _internal(file: str) -> bool:
    if file.startswith("<"):
        return file != "<string>"
    path = os.path.realpath(file)
    if path.startswith(_OWN) or os.path.dirname(path) == os.path.dirname(
        os.path.realpath(__file__)
    ):
        return True
    return path.startswith(_STANDARD) and not any(site in path for site in _SITE)
