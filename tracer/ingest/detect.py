"""Which format is each source of, judged by its content? And so: what is there to import at the paths a user names?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.audit import Audit, Finding
from trnprof.tracer.ingest.bytestreams import DEFAULT_MAX_BYTES
from trnprof.tracer.ingest.hints import hint
from trnprof.tracer.ingest.inputs import TABLE_ENDINGS, find_sources, table_directory
from trnprof.tracer.ingest.names import plain_name, rank_in_name, shown
from trnprof.tracer.ingest.registry import format_named, format_names, registry, tell_broken
from trnprof.tracer.ingest.source import HEAD_BYTES, ByteStream, Format, Head, Source

_SAMPLE_BYTES = 1 << 20
_LEFT_OUT = ("unreadable", "not_a_file", "nested_archive", "unreadable_members")


@dataclass(frozen=True)
class Profile:
    """A source and its format.

    Attributes:
        source: the source.
        format: what reads it.
        expected_bytes: about how many bytes it has decompressed, judged by its beginning.
    """

    source: Source
    format: Format
    expected_bytes: int


@dataclass(frozen=True)
class Profiles:
    """What is to be imported.

    Attributes:
        profiles: in the order of their ranks, as far as names tell it; at least one.
        findings: what was left out, and why.
    """

    profiles: tuple[Profile, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Refusal:
    """Why a source is not read.

    Attributes:
        kind: of the finding.
        why: what is wrong, as the rest of a sentence about it.
        is_riddle: nobody can say what it is, so that a person wants to know what could be read.
    """

    kind: str
    why: str
    is_riddle: bool = False


def detect(source: Source, wanted: str | None = None) -> Format:
    """The format that is surest of a source.

    Args:
        source: the source.
        wanted: name of the format that it has, whatever it looks like.

    Raises:
        ProfileError: it is of no known format, empty, cannot be read, or the wanted format is not known.
    """
    chosen = _judge(source, wanted, is_forced=True, audit=Audit())
    if isinstance(chosen, _Refusal):
        raise _error(source, chosen)
    return chosen.format


def choose_profiles(
    paths: Sequence[str | os.PathLike[str]],
    *,
    workspace: Path,
    wanted: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Profiles:
    """Everything to import that paths name, each with its format.

    Args:
        paths: as for ``find_sources``.
        workspace: likewise; it has to stay until all sources are read.
        wanted: name of the format of all: a file that the user named is read as that whatever it looks like, of a directory or
            archive those that look like it.
        max_bytes: as for ``find_sources``.

    Raises:
        ProfileError: as for ``find_sources``; or nothing of a known format is there, or the wanted format is not known.
        WriteError: the workspace is full.
    """
    if wanted is not None:
        format_named(wanted)
    audit = Audit()
    found = find_sources(
        paths,
        workspace=workspace,
        max_bytes=max_bytes,
        claims=lambda head: _surest(head, wanted, audit) is not None,
    )
    audit.extend(found.findings)
    audit.extend(registry().findings)
    profiles: dict[str, Profile] = {}
    refused = []
    for source in found.sources:
        is_named = source.label in found.named
        chosen = _judge(source, wanted, is_forced=is_named, audit=audit)
        if isinstance(chosen, _Refusal):
            chosen = _whole_tables(source, wanted, audit) or chosen
        if isinstance(chosen, _Refusal):
            refused.append((source, chosen))
        else:
            profiles.setdefault(chosen.source.label, chosen)
    if not profiles:
        raise _nothing(paths, refused, audit)
    kept = _once_a_run([*profiles.values()], audit)
    _tell(refused, kept, found.named, audit)
    return Profiles(tuple(kept), tuple(audit.findings))


def _once_a_run(profiles: Sequence[Profile], audit: Audit) -> list[Profile]:
    """Without the JSON files of XProf that stand beside the XSpace of the same run, which has all that they have."""
    spaces = {_stem(p.source, ".xplane.pb") for p in profiles if p.format.name == "xplane"}
    folders = {folder for folder, _ in spaces}
    kept = []
    for profile in profiles:
        folder, name = _stem(profile.source, ".trace.json")
        is_twin = (folder, name) in spaces and profile.format.name == "xprof-json"
        if is_twin or (folder in folders and name.startswith("perfetto_trace")):
            message = "is left out: the .xplane.pb of the same run, beside it, has all that it has"
            audit.add("same_run", "note", profile.source.label, message)
        else:
            kept.append(profile)
    return kept


def _stem(source: Source, ending: str) -> tuple[str, str]:
    """Folder and name of a source, without an ending."""
    folder, _, _ = source.label.rpartition("/")
    return folder, plain_name(source.label).removesuffix(ending)


def _judge(
    source: Source, wanted: str | None, *, is_forced: bool, audit: Audit
) -> Profile | _Refusal:
    """A source with its format, or why it has none."""
    try:
        head, cut, expansion = _head(source)
    except ProfileError as error:
        why = str(error).removeprefix(f"{source.label}: ")
        return _Refusal("unreadable", why if why.startswith("cannot") else f"cannot be read: {why}")
    if not head.data and not source.is_directory:
        if cut:
            return _Refusal("unreadable", f"cannot be decompressed at all: {cut}")
        return _Refusal("empty_file", "is empty (0 bytes)")
    format = _surest(head, wanted, audit)
    if format is None and wanted is not None and is_forced:
        format = format_named(wanted)
    if format is None and cut:
        return _Refusal("unreadable", f"is cut off before its format can be told: {cut}")
    if format is None:
        return _unknown(head, wanted)
    return Profile(source, format, int(source.size_bytes * max(1.0, expansion)))


def _head(source: Source) -> tuple[Head, str | None, float]:
    """What formats may see of a source, why there is no more, and how many bytes a byte on disk becomes there."""
    if source.is_directory:
        return table_directory(source.path)[0], None, 1.0
    stream = source.open()
    try:
        data = stream.read(HEAD_BYTES)
        cut = stream.truncated
        name = plain_name(source.label.rpartition("!")[2])
        return Head(name, data), cut, _expansion(stream)
    finally:
        stream.close()


def _expansion(stream: ByteStream) -> float:
    """How many bytes a byte on disk becomes, judged by the next megabyte: decoders read ahead."""
    consumed = getattr(stream, "consumed", None)
    if consumed is None or consumed == stream.position:
        return 1.0
    stream.read(_SAMPLE_BYTES)
    return stream.position / max(1, getattr(stream, "consumed", stream.position))


def _surest(head: Head, wanted: str | None, audit: Audit) -> Format | None:
    """The format that is surest of a head; None if none has an idea."""
    best, best_confidence = None, 0
    for name, format in registry().formats.items():
        if wanted is not None and name != wanted:
            continue
        try:
            confidence = int(format.recognise(head))
        except Exception as error:  # it must not raise; one that does is not to spoil the others
            why = f"{head.name}: {type(error).__name__}: {error}"
            tell_broken(audit, name, why, "fails when it is asked whether it knows a file")
            continue
        if confidence > best_confidence:
            best, best_confidence = format, confidence
    return best


def _whole_tables(source: Source, wanted: str | None, audit: Audit) -> Profile | None:
    """The profile that the directory of a table is, if it is one: a table alone is named for all of them."""
    if "!" in source.label or not source.path.name.lower().endswith(TABLE_ENDINGS):
        return None
    head, whole = table_directory(source.path.parent)
    format = _surest(head, wanted, audit)
    return None if format is None else Profile(whole, format, whole.size_bytes)


def _unknown(head: Head, wanted: str | None) -> _Refusal:
    kind, known = "unknown_format", hint(head)
    if known:
        return _Refusal(kind, f"is {known}")
    if wanted is not None:
        why = f"does not look like {wanted}; name the file itself to read it as that"
        return _Refusal(kind, why)
    start = shown(head.data[:24].decode("utf-8", "replace"))
    return _Refusal(kind, f"is of no known format (it begins with {start!r})", is_riddle=True)


def _tell(
    refused: Sequence[tuple[Source, _Refusal]],
    profiles: Sequence[Profile],
    named: frozenset[str],
    audit: Audit,
) -> None:
    """Findings for the sources that are left out while others are read."""
    ranks = {rank_in_name(profile.source.label) for profile in profiles}
    endings = {_ending(profile.source) for profile in profiles}
    for source, refusal in refused:
        is_named = source.label in named
        is_expected = is_named or _ending(source) in endings
        rank = rank_in_name(source.label)
        if refusal.kind == "unknown_format":
            audit.add(
                "unknown_format",
                "warning" if is_named else "note",
                source.label if is_named else _folder(source),
                "files that are no profile of a known format are left out",
                example=f"{source.label} {refusal.why}",
            )
        elif rank is not None and rank not in ranks and is_expected:
            audit.add(
                "missing_ranks",
                "warning",
                source.label,
                f"rank {rank} is missing: its file {refusal.why}; its process may have been killed while it wrote",
                unreliable="whatever is said of all ranks",
            )
        else:
            audit.add(
                refusal.kind,
                "warning" if is_expected else "note",
                source.label,
                f"the file {refusal.why}; it is left out",
                unreliable="whatever it should hold is missing" if is_expected else "",
            )


def _ending(source: Source) -> str:
    return PurePath(plain_name(source.label)).suffix


def _folder(source: Source) -> str:
    archive, separator, _ = source.label.rpartition("!")
    return archive if separator else shown(source.path.parent)


def _error(source: Source, refusal: _Refusal) -> ProfileError:
    known = f"; known formats: {format_names(registry())}" if refusal.is_riddle else ""
    return ProfileError(f"{source.label} {refusal.why}{known}")


def _nothing(
    paths: Sequence[str | os.PathLike[str]],
    refused: Sequence[tuple[Source, _Refusal]],
    audit: Audit,
) -> ProfileError:
    """The error that says why nothing can be imported."""
    if refused:
        first = next((pair for pair in refused if pair[1].kind != "empty_file"), refused[0])
        error = _error(*first)
        others = len(refused) - 1
        return (
            ProfileError(f"{error} (and {others} more that are no profiles)") if others else error
        )
    where = ", ".join(shown(os.fspath(path)) for path in paths[:3])
    left_out = [finding for finding in audit.findings if finding.kind in _LEFT_OUT]
    why = f" ({left_out[0].message}: {left_out[0].example})" if left_out else ""
    return ProfileError(f"{where}: there is no profile in it{why}")
