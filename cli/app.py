"""Which subcommands has ``trnprof``, and what does a failure look like?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trnprof.cli.commands.collective import collective
from trnprof.cli.commands.compact import compact
from trnprof.cli.commands.diff import diff
from trnprof.cli.commands.emulate import emulate
from trnprof.cli.commands.explain import explain
from trnprof.cli.commands.export import export
from trnprof.cli.commands.import_ import import_
from trnprof.cli.commands.info import info
from trnprof.cli.commands.merge import merge
from trnprof.cli.commands.query import query
from trnprof.cli.commands.record import record
from trnprof.cli.commands.report import report
from trnprof.cli.commands.systems import systems
from trnprof.cli.commands.validate import validate
from trnprof.cli.commands.view import view
from trnprof.cli.commands.whatif import whatif
from trnprof.cli.compiling import say_compiling
from trnprof.cli.diagnostics import ExitCode, fail, internal_error, tell
from trnprof.cli.stopping import ignore_stops
from trnprof.cli.strict import with_default_strict
from trnprof.cli.usage import plain

app = typer.Typer(
    name="trnprof",
    help="Where the time of a Trainium-class workload goes, with or without the hardware.",
    epilog="Start with: trnprof record --system trn2 -o run.trnprof -- python train.py",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RECORD, READ, FILES = "Make a trace", "Read a trace", "Trace files"
MACHINES = "Machines and fabrics"
app.command(rich_help_panel=RECORD)(record)
app.command(rich_help_panel=RECORD)(emulate)
app.command("import", rich_help_panel=RECORD)(import_)
app.command(rich_help_panel=MACHINES)(collective)
app.add_typer(systems, name="systems", rich_help_panel=MACHINES)
app.command(rich_help_panel=READ)(report)
app.command(rich_help_panel=READ)(whatif)
app.command(rich_help_panel=READ)(diff)
app.command(rich_help_panel=READ)(query)
app.command(rich_help_panel=READ)(explain)
app.command(rich_help_panel=READ)(view)
app.command(rich_help_panel=READ)(export)
app.command(rich_help_panel=FILES)(info)
app.command(rich_help_panel=FILES)(validate)
app.command(rich_help_panel=FILES)(merge)
app.command(rich_help_panel=FILES)(compact)


def _version(wanted: bool) -> None:
    if wanted:
        import trnprof

        print(f"trnprof {trnprof.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Hold the options of the command itself."""


def run() -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    from trnprof.tracer.compile_notice import tell_of_compiling
    from trnprof.tracer.errors import TrnprofError

    tell_of_compiling(say_compiling)
    try:
        code = app(with_default_strict(sys.argv[1:]), prog_name="trnprof", standalone_mode=False)
    except TrnprofError as error:
        raise fail(str(error)) from None
    except (typer.Abort, KeyboardInterrupt):
        raise fail("interrupted", ExitCode.INTERRUPTED) from None
    except Exception as error:
        raise _usage_or_internal(error) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # polars', which is no Exception
            raise
        raise _usage_or_internal(error) from None
    finally:
        ignore_stops()
    raise SystemExit(code or 0)


def _usage_or_internal(error: BaseException) -> SystemExit:
    """A mistake on the command line or a damaged file comes with the line that helps; anything else is our fault."""
    import errno

    describe = getattr(error, "format_message", None)
    if describe is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "trnprof"
        if type(error).__name__ == "NoArgsIsHelpError":
            tell(describe())
            return SystemExit(int(ExitCode.BAD_INPUT))
        return fail(f"{plain(describe())} (see {path} --help)")
    library = type(error).__module__.split(".")[0]
    if library in ("polars", "pyarrow", "pyo3_runtime") and not isinstance(error, MemoryError):
        first = (str(error).splitlines() or [""])[0]
        return fail(f"a file of the trace is damaged ({first}); trnprof validate TRACE says which")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
        return fail(f"{error.filename or 'output'}: {error.strerror}; choose another place with -o")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return fail(f"{error.filename}: the file name is too long")
    return internal_error(error)
