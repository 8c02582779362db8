"""Writes SQLite files with the tables and columns that ``nsys export --type sqlite`` is documented to write."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACE = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
CALL = "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
COLUMNS = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{PLACE}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{PLACE}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, dstDeviceId INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{PLACE}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{PLACE}, graphId INTEGER, graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{PLACE}, syncType INTEGER NOT NULL, eventId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": CALL,
    "CUPTI_ACTIVITY_KIND_DRIVER": CALL,
    "OSRT_API": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER",
    "MPI_COLLECTIVES_EVENTS": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, textId INTEGER, commHandle INTEGER, rootRank INTEGER, size INTEGER",
    "MPI_RANKS": "globalPid INTEGER, rank INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER NOT NULL, metricId INTEGER NOT NULL, value INTEGER NOT NULL",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL, typeName TEXT NOT NULL, metricId INTEGER NOT NULL, metricName TEXT NOT NULL",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER, address INTEGER, pc INTEGER, bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, pwGpuId INTEGER, cuDevice INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT NOT NULL, nameEnum INTEGER, value TEXT NOT NULL",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER NOT NULL, text TEXT NOT NULL",
    "COMPOSITE_EVENTS": "id INTEGER NOT NULL PRIMARY KEY, start INTEGER, cpu INTEGER, globalTid INTEGER",
}


def global_pid(pid: int, hardware: int = 0, machine: int = 1) -> int:
    """As the documentation has it: hardware, virtual machine and process id, each in its bits, the lowest 24 of a thread."""
    return hardware << 56 | machine << 48 | pid << 24


def global_tid(pid: int, tid: int) -> int:
    return global_pid(pid) | tid


class NsysFile:
    """One file; a table is made when it gets its first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sql = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self._tables: set[str] = set()

    def table(self, name: str, columns: str = "") -> None:
        if name not in self._tables:
            self._tables.add(name)
            self.sql.execute(f"CREATE TABLE {name} ({columns or COLUMNS[name]})")

    def add(self, table: str, **row: Any) -> None:
        self.table(table)
        marks = ", ".join("?" * len(row))
        self.sql.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
        )

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def call(self, name: str, start: int, end: int, pid: int, tid: int, **more: Any) -> None:
        row: Mapping[str, Any] = {"returnValue": 0, "eventClass": 0, **more}
        thread = global_tid(pid, tid)
        name_id = self.string(name)
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            globalTid=thread,
            nameId=name_id,
            **row,
        )

    def kernel(
        self, name: str, start: int, end: int, *, pid: int, stream: int = 7, **more: Any
    ) -> None:
        row = {"deviceId": 0, "contextId": 1, "shortName": self.string("short"), **more}
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            streamId=stream,
            globalPid=global_pid(pid),
            demangledName=self.string(name),
            **row,
        )

    def range(
        self, text: str | None, start: int, end: int | None, pid: int, tid: int, **more: Any
    ) -> None:
        row = {"eventType": 59, "domainId": 0, **more}
        self.add(
            "NVTX_EVENTS", start=start, end=end, text=text, globalTid=global_tid(pid, tid), **row
        )

    def done(self) -> Path:
        self.sql.commit()
        self.sql.close()
        return self.path
