"""Limits that Slurm has already, as quotas of a policy: the way back of ``slurm_limits.plan``. Pure.

A limit becomes a quota only where the quota means the same. The others are reported: limits of a QOS, of a partition,
of other resources than GPUs, and of a user in one of several accounts (a rule on a user counts in all of them). Limits
that Carme Hub itself has written to Slurm are in the policy already, and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.quotas.last_written_limits import id_of as id_of_limit
from carme_hub.domain.quotas.last_written_limits import is_ours
from carme_hub.domain.quotas.policy_values import write_duration
from carme_hub.domain.quotas.sacctmgr_argv import Entity
from carme_hub.domain.quotas.slurm_limits import GPU, ROOT, State

from .rows import Row, id_of

#: The quota's key of each limit of GPUs. Values are numbers of GPUs, GPU-minutes, minutes, and numbers of jobs.
_KEYS = {f"GrpTRES/{GPU}": "concurrent_gpus", f"MaxTRES/{GPU}": "session_gpus", "MaxWall": "time_limit"}
_BUDGET = f"GrpTRESMins/{GPU}"
_JOBS = {Entity.ACCOUNT: ("GrpJobs",), Entity.USER: ("MaxJobs", "GrpJobs")}
#: They permit, and limit nothing.
_NO_LIMITS = ("QOS", "DefaultQOS", "Name", "Flags")


@dataclass(frozen=True, slots=True)
class SlurmRows:
    """Rows that Slurm's limits make, and sentences on limits that no quota means."""

    rows: tuple[Row, ...]
    left_out: tuple[str, ...]


def rows_of_slurm(state: State, last: Mapping[str, str]) -> SlurmRows:
    """Return the quotas that Slurm's limits are.

    Args:
        last: the limits that Carme Hub last wrote, by id.
    """
    accounts_of: dict[str, set[str]] = {}
    for entity, name in state.limits:
        if entity is Entity.USER:
            account, _, user = name.partition("/")
            accounts_of.setdefault(user.partition("/")[0], set()).add(account)
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    for (entity, name), limits in sorted(state.limits.items(), key=lambda one: (one[0][0].value, one[0][1])):
        account, _, rest = name.partition("/")
        user, _, partition = rest.partition("/")
        limiting = {key: value for key, value in limits.items() if key.partition("/")[0] not in _NO_LIMITS}
        theirs = {
            key: value for key, value in limiting.items() if not is_ours(id_of_limit((entity, name), key), value, last)
        }
        if not theirs or account == ROOT:
            continue
        why = ""
        if entity is Entity.QOS:
            why = "of a QOS: no rule of a policy is about one"
        elif partition:
            why = "of a user in one partition: no rule of a policy is about one"
        elif user and len(accounts_of[user]) > 1:
            why = "of a user in one of several accounts: a rule on a user counts in all of them"
        if why:
            left_out[why] += len(theirs)
            continue
        subject = ("user", user) if user else ("account", account)
        quota, others = _quota(entity, theirs, state)
        left_out.update(others)
        if quota:
            place = f"{entity.value} {name} in Slurm"
            rows.append(Row(place, {"id": f"slurm-{id_of(*subject)}", subject[0]: subject[1], **quota}))
    sentences = [f"{count} limit{'' if count == 1 else 's'} {why}." for why, count in sorted(left_out.items())]
    return SlurmRows(tuple(rows), tuple(sentences))


def _quota(entity: Entity, limits: Mapping[str, str], state: State) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a quota, and why each of the other limits is left out."""
    quota: dict[str, Any] = {}
    others: list[str] = []
    no_type: set[str] = set()
    for key, text in limits.items():
        word, _, tres = key.partition("/")
        if not text.isdigit():
            others.append(f"{word} with a value that is no number")
        elif key in _KEYS:
            quota[_KEYS[key]] = write_duration(60 * int(text)) if key == "MaxWall" else int(text)
        elif key == _BUDGET:
            quota |= {"gpu_time": f"{int(text)}min", "window": "total"}
        elif key in _JOBS[entity]:
            quota["sessions"] = min(int(text), quota.get("sessions", int(text)))
        elif word == "GrpTRES" and tres.startswith(f"{GPU}:") and text == "0":
            no_type.add(tres.removeprefix(f"{GPU}:"))
        else:
            others.append(f"{word} of {tres or entity.value}: no rule of a policy means the same")
    if no_type:
        every = {name.removeprefix(f"{GPU}:") for name in state.tres if name.startswith(f"{GPU}:")}
        quota["gpu_types"] = sorted(every - no_type)
    return quota, others
