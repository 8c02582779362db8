"""Which line of the user's code issued an operation?"""

from __future__ import annotations

import functools
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


def caller_line() -> tuple[str, int]:
    """File and line of the innermost frame outside torch, the standard library and trnprof; ("", 0) if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_internal(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


@functools.cache
def is_internal(file: str) -> bool:
    """Whether a file is torch's, the standard library's or ours."""
    if file.startswith("<"):
        return file != "<string>"
    path = os.path.realpath(file)
    if path.startswith(_OWN) or os.path.dirname(path) == os.path.dirname(
        os.path.realpath(__file__)
    ):
        return True
    return path.startswith(_STANDARD) and not any(site in path for site in _SITE)
