"""The policy for the administrator's page and REST: show it, try it on past jobs, activate it, list its history."""

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
from carme_hub.domain.quotas.rules import SubjectKind
from carme_hub.errors import ConfigError, Refused
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.ledger.writes import Note
from carme_hub.store.threads import in_store_thread

#: Characters of a policy file.
MAX_LENGTH = 200_000


class PolicyChanged(Refused):
    """The policy was changed since the actor read it."""

    reason = "policy-changed"


class NotEditable(Refused):
    """The policy is not in a file that the service may write."""

    reason = "not-editable"


@dataclass(frozen=True, slots=True)
class CurrentPolicy:
    """The policy in force.

    Attributes:
        stamp: SHA-256 of the text. problem: why the present content of the file is not in force, "" if it is.
        fixed: why the policy cannot be edited here, "" if it can.
    """

    text: str
    stamp: str
    problem: str
    fixed: str


def policy_text(policy: Policy) -> str:
    """Return a policy as YAML, the format of its file."""
    return str(yaml.safe_dump(dump_policy(policy), sort_keys=False, allow_unicode=True))


def current_policy(service: Any) -> CurrentPolicy:
    """Return the policy in force as text, and whether it can be edited; blocking."""
    policy, name = service.policy(), service.settings.policy_file
    text, fixed = policy_text(policy), ""
    if not name:
        fixed = "The policy is in the hub's configuration. To edit it here, name a file in CarmeQuotas.policy_file."
    elif not os.access(Path(name).parent, os.W_OK):
        fixed = f"The service may not write to the folder {Path(name).parent}, so edit the policy file by hand."
    return CurrentPolicy(text, hashlib.sha256(text.encode()).hexdigest(), service.policy.problem, fixed)


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    """Return changed lines as (sign, line), with two lines of context."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return [(line[:1].strip() or " ", line[1:]) for line in lines if not line.startswith(("---", "+++", "@@"))]


def lacks_members(service: Any, policy: Policy) -> bool:
    """Return whether a rule is about groups or roles while their members are not known."""
    return not service.hub_users.people and any(
        quota.who in (SubjectKind.GROUP, SubjectKind.ROLE) for quota in policy.quotas
    )


async def try_policy(
    service: Any, policy: Policy, start: float, end: float, tell: Callable[[str], None] = lambda _words: None
) -> policy_trial.Trial:
    """Replay the jobs between two times under a policy, and return the outcome; nothing is written."""
    await service.hub_users.refresh()
    reader, people = UsageReader(service.slurm.commands()), service.hub_users.people
    return await policy_trial.try_policy(service.ledger.context, reader, policy, people, start, end, tell=tell)


async def history(service: Any, most: int = 50) -> list[Note]:
    """Return the history of the policy, newest first."""
    context = service.ledger.context

    def ask() -> list[Note]:
        with context.store.reading(context.cluster) as reads:
            return reads.note_history(POLICY_NOTE, most)

    return await in_store_thread(ask)


async def activate(service: Any, text: str, *, stamp: str, actor: str, reason: str) -> Policy:
    """Put a policy in force.

    Args:
        stamp: of the policy that the actor has read. reason: for the history.

    Raises:
        ConfigError: the text is not a policy, or the file cannot be written.
        PolicyChanged, NotEditable: the policy has changed since the actor read it; it cannot be edited here.
    """
    policy = read_policy(text, "policy")
    context, file = service.ledger.context, Path(service.settings.policy_file)

    def write() -> None:
        with context.store.transaction(context.cluster) as writes:
            now = current_policy(service)
            if now.fixed:
                raise NotEditable(now.fixed)
            if now.stamp != stamp:
                raise PolicyChanged("The policy was changed in the meantime. Open the page again, and read it.")
            at = context.clock()
            if not writes.note_history(POLICY_NOTE, 1):
                writes.add_note(POLICY_NOTE, {"text": now.text, "reason": "as it was before the first change here"}, at)
            writes.add_note(POLICY_NOTE, {"text": policy_text(policy), "reason": reason}, at, actor)
            # The last step: if the file cannot be written, the transaction and its line of the history are rolled back.
            write_policy(file, policy)

    await in_thread(write)
    service.policy()
    return policy


async def record_manual_edits(service: Any) -> bool:
    """Add a policy that was edited by hand to the history, under the file's owner; return whether it was edited."""
    if not service.settings.policy_file:
        return False
    context, file = service.ledger.context, Path(service.settings.policy_file)

    def record() -> bool:
        with context.store.transaction(context.cluster) as writes:
            policy, known = service.policy(), writes.note_history(POLICY_NOTE, 1)
            if known and _parsed(known[0].value["text"]) == policy:
                return False
            text = policy_text(policy)
            if not known:
                writes.add_note(
                    POLICY_NOTE, {"text": text, "reason": "as it was when it was first seen"}, context.clock()
                )
                return False
            value = {"text": text, "reason": "the file was changed by hand"}
            writes.add_note(POLICY_NOTE, value, context.clock(), f"file:{_owner(file)}")
            return True

    return await in_thread(record)


def _parsed(text: str) -> Policy | None:
    try:
        return read_policy(text, "policy")
    except ConfigError:
        return None  # written by another release


def _owner(file: Path) -> str:
    try:
        return file.owner()
    except (OSError, KeyError):
        return "unknown"
