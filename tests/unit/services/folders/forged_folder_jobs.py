"""Slurm for jobs of folders: it keeps what is submitted, and runs a job's script when a test lets it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Phase
from carme_hub.errors import SlurmRejected, SlurmUnreachable


@dataclass
class SlurmThatRunsWhenTold:
    """The used part of a client; jobs wait until ``run``."""

    specs: list[JobSpec] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    refuses: str = ""
    silent: bool = False
    loses_answer: bool = False

    async def submit(self, spec: JobSpec) -> int:
        """Take a job."""
        if self.refuses:
            raise SlurmRejected(self.refuses)
        if self.silent:
            raise SlurmUnreachable("no answer")
        self.specs.append(spec)
        job = Job(40 + len(self.specs), spec.name, spec.user, "PENDING", Phase.WAITING)
        self.jobs[spec.name] = job
        if self.loses_answer:
            raise SlurmUnreachable("the connection broke")
        return job.id

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the job of that name."""
        if self.silent:
            raise SlurmUnreachable("no answer")
        return tuple(job for job in self.jobs.values() if (job.name, job.user) == (name, user))

    async def records(self, name: str, user: str, since: float) -> Sequence[JobRecord]:
        """Return nothing: accounting has forgotten it as well."""
        return ()

    def end(self, state: str, exit_code: int = 0, end: float = 0.0) -> None:
        """Let the last job end in some way."""
        name = self.specs[-1].name
        over = {"phase": Phase.TERMINAL, "state": state, "exit_code": (exit_code, 0), "end": end}
        self.jobs[name] = replace(self.jobs[name], **over)  # type: ignore[arg-type]

    async def run(self, path: Path, **changes: Any) -> int:
        """Run the last job's script on a folder of this machine; return its exit status.

        Args:
            changes: of the data document.
        """
        return await asyncio.to_thread(run_script, self.specs[-1], path, **changes)


def run_script(spec: JobSpec, path: Path, **changes: Any) -> int:
    """Run a job's script as Slurm does, with its data in the session folder."""
    data = {**json.loads(spec.data), "path": str(path), **changes}
    folder = path.parent / "session"
    folder.mkdir(mode=0o700)
    (folder / "data.json").write_text(json.dumps(data))
    environ = {**os.environ, "CARME_SESSION_FOLDER": str(folder)}
    done = subprocess.run([sys.executable, "-IS", "-"], input=spec.script, env=environ, text=True, timeout=60)
    assert not folder.exists(), "it leaves nothing"
    return done.returncode
