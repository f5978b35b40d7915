"""The keeper of shared folders with 10,000 folders of 1,000 people, and one folder with a million files.

``python benchmarks/folders.py [--folders 10000] [--files 1000000]`` as root or as an ordinary user, without Slurm and
without a hub, in some minutes; prints one JSON object a line. The program is the real one, in a process of its own for
each call, the database SQLite. Each folder has an owner, two writers and two readers, one of ten members by a group.

There is no peer: Backend.AI keeps virtual folders in its own database and mounts them, and Open OnDemand's sets ACLs
once. What stands beside the walks is ``find`` for the same files, which reads no ACLs, and ``rm -r``.

Goals: a look every 20 seconds takes 1 s at most, a comparison 10 s of its 300; access ends within 1 s; the event loop,
which answers pages meanwhile, stands still for 250 ms at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # carme-folders in a folder of its own

import pytest  # noqa: E402
from measure import figure, load, log_progress, median  # noqa: E402
from rig.folder_program import Program  # noqa: E402
from sqlalchemy import insert  # noqa: E402
from traitlets.config import Config  # noqa: E402

from carme_hub.domain.folders.folder import Folder, FolderState, Member, MemberState, OwnerKind, SubjectKind  # noqa: E402
from carme_hub.domain.folders.rules import Actor  # noqa: E402
from carme_hub.folders.folders import Folders  # noqa: E402
from carme_hub.folders.program import FolderProgram  # noqa: E402
from carme_hub.folders.reconciler import FolderReconciler  # noqa: E402
from carme_hub.folders.settings import CarmeFolders  # noqa: E402
from carme_hub.slurm.command import Commands  # noqa: E402
from carme_hub.store.engine import CarmeStore  # noqa: E402
from carme_hub.store.folders import tables  # noqa: E402
from carme_hub.store.folders.store import FolderStore, _member_row, _row  # noqa: E402

PEOPLE, MEMBERS, FIRST = 1000, 5, 200_000
NOW = 1_800_000_000.0


def user(number: int) -> str:
    return f"u{number % PEOPLE:04}"


def uid(number: int) -> int:
    return FIRST + number % PEOPLE


class Bench:
    """One root with folders, and the database that knows them."""

    def __init__(self, place: Path, count: int) -> None:
        self.program = Program(place, pytest.MonkeyPatch())
        config = Config()
        config.CarmeStore.url = f"sqlite:///{place / 'carme-hub.sqlite'}"
        self.engine = CarmeStore(config=config).open()
        self.store = FolderStore(self.engine, "sun")
        command = ["/usr/bin/python3", "-IS", str(place / "libexec" / "carme-folders")]
        self.settings = CarmeFolders(roots={"projects": str(self.program.root)}, command=command)
        caller = FolderProgram(command, Commands(max_bytes=1 << 26))
        log = logging.getLogger("folders")
        self.reconciler = FolderReconciler(self.settings, self.store, caller, self.people, log)
        self.folders = Folders(self.settings, self.store, caller, self.reconciler.apply, "sun")
        self.ids = [f"{number:012x}" for number in range(1, count + 1)]

    async def people(self, names: Collection[str]) -> Collection[Actor]:
        return [Actor(name, {"lab"}, ()) for name in names]

    def make(self) -> None:
        """Write all folders to the disk and into the database, as many acts would have left them."""
        folders, members = [], []
        for number, id in enumerate(self.ids):
            users = [number * 7 + step * 131 for step in range(MEMBERS)]
            self.on_disk(id, [uid(each) for each in users], [uid(each) for each in users[:3]])
            where = (OwnerKind.USER, user(users[0]), "projects", user(users[0]), NOW)
            folders.append(_row(Folder(id, "sun", f"folder-{number}", *where, state=FolderState.READY)))
            first = number * (MEMBERS + 1) + 1
            group = Member(first, id, SubjectKind.GROUP, "lab", "ro", MemberState.OPEN, user(users[0]), NOW)
            members.append(_member_row(group))
            for place, each in enumerate(users):
                role = "rw" if place < 3 else "ro"
                row = Member(
                    *(first + 1 + place, id, SubjectKind.USER, user(each), role, MemberState.ACCEPTED),
                    *(user(users[0]), NOW, first if place == 4 and number % 2 else 0, NOW),
                )
                members.append(_member_row(row.replace(applied=role, uid=uid(each))))
        with self.engine.begin() as connection:
            connection.execute(insert(tables.folder), folders)
            connection.execute(insert(tables.member), members)

    def on_disk(self, id: str, members: list[int], writers: list[int]) -> None:
        tree, outer = self.program.tree, self.program.root / id
        outer.mkdir(mode=0o700)
        (outer / "data").mkdir(mode=0o700)
        for path, acl, users in (
            (outer / "data", tree.Acl(7, 5, 5), dict.fromkeys(writers, 7)),
            (outer, tree.Acl(7, 0, 0), dict.fromkeys(members, 1)),
        ):
            handle = os.open(path, os.O_RDONLY)
            tree.set_acl(handle, tree.with_users(acl, users))
            if path.name == "data":
                tree.set_acl(handle, acl, tree.DEFAULT)
            os.close(handle)


@contextlib.asynccontextmanager
async def stalls(found: list[float]) -> AsyncIterator[None]:
    """Measure for how long nothing else could run in the event loop."""

    async def tick() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            found.append(time.monotonic() - began - 0.005)

    task = asyncio.create_task(tick())
    try:
        await asyncio.sleep(0.02)
        yield
        await asyncio.sleep(0.02)
    finally:
        task.cancel()


async def timed(name: str, act: Callable[[], Awaitable[object]], rounds: int, goal: float) -> bool:
    """Print the median time of an act, and the longest stall of the event loop meanwhile."""
    took, longest = [], list[float]()
    async with stalls(longest):
        for _ in range(rounds):
            began = time.monotonic()
            await act()
            took.append(time.monotonic() - began)
    holds = figure(name, median(took), "s", goal=goal, rounds=rounds, load=load())
    return figure(f"{name}, longest stall of the event loop", 1000 * max(longest), "ms", goal=250) and holds


async def keeper(bench: Bench) -> bool:
    """Measure looks, comparisons, and the end of one user's access."""
    count = len(bench.ids)
    holds = await timed(f"a look at {count} folders with nothing to do", bench.reconciler.look, 5, 1.0)
    holds &= await timed(f"a comparison of {count} folders with the disk", bench.reconciler.compare, 3, 10.0)
    changed = [id for id in bench.ids if bench.store.get(id).folder.drift]  # type: ignore[union-attr]
    holds &= figure("folders that seem to be changed by hand", len(changed), "folders", goal=0)
    ended = iter(range(0, count, max(1, count // 20)))

    async def end() -> None:
        found = bench.store.get(bench.ids[next(ended)])
        assert found is not None
        one = next(row for row in found.members if row.role == "ro" and row.kind is SubjectKind.USER)
        done = await bench.folders.revoke(found.folder.id, Actor(found.folder.owner), one.id)
        assert done.folder.problem == ""

    holds &= await timed("the access of one user is ended, on the disk", end, 10, 1.0)
    by_hand = bench.ids[: count // 100]
    for id in by_hand:
        (bench.program.root / id).chmod(0o700)
    await bench.reconciler.compare()
    found = sum(1 for one in bench.store.every() if one.folder.drift)
    return holds & figure("folders changed by hand that are found", found, "folders", goal=len(by_hand), at_least=True)


def walks(bench: Bench, files: int) -> None:
    """Measure what goes through all files of one folder."""
    id = "f" * 12
    bench.on_disk(id, [uid(1), uid(2)], [uid(1)])
    data = bench.program.root / id / "data"
    began = time.monotonic()
    for number in range(files):
        if number % 1000 == 0:
            inner = data / f"{number // 1000}"
            inner.mkdir()
        os.close(os.open(inner / f"{number}", os.O_CREAT | os.O_WRONLY, 0o644))
    log_progress(f"{files} files made in {time.monotonic() - began:.0f} s")
    command = list(bench.settings.command)
    peer = seconds(["find", str(data), "-printf", ""])
    for act, *more in (("scan",), ("spread", "-"), ("spread", str(uid(1)))):
        if more == [str(uid(1))]:
            handle = os.open(data, os.O_RDONLY)  # another writer takes the place of the first
            tree = bench.program.tree
            tree.set_acl(handle, tree.with_users(tree.rights(handle), {uid(2): 7}))
            os.close(handle)
        took = seconds([*command, act, "projects", id, *more])
        named = {"scan": "counted", "-": "spread, nothing to do"}.get(more[0] if more else act, "spread, all changed")
        figure(f"{files} files {named}", took, "s", goal=240, find=peer, load=load())
    figure(f"{files} files removed", seconds([*command, "remove", "projects", id]), "s", goal=240, load=load())


def seconds(argv: list[str]) -> float:
    """Return how long a command takes, which succeeds."""
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=1_000_000, help="0: leave that out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carme-folders-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        bench = Bench(place, options.folders)
        began = time.monotonic()
        bench.make()
        log_progress(f"{options.folders} folders made in {time.monotonic() - began:.0f} s")
        holds = asyncio.run(keeper(bench))
        if options.files:
            walks(bench, options.files)
        bench.engine.dispose()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
