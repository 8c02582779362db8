"""Which version of trnprof is this? Written into traces and reports."""

__version__ = "0.1.0"
