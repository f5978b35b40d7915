"""``carme-hub folders disk`` and ``verify``: how full a folder is, and whether its checksums hold; jobs find it out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from traitlets import Bool

from carme_hub.cli.base import positional_arguments, table
from carme_hub.cli.disk.command import place_row
from carme_hub.domain.disk_use import size

from .client import FolderTask, path_of

_LIVE = ("asked", "waiting", "running")
#: Seconds between two questions for a job that is waited for.
_PAUSE = 2.0


class _JobTask(FolderTask):
    """A command that may submit a job, and wait for its end."""

    act = ""
    wait = Bool(False, help="Wait for the end of the job, and say what it has found.").tag(config=True)
    flags: Any = {**FolderTask.flags, "wait": ({"_JobTask": {"wait": True}}, "Wait for the end of the job.")}

    async def submitted(self, name: str) -> Mapping[str, Any]:
        """Submit the job, and with --wait return it at its end."""
        job = await self.ask("POST", path_of(name, self.act))
        said = ""
        while self.wait and job["state"] in _LIVE:
            if job["said"] != said:
                said = job["said"]
                self.note(f"The job {said}.")
            await asyncio.sleep(_PAUSE)
            job = (await self.ask("GET", path_of(name, "disk" if self.act == "measure" else "verification")))["job"]
        return job


class DiskApp(_JobTask):
    """Show how full a folder is."""

    name = "carme-hub folders disk"
    description = """Show how full a folder is by its quota, and its file system, how fast it grows, and its largest
    folders as a job has counted them. With --measure such a job is submitted, which runs as you; --wait waits for it.
    Exit status: 0, 1 where it is full or nearly, or the job failed."""
    examples = "carme-hub folders disk genomes\ncarme-hub folders disk genomes --measure --wait"
    act = "measure"
    measure = Bool(False, help="Submit a job that measures it.").tag(config=True)
    flags: Any = {**_JobTask.flags, "measure": ({"DiskApp": {"measure": True}}, "Submit a job that measures it.")}

    async def work(self) -> int:
        """Show it."""
        [name] = positional_arguments(self, "FOLDER")
        failed = False
        if self.measure:
            job = await self.submitted(name)
            failed = job["state"] == "failed"
            if not self.wait or failed:
                self.note(f"The job {job['said']}.")
        found = await self.ask("GET", path_of(name, "disk"))
        self.say(found, disk_text(name, found))
        return 1 if failed or any(each["warning"] for each in found["places"] or ()) else 0


class VerifyApp(_JobTask):
    """Compare a folder with its checksums."""

    name = "carme-hub folders verify"
    description = """Submit a job that compares the files of a folder with its file of checksums (sha256sum), as its
    description names it; the job runs as you. --wait waits for its end, and says which files differ; --last submits
    nothing, and says what the last one has found. Exit status: 0, 1 where something is not as listed."""
    examples = "carme-hub folders verify genomes --wait\ncarme-hub folders verify genomes --last"
    act = "verify"
    last = Bool(False, help="Say what the last one has found.").tag(config=True)
    flags: Any = {**_JobTask.flags, "last": ({"VerifyApp": {"last": True}}, "Say what the last one has found.")}

    async def work(self) -> int:
        """Compare it."""
        [name] = positional_arguments(self, "FOLDER")
        if not self.last:
            job = await self.submitted(name)
            if not self.wait or job["state"] == "failed":
                self.say(job, f"The job {job['said']}.")
                return 1 if job["state"] == "failed" else 0
        found = await self.ask("GET", path_of(name, "verification"))
        self.say(found, verification_text(name, found))
        faults = ("differs", "missing", "unreadable", "outside", "bad_lines")
        return 0 if found["ended"] and found["complete"] and not any(found[each] for each in faults) else 1


def disk_text(name: str, found: Mapping[str, Any]) -> str:
    """Return how full a folder is, as lines of text."""
    lines = []
    if found["places"]:
        head = ("place", "used", "limit", "full", "a day")
        lines.append(table(head, [place_row(each) for each in found["places"]], "used limit full a_day"))
        lines += [each["warning"] for each in found["places"] if each["warning"]]
    else:
        lines.append(f"How full {name} is, is not known at the moment.")
    if found["folders"]:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(found["measured"]))
        lines.append(f"\nIts largest folders, measured {when} UTC" + ("" if found["complete"] else ", in part") + ":")
        rows = [(ascii(each["path"])[1:-1], size(each["bytes"]), f"{each['files']:,}") for each in found["folders"]]
        lines.append(table(("folder", "used", "files"), rows, "used files"))
    elif not found["measured"]:
        lines.append(f"Nobody has measured it: carme-hub folders disk {name} --measure")
    return "\n".join(lines)


def verification_text(name: str, found: Mapping[str, Any]) -> str:
    """Return what a comparison has found, as lines of text."""
    if not found["ended"]:
        return f"{name} was not compared with its checksums yet."
    lines = [f"{name}: {found['said']} (by {found['by']})"]
    lines += [f"  {fault}: {ascii(each)[1:-1]}" for fault, names in found["names"].items() for each in names]
    return "\n".join(lines)
