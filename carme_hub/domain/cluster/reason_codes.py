"""Slurm's JOB REASON CODES, 22.05 to 26.05, each with its sentence; codes of limits are parsed by a pattern."""

from __future__ import annotations

import re

#: Resources in the names of limits, in the form's terms.
RESOURCES = {
    "gres": "GPUs",
    "cpu": "CPUs",
    "cpus": "CPUs",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "nodes": "nodes",
    "jobs": "running jobs",
    "submit": "jobs in the queue",
    "submitjob": "jobs in the queue",
    "submitjobs": "jobs in the queue",
    "wall": "run time",
    "wallduration": "run time",
    "billing": "billing units",
    "license": "licenses",
    "bb": "burst buffer space",
    "energy": "energy",
    "unknown": "a resource",
}

#: ``QOSMaxGRESPerUser``, ``AssocGrpGRESMinutes``, ``QOSMaxWallDurationPerJobLimit``, ``MaxJobsPerAccount`` …
LIMITS = re.compile(
    r"(?P<owner>QOS|Assoc|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>GRES|C[Pp][Uu]s?|Mem(?:ory)?|Nodes?|Jobs|Submit(?:Jobs?)?|Wall(?:Duration)?|Billing|License|BB|Energy"
    r"|Unknown)"
    r"(?P<per>(?:Run)?Minutes(?:PerJob)?|Per(?:Job|User|Node|Account))?(?:Limit|NotSatisfied)?"
)

_ADMIN = "an administrator must look at it"
_NODES = "the nodes that could run it are down, drained or reserved; another GPU type or profile may start sooner"
_BUSY = "the GPUs and nodes it needs are in use; a smaller request may start sooner"

#: Sentences by Reason code, or by the beginning of a longer text that Slurm shows there.
CODES = {
    "None": "Slurm has given no reason.",
    "WaitingForScheduling": "Slurm has not looked at the job yet.",
    "Priority": "jobs with a higher priority come first.",
    "Resources": f"{_BUSY}.",
    "Nodes required for job are DOWN, DRAINED or reserved": f"{_NODES}.",
    "ReqNodeNotAvail": f"{_NODES}.",
    "NodeDown": "a node that the job needs is down; choose another profile, or wait until it is repaired.",
    "Reservation": "the reservation has not begun yet.",
    "ReservationDeleted": "the reservation was deleted; stop this session and start it without one.",
    "BeginTime": "the job may not start yet; Slurm waits about two minutes after a job was put back into the queue.",
    "Dependency": "the job waits for another job to end.",
    "DependencyNeverSatisfied": "the job waits for another job that failed, and will never start; stop it.",
    "JobHeldUser": "the job is held; its owner can release it with scontrol release.",
    "JobHeldAdmin": f"the job is held by an administrator; {_ADMIN}.",
    "job requeued in held state": f"the job was put back into the queue and held; {_ADMIN}.",
    "launch failed requeued held": f"the job could not be launched and is held; {_ADMIN}.",
    "launch failure limit exceeded requeued held": f"the job could never be launched and is held; {_ADMIN}.",
    "JobHoldMaxRequeue": f"the job was put back into the queue too often and is held; {_ADMIN}.",
    "JobLaunchFailure": f"the job could not be launched; {_ADMIN}.",
    "Prolog": "the site's preparation of the job is still running.",
    "Cleaning": "what the job left on its node is still being cleaned up.",
    "Licenses": "all licenses that the job needs are in use.",
    "PartitionDown": "the partition is closed; choose another profile, or wait.",
    "PartitionInactive": "the partition starts no jobs now; choose another profile, or wait.",
    "PartitionNodeLimit": "the partition does not have, or allow, so many nodes; choose another profile.",
    "PartitionTimeLimit": "the time is longer than the partition allows; stop the session and ask for less time.",
    "PartitionConfig": "the partition does not allow this request; choose another profile.",
    "JobArrayTaskLimit": "only so many tasks of this job array may run at once.",
    "BadConstraints": "no node can ever fulfil what was asked for; stop the session and choose another profile.",
    "InvalidAccount": "the account may not be used any more; choose another account.",
    "AccountNotAllowed": "the account may not use this partition; choose another account or profile.",
    "InvalidQOS": "the quality of service may not be used any more; choose another profile.",
    "QOSNotAllowed": "the account may not use this quality of service here; choose another profile.",
    "QOSJobLimit": "the quality of service has reached its number of jobs; wait until one ends.",
    "QOSResourceLimit": "the quality of service has reached a limit; wait until a job of it ends.",
    "QOSTimeLimit": "the quality of service has reached its time limit; ask for less time.",
    "QOSUsageThreshold": "the account has used too much of its share for this quality of service; choose another.",
    "AssociationJobLimit": "your account has reached its number of jobs; wait until one ends.",
    "AssociationResourceLimit": "your account has reached a limit; wait until a job of it ends, or ask for less.",
    "AssociationTimeLimit": "your account has reached its time limit; ask for less time.",
    "AccountingPolicy": "a limit of your account or quality of service is reached; ask for less.",
    "TimeLimit": "the time limit was reached.",
    "NonZeroExitCode": "the job ended with an error.",
    "OutOfMemory": "the job used more memory than it had asked for.",
    "InactiveLimit": "the job was idle for too long.",
    "SystemFailure": f"Slurm, a file system or the network failed; {_ADMIN}.",
    "RaisedSignal": "the job was ended by a signal.",
    "FrontEndDown": f"no front end node is there to run it; {_ADMIN}.",
    "BurstBufferOperation": f"a burst buffer operation failed; {_ADMIN}.",
    "BurstBufferResources": "there is not enough burst buffer space now.",
    "BurstBufferStageIn": "files are being copied to the burst buffer.",
    "FedJobLock": "the clusters of the federation are agreeing on where to run it.",
    "PowerNotAvail": "there is not enough electrical power for more nodes now.",
    "PowerReserved": "the electrical power is reserved for other jobs now.",
    "DeadLine": "the job can no longer end before its deadline.",
    "MaxMemPerLimit": "the request is over the partition's memory per CPU or node; ask for less memory.",
    "MaxPoweredUpNodes": "as many cloud nodes run as may run; wait until one is free.",
    "SchedDefer": "Slurm has put off scheduling for a moment.",
    "ResourcesReserved": "the GPUs are reserved for somebody else now.",
    "Reserved for maintenance": "the nodes are reserved for maintenance; shorten the time so that it ends before it.",
    "May be reserved for other job": "the nodes are kept for a job with a higher priority; a shorter time may fit.",
}
