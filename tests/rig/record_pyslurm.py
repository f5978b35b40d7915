"""Record the answers of pyslurm and of Slurm's commands at the same moment, for the tests that compare both.

``python tests/rig/record_pyslurm.py FOLDER NAME…`` with an interpreter that has pyslurm, in front of a Slurm 25.11; the
names are those of jobs to record, with the user: ``carme-x:alice``. See ``tests/unit/slurm/golden/pyslurm``.
"""

from __future__ import annotations

import asyncio
import json
import pwd
import re
import sys
import time
from enum import Enum, Flag
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyslurm

from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.command import Answer, Commands
from carme_hub.slurm.pyslurm import server
from carme_hub.slurm.reservations import ReservationsCli
from carme_hub.slurm.submit.submitters import DirectSubmitter


class RecordedObject:
    """One job, node, record or reservation of the library, which records the attributes that are read."""

    def __init__(self, thing: Any, attributes: dict[str, Any]) -> None:
        self._thing, self._words = thing, attributes

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._thing, name)
        except UnicodeDecodeError as error:
            self._words[name] = {"bytes": error.object.hex()}
            raise
        except ValueError:
            self._words[name] = {"flags": None}
            raise
        self._words[name] = _plain(found)
        return found


def _plain(found: Any) -> Any:
    if hasattr(found, "gres"):
        return {"gres": {name: each.count for name, each in found.gres.items()}}
    if isinstance(found, Flag):
        return {"flags": [flag.name for flag in type(found) if flag in found]}
    return {"value": found.value} if isinstance(found, Enum) else found


class Recorder:
    """The library as the product uses it."""

    def __init__(self) -> None:
        self.records: dict[str, list[dict[str, Any]]] = {}
        self.Jobs = SimpleNamespace(load=lambda: self._note("jobs", pyslurm.Jobs.load()))
        self.Nodes = SimpleNamespace(load=lambda: self._note("nodes", pyslurm.Nodes.load()))
        self.Reservations = SimpleNamespace(load=lambda: self._note("reservations", pyslurm.Reservations.load()))
        self.slurmctld = pyslurm.slurmctld
        self.db = SimpleNamespace(
            Connection=pyslurm.db.Connection,
            JobFilter=pyslurm.db.JobFilter,
            Jobs=SimpleNamespace(load=lambda *attributes: self._note("records", pyslurm.db.Jobs.load(*attributes))),
        )

    def _note(self, what: str, found: Any) -> Any:
        things = [RecordedObject(thing, {}) for thing in found.values()]
        for thing in things:
            self.records.setdefault(what, []).append(thing._words)
            if what == "records":
                _ = thing.eligible_time  # by which slurmdbd chooses
        return SimpleNamespace(values=lambda: things)


class RecordingCommands(Commands):
    """Runs commands and stores their answers, with the separator that the tests use."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.count = folder, 0

    async def query(self, name: str, *args: str, timeout: float | None = None, raw: bool = False) -> Answer:
        answer = await super().query(name, *args, timeout=timeout, raw=raw)
        cut = re.search(r"@[a-z]{12}@", " ".join(args))
        text = answer.raw.decode("utf-8", "replace") if raw else answer.out
        text = text.replace(cut[0], "\x02").replace(cut[0].replace("@", "#"), "\x03") if cut else text
        what = "-".join([name, *(word for word in args if word in ("node", "reservation"))])
        file = self.folder / f"{what}.txt"
        before = file.read_text().split("\n", 1) if file.exists() else ["", ""]
        file.write_text(text if not before[0] else "\n".join(before) + text.split("\n", 1)[1])
        return answer


def _text(records: dict[str, Any]) -> str:
    """Return it as JSON with one record on each line."""
    parts = []
    for name, attributes in records.items():
        rows = [json.dumps(each) for each in attributes]
        text = "[\n  " + ",\n  ".join(rows) + "\n ]" if rows and rows[0][0] == "{" else json.dumps(attributes)
        parts.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


async def record(folder: Path, wanted: list[tuple[str, str]]) -> None:
    """Query both."""
    commands, library = RecordingCommands(folder), Recorder()
    cli = SlurmCli(cluster="x", commands=commands, submitter=DirectSubmitter(commands))
    begun = time.time() - 3600
    await cli.snapshot()
    server.jobs(library)
    for attributes in library.records["jobs"]:
        if (
            attributes["time_limit"] is None and (attributes["end_time"] or 0) > time.time()
        ):  # squeue calls it NONE while it lies ahead
            attributes["end_time"] = 4102444800
    await cli.nodes()
    server.nodes(library)
    await ReservationsCli(commands).show()
    server.reservations(library)
    for name, user in wanted:
        await cli.records(name, user, begun)
        server.records(library, name, user, begun)
    numbers = {
        attributes["user_id"] for attributes in (*library.records["jobs"], *library.records.get("records", ()))
    } | {0}
    users = {str(number): pwd.getpwuid(number).pw_name for number in numbers}
    records = {**library.records, "users": users, "tracked": pyslurm.slurmctld.Config.load().accounting_storage_tres}
    (folder / "answers.json").write_text(_text(records))


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1]), [tuple(each.split(":")) for each in sys.argv[2:]]))  # type: ignore[misc]
