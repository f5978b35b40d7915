"""What a bundle has of Slurm: its settings, nodes and limits in full, the queue and associations as numbers.

Names of jobs of other people and lists of users are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from carme_hub.cli.explain.reader import commands_client
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.settings import CarmeSlurm

from .parts import Part

#: Name of a part and the command whose answer it is.
_TEXTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ping", ("scontrol", "ping")),
    ("config", ("scontrol", "show", "config")),
    ("partitions", ("scontrol", "show", "partition")),
    ("reservations", ("scontrol", "show", "reservation")),
    ("licenses", ("scontrol", "show", "licenses")),
    ("nodes", ("sinfo", "-N", "-h", "-o", "%N|%P|%T|%G|%c|%m|%v|%E")),
    ("qos", ("sacctmgr", "-P", "show", "qos")),
    ("tres", ("sacctmgr", "-P", "show", "tres")),
    ("clusters", ("sacctmgr", "-P", "show", "cluster", "format=Cluster,ControlHost,ControlPort,RPC")),
    ("accounting", ("sacctmgr", "show", "configuration")),
)


def slurm_parts(settings: CarmeSlurm) -> Iterator[Part]:
    """Yield the parts about Slurm."""
    commands = settings.commands()
    for name, argv in _TEXTS:
        yield Part(f"slurm/{name}.txt", " ".join(argv), partial(_text, commands, argv))
    queue = ("squeue", "-h", "--states=all", "-o", "%T|%P|%r")
    yield Part("slurm/queue.json", f"{' '.join(queue)}, counted", partial(_counted, commands, queue))
    yield Part("slurm/own-jobs.json", "squeue, jobs of the hub's sessions", partial(_own_jobs, settings))
    associations = ("sacctmgr", "-n", "-P", "show", "assoc", f"cluster={settings.cluster}", "format=Account,User")
    yield Part(
        "slurm/associations.json", f"{' '.join(associations)}, counted", partial(_numbers, commands, associations)
    )


async def _text(commands: Commands, argv: Sequence[str]) -> str:
    answer = await commands.query(*argv)
    if answer.code != 0 or answer.reports_error:
        raise SlurmUnreachable(answer.message)
    return answer.out


async def _counted(commands: Commands, argv: Sequence[str]) -> list[dict[str, Any]]:
    lines = Counter((await _text(commands, argv)).splitlines())
    found = []
    for line, count in lines.most_common():
        state, partition, reason = (*line.split("|", 2), "", "")[:3]
        found.append({"state": state, "partition": partition, "reason": reason, "jobs": count})
    return found


async def _own_jobs(settings: CarmeSlurm) -> list[dict[str, Any]]:
    snapshot = await commands_client(settings).snapshot()
    return [
        {
            **{"id": job.id, "name": job.name, "user": job.user, "state": job.state, "job_reason": job.reason},
            **{"nodes": list(job.nodes), "partition": job.partition, "submitted": job.submitted, "start": job.start},
            **{"end": job.end, "gpus": str(job.gpus), "restarts": job.restarts},
        }
        for job in snapshot.ours
    ]


async def _numbers(commands: Commands, argv: Sequence[str]) -> dict[str, int]:
    rows = [line.split("|") for line in (await _text(commands, argv)).splitlines()]
    accounts, users = {row[0] for row in rows}, {row[1] for row in rows if len(row) > 1 and row[1]}
    return {"associations": len(rows), "accounts": len(accounts), "users": len(users)}
