"""The hub's context as far as jobs of users go, with a Slurm that does to its queue what it is asked to do."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.own_jobs.acts import Act
from carme_hub.domain.cluster.own_jobs.details import JobDetails
from carme_hub.domain.cluster.own_jobs.ended import EndedJob
from carme_hub.domain.cluster.own_jobs.resubmission import Resubmission
from carme_hub.domain.cluster.own_jobs.targets import Target, overlap
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.owner.ways import FileNotRead

RUNS = Job(
    5, "train.sh", "alice", "RUNNING", Phase.ACTIVE, nodes=("n1",), submitted=1.0, gpus=Gpus("a100", 2), time_limit=60
)
WAITS = Job(6, "later.sh", "alice", "PENDING", Phase.WAITING, reason="Priority", submitted=2.0, time_limit=60)
TASK = Job(8, "sweep.sh", "alice", "RUNNING", Phase.ACTIVE, nodes=("n2",), submitted=3.0, array=7, tasks="1")
ARRAY = Job(7, "sweep.sh", "alice", "PENDING", Phase.WAITING, submitted=3.0, array=7, tasks="2-9")
BOBS = Job(9, "secret.sh", "bob", "RUNNING", Phase.ACTIVE, submitted=4.0)
ENDED = replace(RUNS, id=10, phase=Phase.TERMINAL, state="COMPLETED")
SCRIPT = "#!/bin/bash\n#SBATCH --mem=1G\necho <done>\n"
RECORD = EndedJob(
    20, "past.sh", "alice", "COMPLETED", Phase.TERMINAL, 100.0, 200.0, 3800.0, gpus=Gpus("a100", 1), cpus=4,
    memory_mib=16384, minutes=120, cpu_seconds=3600.0, peak_mib=1000, folder="/home/alice",
    submit_line="sbatch past.sh",
)  # fmt: skip


class SlurmThatActs:
    """Changes its queue as scontrol and scancel would, and notes what it did; an error by a target is raised instead.

    Attributes:
        stubborn: targets on which nothing happens, with what Slurm says of it. silent: queries are not answered.
        files: texts by path.
    """

    reads_files = reads_script_options = True

    def __init__(self, *jobs: Job) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.done: list[tuple[str, str, str]] = []
        self.submitted: list[Resubmission] = []
        self.errors: dict[str, Exception] = {}
        self.stubborn: dict[str, str] = {}
        self.silent = False
        self.files: dict[str, bytes] = {}
        self.unreadable: dict[str, str] = {}
        self.asked: list[str] = []
        self.records = [RECORD]
        self.scripts = {5: SCRIPT, 6: SCRIPT, 7: SCRIPT}
        self.stored: dict[int, str] = {}
        self.held: set[tuple[int, int]] = set()

    def snapshot(self) -> Snapshot:
        return Snapshot(0, 0, dict(self.jobs))

    async def act(self, user: str, target: Target, act: Act, minutes: int = 0) -> str:
        if str(target) in self.errors:
            raise self.errors[str(target)]
        self.done.append((user, act.value, str(target)))
        if str(target) in self.stubborn:
            return self.stubborn[str(target)]
        for job in list(self.jobs.values()):
            if target.meets(job) and job.user == user:
                self._change(job, target, act, minutes)
        return ""

    def _change(self, job: Job, target: Target, act: Act, minutes: int) -> None:
        waits = job.phase is Phase.WAITING
        if target.tasks and not job.tasks.isdigit() and act in (Act.HOLD, Act.RELEASE):  # a record is split off
            numbers = {
                (job.array, n) for n in range(100) if overlap(target.tasks, str(n)) and overlap(job.tasks, str(n))
            }
            self.held = self.held | numbers if act is Act.HOLD else self.held - numbers
            self.jobs[job.id] = replace(job, reason="Priority,JobHeldUser" if self.held else "Priority")
            return
        if act is Act.CANCEL:
            changed = replace(job, phase=Phase.TERMINAL, state="CANCELLED")
        elif act is Act.HOLD and waits:
            changed = replace(job, reason="JobHeldUser")
        elif act is Act.RELEASE and waits:
            changed = replace(job, reason="Priority")
        elif act is Act.REQUEUE and not waits:
            changed = replace(job, phase=Phase.ENDING, state="COMPLETING")
        elif act is Act.LIMIT:
            changed = replace(job, time_limit=minutes)
        else:
            return
        self.jobs[job.id] = changed

    async def tasks(self, user: str, arrays: Collection[int]) -> list[Job]:
        """Return what waits in one row as the tasks that it stands for."""
        if self.silent:
            raise SlurmUnreachable("timed out")
        found = []
        for job in self.jobs.values():
            if job.array in arrays and job.user == user:
                first, _, last = job.tasks.partition("%")[0].partition("-")
                for number in range(int(first), int(last or first) + 1):
                    waits = job.phase is Phase.WAITING and job.reason.endswith(",JobHeldUser")
                    reason = "Priority" if waits else job.reason
                    reason = "JobHeldUser" if (job.array, number) in self.held else reason
                    found.append(replace(job, tasks=str(number), reason=reason))
        return found

    async def details(self, user: str, target: Target) -> JobDetails | None:
        self._ask("details")
        for job in sorted(self.jobs.values(), key=lambda each: each.state != "PENDING"):
            if job.user == user and target.meets(job):
                return JobDetails(
                    *(job.id, user, job.name, job.state, job.array, job.tasks),
                    command=f"/home/{user}/{job.name}",
                    folder=f"/home/{user}",
                    minutes=60,
                    memory="1G",
                )
        return None

    async def record(self, user: str, target: Target) -> EndedJob | None:
        self._ask("record")
        return next((each for each in self.records if each.user == user and each.id == target.number), None)

    async def ended(self, user: str, since: float, until: float = 0.0) -> tuple[EndedJob, ...]:
        self._ask("ended")
        return tuple(each for each in self.records if each.user == user)

    async def memory_is_per_cpu(self, _user: str, _number: int) -> bool:
        return True

    async def script(self, user: str, number: int) -> str:
        self._ask("script")
        return self.scripts.get(number, "")

    async def stored_script(self, user: str, number: int) -> str:
        self._ask("stored_script")
        return self.stored.get(number, "")

    async def submit(self, job: Resubmission) -> int:
        if "submit" in self.errors:
            raise self.errors["submit"]
        self.submitted.append(job)
        return 100 + len(self.submitted)

    async def file(self, user: str, request: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
        path = str(request["path"])
        self.asked.append(f"{user} {json.dumps(request)}")
        if path in self.unreadable:
            raise FileNotRead("no", self.unreadable[path])
        if path not in self.files:
            raise FileNotRead("there is no such file", "missing")
        text = self.files[path]
        if "find" in request:
            words = str(request["find"]).encode()
            lines = [{"at": 0, "text": line.decode()} for line in text.split(b"\n") if words in line]
            return {"size": len(text), "searched_from": 0, "count": len(lines), "lines": lines}, b""
        offset = int(str(request["offset"]))
        begin = max(0, len(text) + offset) if offset < 0 else offset
        about = {"size": len(text), "offset": begin, "modified": 1.0, "inode": 7}
        return about, text[begin : begin + int(str(request["length"]))]

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.silent:
            raise SlurmUnreachable("timed out")


class HubWithJobs:
    """What acts on jobs needs of the hub."""

    def __init__(self, slurm: SlurmThatActs, sessions: tuple[Any, ...] = ()) -> None:
        self.own_jobs = slurm
        self.sessions = sessions
        self.ended: list[str] = []
        self.settings = SimpleNamespace(submit_again=True)
        self.log = SimpleNamespace(warning=lambda *_: None, info=lambda *_: None, debug=lambda *_: None)
        self.watcher = SimpleNamespace(fresh=self._fresh)
        self.registry = SimpleNamespace(
            open_sessions=lambda: self.sessions,
            get=self._get,
            current=lambda id: next((each for each in self.sessions if each.id == id), None),
            cluster="lab",
        )
        self.reconciler = SimpleNamespace(cancel=self._cancel)
        self.fails_after = -1

    async def _get(self, id: str) -> Any:
        return self.registry.current(id)

    async def _cancel(self, id: str, _reason: str) -> None:
        self.ended.append(id)

    async def _fresh(self) -> Snapshot:
        if self.own_jobs.silent or self.fails_after == 0:
            raise SlurmUnreachable("no answer from Slurm in 30 s")
        self.fails_after -= 1
        return self.own_jobs.snapshot()
