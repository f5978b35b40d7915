"""Slurm's errors that certainly refuse a job. After any other failure it is unknown whether the job exists.

Only refusals are listed (Slurm's own error texts, the same from 22.05 to 26.05). Any other text counts as no answer,
and the job is looked up by its name. So a missing text costs time, but never causes a second job.
"""

from __future__ import annotations

import re

#: slurm_errno.h: errors of the controller about a request (ESLURM_…). Smaller and larger ones: transport and database.
_REFUSALS = range(2000, 3000)
#: … except temporary ones.
_NOT_REFUSALS = frozenset({2007, 2027, 2090, 2131})

_TEXTS = frozenset(
    text.strip()
    for text in """
    Access/permission denied
    Access denied to requested reservation
    CPU count specification invalid
    Duplicate generic resource (gres) specification
    Group ID not found on host
    Insufficient GRES available in allocation
    Invalid --nice value
    Invalid GRES specification (with and without type identification)
    Invalid Trackable RESource (TRES) specification
    Invalid account or account/partition combination specified
    Invalid feature specification
    Invalid generic resource (gres) specification
    Invalid group id
    Invalid job array specification
    Invalid license specification
    Invalid mcs_label specification
    Invalid node name specified
    Invalid partition name specified
    Invalid preferred feature specification
    Invalid qos specification
    Invalid time specified
    Invalid time-min specification (exceeds job's time or other limits)
    Invalid user id
    Invalid wckey specification
    Job dependency problem
    Job script not specified
    Job size specification needs to be provided
    Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)
    Memory required by task is not available
    Memory specification can not be satisfied
    More processors requested than permitted
    Multiple partition job request not supported when a partition is set in the association
    No partition specified or system default partition
    Node count specification invalid
    Only batch jobs are accepted or processed
    Partition in DOWN state
    Pathname of a file, directory or other parameter too long
    Requested GRES option unsupported by configured SelectType plugin
    Requested account has breached requested QOS usage threshold
    Requested node configuration is not available
    Requested nodes are busy
    Requested nodes not in this partition
    Requested operation is presently disabled
    Requested operation not supported on this system
    Requested partition configuration not available now
    Requested reservation is invalid
    Requested reservation not usable now
    Requested time limit is invalid (missing or exceeds some limit)
    Required node not available (down, drained or reserved)
    Required partition not available (inactive or drain)
    System submissions disabled
    Task count specification invalid
    User not found on host
    User's group not permitted to use this partition
    """.splitlines()
    if text.strip()
)


def refused_by_number(code: int) -> bool:
    """Return whether Slurm's error number is a refusal."""
    return code in _REFUSALS and code not in _NOT_REFUSALS


def refused_by_words(stderr: str) -> bool:
    """Return whether sbatch's message is a refusal by the controller."""
    match = re.search(r"Batch job submission failed: (.+)", stderr)
    return match is not None and match.group(1).strip() in _TEXTS
