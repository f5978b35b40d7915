"""Slurm's reasons, states and refusals as plain sentences for users: what happened, and what to do. Pure.

An unknown code is shown as it is, so that it can be looked up. docs/reference/slurm-reasons.md is generated from the
table in ``reason_codes``, and a test compares them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from .end_mark import EndMark
from .jobs import Job
from .reason_codes import CODES, LIMITS, RESOURCES
from .resources import Gpus
from .tres import ANY_TYPE

_ADMIN = "ask an administrator"

#: Exit code of a session whose working folder does not exist, and the message of a submit program that can see it.
NO_FOLDER, NO_WORKING_FOLDER = 77, "the working folder does not exist"
#: Exit codes of the batch script (see docs/explanation/architecture.md).
LAUNCH_CODES = {
    70: "The hub sent a start document that the compute node could not read; tell an administrator.",
    71: "The container image is missing on the compute node; choose another image, or tell an administrator.",
    72: "A folder that the session needs may not be opened on the compute node; tell an administrator.",
    73: "No network port was free on the compute node; start again.",
    74: "The compute node could not reach the hub; start again, and tell an administrator if it happens again.",
    75: "The hub refused the session's report, because it was started anew or stopped meanwhile; start again.",
    76: "The container program is missing on the compute node, or cannot be used there; tell an administrator.",
    77: "The working folder does not exist. Have it made at the next start, or choose another one.",
    78: "The working folder cannot be used: it is none, or you may not enter or make it. Start again with another.",
    79: "No space is left in your home folder: the disk is full or your quota used up. Remove files, and start again.",
    80: "Your home folder is not there on the compute node, or you may not write in it; tell an administrator.",
    81: "The image lacks the server's program, or it may not be run; choose another image, or tell an administrator.",
    82: "The image is for another kind of processor than the compute node has; choose another image or profile.",
    83: "No program may be run from your home folder on the compute node (mounted noexec); tell an administrator.",
    84: "The container did not start; the output says why. Choose another image, or tell an administrator.",
    86: "The data is not on the node, so nothing was started; the output says which file, and why.",
}

_ENDS = {
    "COMPLETED": "The server ended by itself.",
    "FAILED": "The session failed.",
    "TIMEOUT": "The time limit was reached, or a budget was used up. Choose a longer time next time.",
    "OUT_OF_MEMORY": "The session used more memory than it had asked for. Ask for more memory next time.",
    "NODE_FAIL": "The compute node failed. Start again; another node is used.",
    "BOOT_FAIL": "The compute node could not be made ready. Start again.",
    "PREEMPTED": "A job with a higher priority took the place. Start again, or choose a profile that is not preempted.",
    "DEADLINE": "The job's deadline passed before it could end.",
    "REQUEUED": "Slurm put the job back into the queue, which ended the session. Start again.",
}


def reason_sentence(reason: str) -> str:
    """Return what a job's Reason code means and what to do, or the code itself if it is unknown."""
    code = reason.strip().removeprefix("(").removesuffix(")")
    known = CODES.get(code)
    if known is not None:
        return known
    limit = _limit(code)
    if limit:
        return limit
    for start, text in CODES.items():  # "ReqNodeNotAvail, UnavailableNodes:node1" and Slurm's own sentences
        if code.startswith(start) and (len(start) > 20 or not code[len(start) : len(start) + 1].isalnum()):
            return text
    return f"Slurm says: {code}" if code else ""


def waiting_sentence(job: Job, ahead: int | None, now: float, zone: tzinfo = UTC) -> str:
    """Return what a waiting job waits for: ``waiting for 2 × a100; 1 ahead of you; expected start 14:05``.

    Args:
        ahead: see ``queue_position.ahead_of``; None = unknown.
        now: epoch seconds. zone: the time zone of clock times.
    """
    what = f"waiting for {_asked(job.gpus)}" if job.gpus else "waiting for a place on a compute node"
    parts = [what]
    common = {"", "None", "Priority", "Resources", "WaitingForScheduling"}
    if job.state == "CONFIGURING":
        parts = ["the compute node is being made ready"]
    elif job.reason not in common:
        parts.append(reason_sentence(job.reason).rstrip("."))
    if ahead is not None and job.reason in common and job.state != "CONFIGURING":
        parts.append("you are next" if ahead == 0 else f"{ahead} ahead of you")
    if job.start > now:  # Slurm's own estimate, which many jobs do not have
        parts.append(f"expected start {_clock(job.start, now, zone)}")
    return "; ".join(parts)


def end_sentence(state: str, exit_code: tuple[int, int] | None = None, *, name: str = "", folder: str = "") -> str:
    """Return how a job ended, and what to do.

    Args:
        state: Slurm's state, ``CANCELLED by 1000`` included. exit_code: exit status and signal.
        name: the user whose uid follows "by", if the caller knows it.
        folder: the session's working folder, as requested.
    """
    word, _, by = state.partition(" by ")
    status, signal = exit_code or (0, 0)
    if word == "CANCELLED":
        return f"The job was cancelled by {_who(by, name)}." if by else "The job was cancelled."
    if word in ("FAILED", "COMPLETED") and status in LAUNCH_CODES:
        subject = "The working folder"
        return LAUNCH_CODES[status].replace(subject, f"{subject} {folder}".rstrip(), 1)
    if word == "FAILED" and signal:
        return f"The session was ended by signal {signal}; 9 often means that memory ran out."
    if word == "FAILED" and status:
        return f"The server ended with exit code {status}; the job's output says why."
    return _ENDS.get(word, f"Slurm says that the job ended as {state}.")


def mark_sentence(mark: EndMark, folder: str = "") -> str:
    """Return how a job ended by its end mark, and what to do; ``folder`` as in ``end_sentence``."""
    return end_sentence("FAILED" if mark.status else "COMPLETED", (mark.status, mark.signal), folder=folder)


def refusal_sentence(words: str, folder: str = "") -> str:
    """Return why Slurm refused a job at submission: a limit, an invalid request, or a missing folder.

    Args:
        folder: the session's working folder, as requested.
    """
    if words == NO_WORKING_FOLDER:
        return end_sentence("FAILED", (NO_FOLDER, 0), folder=folder)
    for code in re.findall(r"\b(?:QOS|Assoc|Partition|Max)[A-Za-z]+\b", words):
        limit = _limit(code)
        if limit:
            return f"Slurm refused the job: {limit}"
    lowered = words.lower()
    for piece, text in _REFUSALS.items():
        if piece in lowered:
            return f"Slurm refused the job: {text}"
    said = re.sub(r"sbatch: (?:error: )?|Batch job submission failed: ", "", words).strip()
    return f"Slurm refused the job: {said}"


_REFUSALS = {
    "invalid account or account/partition": f"this account may not be used here; choose another account, or {_ADMIN}.",
    "invalid qos": f"this quality of service may not be used with this account; choose another, or {_ADMIN}.",
    "accounting/qos policy": "it is over a limit of your account or its quality of service; ask for less.",
    "invalid partition name": f"the partition does not exist; choose another profile, or {_ADMIN}.",
    "not permitted to use this partition": "you may not use this partition; choose another profile.",
    "partition in down state": "the partition is closed now; choose another profile, or try later.",
    "required partition not available": "the partition is closed now; choose another profile, or try later.",
    "requested time limit is invalid": "the time is longer than the partition allows; ask for less time.",
    "time limit is invalid": "the time is longer than the partition allows; ask for less time.",
    "access denied to requested reservation": (
        "the reservation is not yours, or not yet: who has just come into a class is let in within a minute. Start "
        "again then, or choose another reservation, or none."
    ),
    "requested reservation is invalid": "the reservation does not exist any more; choose another, or none.",
    "requested reservation not usable now": "the reservation cannot be used now.",
    "requested node configuration is not available": "no node has so many GPUs, CPUs or so much memory; ask for less.",
    "memory specification can not be satisfied": "no node has so much memory; ask for less.",
    "more processors requested than permitted": "no node has so many CPUs; ask for less.",
    "invalid generic resource": "this type of GPU does not exist on the cluster; choose another.",
    "invalid user id": f"Slurm does not know you; {_ADMIN}.",
    "user not found on host": f"Slurm does not know you; {_ADMIN}.",
    "system submissions disabled": "the cluster takes no jobs now; try later.",
    "breached requested qos usage threshold": "your account has used too much of its share for this; try later.",
}


def _limit(code: str) -> str:
    """Return the sentence for the Reason code of a limit, "" for other codes."""
    match = LIMITS.fullmatch(code)
    if match is None:
        return ""
    owner = "your account" if match["owner"].startswith("Assoc") else "the quality of service"
    kind, what, per = match["kind"], RESOURCES.get(match["what"].lower(), match["what"]), match["per"] or ""
    if kind == "Min":
        text = f"{owner} needs more {what} in a job than was asked for; ask for more"
    elif per.startswith("RunMinutes"):
        text = (
            f"the limit of {owner} on {what} × time still ahead of running jobs is reached; ask for less time, or wait"
        )
    elif per.startswith("Minutes") and "PerJob" in per:
        text = f"the limit of {owner} on {what} × time of one job is lower; ask for less of either"
    elif per.startswith("Minutes"):
        text = f"the budget of {owner} for {what} × time is used up; use another account, or ask for more budget"
    elif kind == "Grp":
        text = f"the limit of {owner} on {what} of all its users is reached; wait until a job ends, or ask for less"
    elif "Job" in per:
        text = f"the limit of {owner} on {what} of one job is lower; ask for less"
    elif "Node" in per:
        text = f"the limit of {owner} on {what} of one job on one node is lower; ask for less"
    elif "Account" in per:
        text = f"the limit on {what} for one account is reached; wait until a job of it ends, or ask for less"
    else:
        text = f"the limit on {what} for one user is reached; end another session of yours, or ask for less"
    return f"{text} ({code})."


def _asked(gpus: Gpus) -> str:
    return f"{gpus.count} × GPU" if gpus.type == ANY_TYPE else str(gpus)


def _who(by: str, name: str) -> str:
    if name:
        return name
    return "an administrator" if by == "0" else f"user {by}"


def _clock(at: float, now: float, zone: tzinfo) -> str:
    then, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    if then.date() == today.date():
        return then.strftime("%H:%M")
    return then.strftime("%a %H:%M") if (then.date() - today.date()).days < 7 else then.strftime("%Y-%m-%d %H:%M")
