"""The policy as the administrator's page handles it: shown, tried on what was used, switched on, with its history."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from carme_hub.accounting import policy_trial
from carme_hub.accounting.audit import POLICY_NOTE
from carme_hub.accounting.ledger import in_thread
from carme_hub.accounting.settings import read_policy, write_policy
from carme_hub.domain.quotas.policy import Policy, dump_policy
from carme_hub.domain.quotas.rules import Who
from carme_hub.errors import ConfigError, Refused
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.ledger.writes import Note
from carme_hub.store.threads import in_store_thread

#: Characters of a policy file.
LONGEST = 200_000


class PolicyChanged(Refused):
    """Somebody else changed the policy in the meantime."""

    reason = "policy-changed"


class NotEditable(Refused):
    """The policy is not in a file that the service may write."""

    reason = "not-editable"


@dataclass(frozen=True, slots=True)
class CurrentPolicy:
    """The policy as it is.

    Attributes:
        stamp: changes with the text. problem: why the file as it is now is not in force.
        fixed: why it cannot be edited here, "" when it can.
    """

    text: str
    stamp: str
    problem: str
    fixed: str


def dumped(policy: Policy) -> str:
    """Return a policy as the file has it."""
    return str(yaml.safe_dump(dump_policy(policy), sort_keys=False, allow_unicode=True))


def current(service: Any) -> CurrentPolicy:
    """Return the policy in force as text, and whether it can be edited; synchronous."""
    policy, name = service.policy(), service.settings.policy_file
    text, fixed = dumped(policy), ""
    if not name:
        fixed = "The policy is in the hub's configuration. To edit it here, name a file in CarmeQuotas.policy_file."
    elif not os.access(Path(name).parent, os.W_OK):
        fixed = f"The service may not write the folder {Path(name).parent}, so the policy is edited there by hand."
    return CurrentPolicy(text, hashlib.sha256(text.encode()).hexdigest(), service.policy.problem, fixed)


def difference(before: str, after: str) -> list[tuple[str, str]]:
    """Return changed lines as (sign, line), with a little of what is around them."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return [(line[:1].strip() or " ", line[1:]) for line in lines if not line.startswith(("---", "+++", "@@"))]


def lacks_members(service: Any, policy: Policy) -> bool:
    """Return whether some rule is about groups or roles while nobody knows who is in them."""
    return not service.roster.people and any(quota.who in (Who.GROUP, Who.ROLE) for quota in policy.quotas)


async def try_policy(
    service: Any, policy: Policy, start: float, end: float, tell: Callable[[str], None] = lambda _words: None
) -> policy_trial.Trial:
    """Return what the jobs of some time would have done under a policy; nothing is written."""
    await service.roster.refresh()
    reader, people = UsageReader(service.slurm.commands()), service.roster.people
    return await policy_trial.try_policy(service.ledger.context, reader, policy, people, start, end, tell=tell)


async def history(service: Any, most: int = 50) -> list[Note]:
    """Return the policies that were switched on, newest first."""
    context = service.ledger.context

    def ask() -> list[Note]:
        with context.store.reading(context.cluster) as reads:
            return reads.note_history(POLICY_NOTE, most)

    return await in_store_thread(ask)


async def switch_on(service: Any, text: str, *, stamp: str, actor: str, reason: str) -> Policy:
    """Put a policy in force.

    Args:
        stamp: of the policy that the actor saw. reason: for the history.

    Raises:
        ConfigError: the text is no policy, or the file cannot be written.
        PolicyChanged, NotEditable: it is not the one that the actor saw; it cannot be edited here.
    """
    policy = read_policy(text, "policy")
    context, file = service.ledger.context, Path(service.settings.policy_file)

    def write() -> None:
        with context.store.transaction(context.cluster) as writes:
            now = current(service)
            if now.fixed:
                raise NotEditable(now.fixed)
            if now.stamp != stamp:
                raise PolicyChanged(
                    "The policy was changed in the meantime. Open the page again, and look at what it says now."
                )
            at = context.clock()
            if not writes.note_history(POLICY_NOTE, 1):
                writes.add_note(POLICY_NOTE, {"text": now.text, "reason": "as it was before the first change here"}, at)
            writes.add_note(POLICY_NOTE, {"text": dumped(policy), "reason": reason}, at, actor)
            # The last step: a file that cannot be written leaves no line in the history.
            write_policy(file, policy)

    await in_thread(write)
    service.policy()
    return policy


async def notice_edits(service: Any) -> bool:
    """Put a policy that was changed by hand in the history, by who owns the file; return whether there was one."""
    if not service.settings.policy_file:
        return False
    context, file = service.ledger.context, Path(service.settings.policy_file)

    def look() -> bool:
        with context.store.transaction(context.cluster) as writes:
            policy, known = service.policy(), writes.note_history(POLICY_NOTE, 1)
            if known and _says(known[0].value["text"]) == policy:
                return False
            text = dumped(policy)
            if not known:
                writes.add_note(
                    POLICY_NOTE, {"text": text, "reason": "as it was when it was first seen"}, context.clock()
                )
                return False
            value = {"text": text, "reason": "the file was changed by hand"}
            writes.add_note(POLICY_NOTE, value, context.clock(), f"file:{_owner(file)}")
            return True

    return await in_thread(look)


def _says(text: str) -> Policy | None:
    try:
        return read_policy(text, "policy")
    except ConfigError:
        return None  # it is of another release


def _owner(file: Path) -> str:
    try:
        return file.owner()
    except (OSError, KeyError):
        return "unknown"
