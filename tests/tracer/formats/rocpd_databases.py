"""Writes databases as rocprofv3 and the rpd tracer write them, by their published schemas."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GUID = "_0199aaaa_bbbb_7ccc_8ddd_eeeeffff0001"
_KEY = '"id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT "g" NOT NULL'
_EXT = '"extdata" JSONB DEFAULT "{}" NOT NULL'
_PLACE = {
    "own": '"nid" INTEGER, "pid" INTEGER, "tid" INTEGER, "agent_id" INTEGER, "queue_id" INTEGER, "stream_id" INTEGER',
    "track": '"track_id" INTEGER',
}
_TIME = {"own": '"start" BIGINT, "end" BIGINT', "stamps": '"start_id" INTEGER, "end_id" INTEGER'}
_INFO = {
    "rocpd_string": '"string" TEXT NOT NULL UNIQUE ON CONFLICT ABORT',
    "rocpd_info_node": '"hash" BIGINT, "machine_id" TEXT, "system_name" TEXT, "hostname" TEXT, "release" TEXT, "version" TEXT',
    "rocpd_info_process": '"nid" INTEGER, "ppid" INTEGER, "pid" INTEGER, "init" BIGINT, "command" TEXT, '
    '"environment" JSONB DEFAULT "{}" NOT NULL',
    "rocpd_info_thread": '"nid" INTEGER, "ppid" INTEGER, "pid" INTEGER, "tid" INTEGER, "name" TEXT',
    "rocpd_info_agent": '"nid" INTEGER, "pid" INTEGER, "type" TEXT CHECK ("type" IN (\'CPU\', \'GPU\')), "absolute_index" INTEGER, '
    f'"type_index" INTEGER, "name" TEXT, "product_name" TEXT, {_EXT}',
    "rocpd_info_queue": '"nid" INTEGER, "pid" INTEGER, "name" TEXT',
    "rocpd_info_stream": '"nid" INTEGER, "pid" INTEGER, "name" TEXT',
    "rocpd_info_pmc": '"nid" INTEGER, "pid" INTEGER, "agent_id" INTEGER, "name" TEXT, "symbol" TEXT, "units" TEXT DEFAULT ""',
    "rocpd_info_kernel_symbol": '"code_object_id" INTEGER, "kernel_name" TEXT, "display_name" TEXT',
    "rocpd_info_category": '"name" TEXT NOT NULL',
    "rocpd_track": f'{_PLACE["own"]}, "name_id" INTEGER',
    "rocpd_event": '"category_id" INTEGER, "stack_id" INTEGER, "parent_stack_id" INTEGER, "correlation_id" INTEGER, '
    f'"call_stack" JSONB DEFAULT "{{}}" NOT NULL, {_EXT}',
    "rocpd_arg": '"event_id" INTEGER, "position" INTEGER, "type" TEXT, "name" TEXT, "value" TEXT',
    "rocpd_pmc_event": '"event_id" INTEGER, "pmc_id" INTEGER, "value" REAL DEFAULT 0.0',
    "rocpd_timestamp": '"value" BIGINT NOT NULL',
}
_EVENTS = {
    "rocpd_region": '"name_id" INTEGER',
    "rocpd_kernel_dispatch": '"kernel_id" INTEGER, "dispatch_id" INTEGER, "private_segment_size" INTEGER, "group_segment_size" INTEGER, '
    '"workgroup_size_x" INTEGER, "workgroup_size_y" INTEGER, "workgroup_size_z" INTEGER, "grid_size_x" INTEGER, '
    '"grid_size_y" INTEGER, "grid_size_z" INTEGER, "region_name_id" INTEGER',
    "rocpd_memory_copy": '"name_id" INTEGER, "dst_agent_id" INTEGER, "dst_address" INTEGER, "src_agent_id" INTEGER, '
    '"src_address" INTEGER, "size" INTEGER NOT NULL, "region_name_id" INTEGER',
    "rocpd_memory_allocate": '"type" TEXT, "level" TEXT, "address" INTEGER, "size" INTEGER NOT NULL',
    "rocpd_graph_launch": '"graph_exec_id" INTEGER NOT NULL, "kernel_dispatch_count" INTEGER NOT NULL DEFAULT 0',
}
_PLACES = ("nid", "pid", "tid", "agent_id", "queue_id", "stream_id")


class SdkDatabase:
    """A database of rocprofv3.

    Layouts: ``3`` (released: rows say place and time), ``stamps`` (tracks and time stamps), ``4`` (tracks, times, categories).
    """

    def __init__(self, path: Path, layout: str = "3", suffix: str = GUID) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.layout, self.suffix = layout, suffix
        self._strings: dict[str, int] = {}
        self._tracks: dict[tuple[Any, ...], int] = {}
        place = _PLACE["own" if layout == "3" else "track"]
        time = _TIME["stamps" if layout == "stamps" else "own"]
        tables = {name: f"{_KEY}, {columns}" for name, columns in _INFO.items()}
        for name, columns in _EVENTS.items():
            tables[name] = f'{_KEY}, {place}, {time}, {columns}, "event_id" INTEGER, {_EXT}'
        moment = '"timestamp_id" INTEGER' if layout == "stamps" else '"timestamp" BIGINT'
        tables["rocpd_sample"] = f'{_KEY}, "track_id" INTEGER, {moment}, "event_id" INTEGER'
        tables["rocpd_metadata"] = '"id" INTEGER PRIMARY KEY, "tag" TEXT, "value" TEXT'
        if layout != "4":
            del tables["rocpd_info_category"]
        if layout != "stamps":
            del tables["rocpd_timestamp"]
        for name, columns in tables.items():
            self.connection.execute(f"CREATE TABLE `{name}{suffix}` ({columns})")
            self.connection.execute(
                f"CREATE VIEW IF NOT EXISTS `{name}` AS SELECT * FROM `{name}{suffix}`"
            )
        self.insert("rocpd_metadata", tag="schema_version", value=layout)
        self.connection.execute("BEGIN")

    def insert(self, table: str, **row: Any) -> int:
        names = ", ".join(f'"{c}"' for c in row)
        marks = ", ".join("?" for _ in row)
        sql = f"INSERT INTO `{table}{self.suffix}` ({names}) VALUES ({marks})"
        return int(self.connection.execute(sql, list(row.values())).lastrowid or 0)

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self.insert("rocpd_string", string=text)
        return self._strings[text]

    def event(self, category: str, stack: int = 0, **more: Any) -> int:
        if self.layout == "4":
            number = self.insert("rocpd_info_category", name=category)
        else:
            number = self.string(category)
        return self.insert(
            "rocpd_event", category_id=number, stack_id=stack, parent_stack_id=stack, **more
        )

    def track(self, name: str | None = None, **place: Any) -> int:
        key = (name, *sorted(place.items()))
        if key not in self._tracks:
            more = {} if name is None else {"name_id": self.string(name)}
            self._tracks[key] = self.insert("rocpd_track", **place, **more)
        return self._tracks[key]

    def row(self, table: str, start: int, end: int | None, **row: Any) -> int:
        """A row of a table of events, with its place and time as the layout has them."""
        if self.layout != "3":
            row["track_id"] = self.track(**{c: row.pop(c) for c in _PLACES if c in row})
        times = {"start": start, "end": end}
        if self.layout == "stamps":
            times = {
                f"{k}_id": None if v is None else self.insert("rocpd_timestamp", value=v)
                for k, v in times.items()
            }
        return self.insert(table, **times, **row)

    def sample(self, at: int, event: int, track: int) -> int:
        if self.layout == "stamps":
            stamp = self.insert("rocpd_timestamp", value=at)
            return self.insert("rocpd_sample", track_id=track, timestamp_id=stamp, event_id=event)
        return self.insert("rocpd_sample", track_id=track, timestamp=at, event_id=event)

    def machine(
        self, *, node: int = 1, pid: int = 100, host: str = "host-a", gpus: int = 2, **more: Any
    ) -> None:
        """A node, a process, a CPU (agent 0) and GPUs (agents 1, 2, …), two queues and streams."""
        self.insert(
            "rocpd_info_node",
            id=node,
            hash=node,
            machine_id=f"m{node}",
            hostname=host,
            release="6.8",
        )
        environment = json.dumps(more.pop("environment", {}))
        self.insert("rocpd_info_process", id=pid, nid=node, pid=pid, environment=environment)
        self.insert(
            "rocpd_info_agent", id=0, nid=node, pid=pid, type="CPU", absolute_index=0, type_index=0
        )
        told = {"cu_count": 304, "mem_banks": [{"size_in_bytes": 206_141_652_992}]}
        for gpu in range(gpus):
            self.insert(
                "rocpd_info_agent",
                id=gpu + 1,
                nid=node,
                pid=pid,
                type="GPU",
                absolute_index=gpu + 1,
                type_index=gpu,
                name="gfx942",
                product_name=more.get("product", "AMD Instinct MI300X"),
                extdata=json.dumps(told | more.get("agent", {})),
            )
        for number, name in enumerate(("Default", "0")):
            label = (f"{name} {{}}" if number == 0 else f"{{}} {name}").format
            self.insert("rocpd_info_queue", id=number, nid=node, pid=pid, name=label("Queue"))
            self.insert("rocpd_info_stream", id=number, nid=node, pid=pid, name=label("Stream"))

    def close(self) -> None:
        self.connection.execute("COMMIT")
        self.connection.close()


_RPD = {
    "rocpd_metadata": '"id" integer PRIMARY KEY, "tag" varchar(4096) NOT NULL, "value" varchar(4096) NOT NULL',
    "rocpd_string": '"id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "string" varchar(4096) NOT NULL',
    "rocpd_ustring": '"id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "string" varchar(4096) NOT NULL',
    "rocpd_api": '"id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "pid" integer NOT NULL, "tid" integer NOT NULL, '
    '"start" integer NOT NULL, "end" integer NOT NULL, "apiName_id" bigint NOT NULL, "category_id" bigint, "domain_id" bigint, '
    '"args_id" bigint NOT NULL',
    "rocpd_copyapi": '"api_ptr_id" bigint NOT NULL PRIMARY KEY, "stream" varchar(18) NOT NULL, "size" integer NOT NULL, '
    '"width" integer, "height" integer, "kind" integer NOT NULL, "dst" varchar(18), "src" varchar(18), "dstDevice" integer, '
    '"srcDevice" integer, "sync" bool, "pinned" bool',
    "rocpd_kernelapi": '"api_ptr_id" bigint NOT NULL PRIMARY KEY, "stream" varchar(18) NOT NULL, "gridX" integer, "gridY" integer, '
    '"gridZ" integer, "workgroupX" integer, "workgroupY" integer, "workgroupZ" integer, "groupSegmentSize" integer, '
    '"privateSegmentSize" integer, "kernelName_id" bigint',
    "rocpd_op": '"id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "gpuId" integer NOT NULL, "queueId" integer NOT NULL, '
    '"sequenceId" integer NOT NULL, "start" integer NOT NULL, "end" integer NOT NULL, "description_id" bigint NOT NULL, '
    '"opType_id" bigint NOT NULL',
    "rocpd_api_ops": '"id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "api_id" bigint NOT NULL, "op_id" bigint NOT NULL',
    "rocpd_monitor": '"id" integer PRIMARY KEY, "deviceType" varchar(16), "deviceId" integer, "monitorType" varchar(16), '
    '"start" integer, "end" integer, "value" varchar(255)',
    "rocpd_counter": '"id" integer PRIMARY KEY, "value" real NOT NULL, "op_id" bigint NOT NULL, "name_id" bigint NOT NULL',
}


class RpdDatabase:
    """A database of the rpd tracer, schema 3, or 2 (no ``rocpd_ustring``, categories or counters)."""

    def __init__(
        self, path: Path, version: int = 3, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.version = version
        for name, columns in _RPD.items():
            if version < 3:
                columns = columns.replace('"category_id" bigint, "domain_id" bigint, ', "")
            if version >= 3 or name not in ("rocpd_ustring", "rocpd_counter"):
                self.connection.execute(f'CREATE TABLE "{name}" ({columns})')
        self._strings: dict[str, int] = {}
        self.string("")
        for tag, value in {"schema_version": str(version), **(metadata or {})}.items():
            self.insert("rocpd_metadata", tag=tag, value=value)
        self.connection.execute("BEGIN")

    def insert(self, table: str, **row: Any) -> int:
        names = ", ".join(f'"{c}"' for c in row)
        marks = ", ".join("?" for _ in row)
        sql = f'INSERT INTO "{table}" ({names}) VALUES ({marks})'
        return int(self.connection.execute(sql, list(row.values())).lastrowid or 0)

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self.insert("rocpd_string", string=text)
        return self._strings[text]

    def api(
        self, name: str, start: int, end: int, *, args: str = "", pid: int = 7, tid: int = 8
    ) -> int:
        more: dict[str, Any] = {"args_id": self.string(args)}
        if self.version >= 3:
            more = {
                "args_id": self.insert("rocpd_ustring", string=args),
                "category_id": self.string(""),
                "domain_id": self.string("hip"),
            }
        return self.insert(
            "rocpd_api",
            pid=pid,
            tid=tid,
            start=start,
            end=end,
            apiName_id=self.string(name),
            **more,
        )

    def op(
        self,
        kind: str,
        start: int,
        end: int,
        *,
        name: str = "",
        gpu: int = 0,
        queue: int = 0,
        api: int = 0,
    ) -> int:
        number = self.insert(
            "rocpd_op",
            gpuId=gpu,
            queueId=queue,
            sequenceId=0,
            start=start,
            end=end,
            description_id=self.string(name),
            opType_id=self.string(kind),
        )
        if api:
            self.insert("rocpd_api_ops", api_id=api, op_id=number)
        return number

    def close(self) -> None:
        self.connection.execute("COMMIT")
        self.connection.close()
