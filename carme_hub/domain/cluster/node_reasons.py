"""Why nothing can start on a node, as words, from the reason that Slurm keeps for it (sinfo -R). Pure.

Two programs of ours put their name before a reason, by which they know what they drained themselves: the health check
(``node/health.py``) and the rolling update (``carme-hub nodes update``). Their reasons are written for people. Of
Slurm's own texts those that sites see are translated. Any other reason is an administrator's, whose words are shown to
administrators alone: pages for users say that the node is drained.
"""

from __future__ import annotations

import re

#: What stands before the reasons of the health check (``node/health.py`` has it, too), of a rolling update, and of one
#: that failed.
HEALTH, UPDATE, UPDATE_FAILED = "carme-health: ", "carme-update: ", "carme-update failed: "
#: How the console shows the last two.
UPDATE_WORDS, UPDATE_FAILED_WORDS = "Update: ", "Update failed: "
#: The beginnings of Slurm's own reasons (slurmctld and slurmd of 22.05 to 26.05), in lower case, as words.
_SLURM = (
    ("not responding", "it does not answer Slurm"),
    ("node unexpectedly rebooted", "it restarted unexpectedly"),
    ("low realmemory", "it has less memory than slurm.conf says"),
    ("low cpus", "it has fewer CPUs than slurm.conf says"),
    ("low socket", "its processors are not those that slurm.conf says"),
    ("low tmpdisk", "it has less space in its temporary folder than slurm.conf says"),
    ("gres/gpu count", "it has fewer GPUs than slurm.conf says"),
    ("gres/shard count", "it has fewer shards of GPUs than slurm.conf says"),
    ("prolog error", "the site's prolog failed on it"),
    ("epilog error", "the site's epilog failed on it"),
    ("kill task failed", "processes of a job could not be ended"),
    ("step not running", "processes of a job could not be ended"),
    ("batch job complete failure", "a job could not be started or ended on it"),
    ("duplicate jobid", "a job of the same number runs on it already"),
    ("reboot asap", "it is restarted as soon as its jobs have ended"),
    ("scheduled reboot", "it is restarted"),
)
#: Who set the reason and when, which Slurm prints after it.
_SET_BY = re.compile(r"\s*\[[^\[\]\s]*@[^\[\]]*\]\s*$")


def bare_reason(text: str) -> str:
    """Return a reason without the user and the time that scontrol prints after it: ``A fan fails [root@…]``."""
    return _SET_BY.sub("", text).strip()


def plain_reason(reason: str) -> str:
    """Return why a node is out of service for any user, as words that continue a sentence; "" = no words are known."""
    if reason.startswith(HEALTH):
        return reason.removeprefix(HEALTH).strip()
    if reason.startswith(UPDATE):
        return "it is being updated"
    if reason.startswith(UPDATE_FAILED):
        return "its update failed"
    lowered = reason.lower()
    return next((words for begin, words in _SLURM if lowered.startswith(begin)), "")


def full_reason(reason: str) -> str:
    """Return a node's reason for administrators, as words: those of ``plain_reason``, or the reason itself."""
    if reason.startswith(HEALTH):
        return f"Health check: {plain_reason(reason)}"
    if reason.startswith(UPDATE):
        return f"{UPDATE_WORDS}{reason.removeprefix(UPDATE).strip()}"
    if reason.startswith(UPDATE_FAILED):
        return f"{UPDATE_FAILED_WORDS}{reason.removeprefix(UPDATE_FAILED).strip()}"
    words = plain_reason(reason)
    return f"{words[0].upper()}{words[1:]} ({reason})" if words else reason
