"""The ``trnprof`` command: where does it begin? With what ends it when it is told to, before all that takes time to load."""

from __future__ import annotations

from trnprof.cli.stopping import end_when_told


def main() -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    end_when_told()
    from trnprof.cli.app import run

    run()


if __name__ == "__main__":
    main()
