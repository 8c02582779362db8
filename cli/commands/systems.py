"""``trnprof systems``: which machines are described, and what is known of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

systems = typer.Typer(
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)

NAME = typer.Argument(metavar="SYSTEM", help="A name such as trn2, or a .toml file.")
OTHER = typer.Argument(metavar="OTHER", help="Another one.")
JSON = typer.Option("--json", help="Print JSON.")


@systems.callback(invoke_without_command=True)
def list_all(context: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """List the systems that come with trnprof; show one, or what differs between two.

    Example: trnprof systems show trn3-gen2
    """
    if context.invoked_subcommand is not None:
        return
    from trnprof.cli.systems_text import list_lines
    from trnprof.emulator.system_files import list_systems

    found = [_summary(name) for name in list_systems()]
    if as_json:
        _print_json({"systems": found})
    else:
        _print(list_lines(found))


@systems.command()
def show(
    system: Annotated[str, NAME],
    instances: Annotated[
        int, typer.Option("--instances", help="How many of it, joined by its network.")
    ] = 1,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show chips, peaks by datatype, engines, memory, topology, power and price; estimates are marked ~.

    Example: trnprof systems show trn2-ultra --instances 4
    """
    from trnprof.cli.systems_show import show_lines

    found = _summary(system, instances)
    if as_json:
        _print_json(found)
    else:
        _print(show_lines(found))


@systems.command()
def diff(
    system: Annotated[str, NAME],
    other: Annotated[str, OTHER],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what differs between two systems, side by side.

    Example: trnprof systems diff trn2 trn3-gen2
    """
    from dataclasses import asdict

    from trnprof.cli.systems_text import diff_lines
    from trnprof.emulator.machine_summary import differences

    first, second = _summary(system), _summary(other)
    found = differences(first, second)
    if as_json:
        names = [first["name"], second["name"]]
        _print_json({"systems": names, "differences": [asdict(each) for each in found]})
    else:
        _print(diff_lines(first, second, found))


def _summary(name: str, instances: int = 1) -> dict[str, Any]:
    from trnprof.emulator.machine import read_machine
    from trnprof.emulator.machine_summary import summarize
    from trnprof.emulator.system_files import open_system

    return summarize(*read_machine(open_system(name)), instances)


def _print(lines: list[str]) -> None:
    from trnprof.cli.output import show as show_text

    show_text("\n".join(lines))


def _print_json(document: dict[str, Any]) -> None:
    import json

    from trnprof.emulator.system_files import SYSTEM_SCHEMA
    from trnprof.tracer.version import __version__

    _print(
        [json.dumps({"schema": SYSTEM_SCHEMA, "tool_version": __version__} | document, indent=2)]
    )
