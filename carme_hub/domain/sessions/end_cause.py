"""Why a session ended, as one of few words, by its row. Pure.

The row has a sentence for the user; each sentence that one of our tables makes has its cause here. Any other sentence
is ``UNKNOWN``, which counts as lost where the server had started: a new way to lose sessions must not go unseen.
"""

from __future__ import annotations

from enum import Enum

from carme_hub.domain.cluster.reasons import LAUNCH_CODES, end_sentence

from .session import Session

#: Ends of sessions that the reconciler finds, besides those of ``domain.cluster.reasons``.
INTERRUPTED = "The session was not started: the hub was interrupted before Slurm accepted its job. Start it again."
CONTROLLER_LOST = "Slurm lost the session's job when its controller crashed. Start the session again."
REQUEUED = "Slurm requeued the job and started it again; everything that ran in it has ended."

#: The beginning of the reason of a start that the hub has stopped because it took too long.
NOT_IN_TIME = "The server did not start within "


class EndCause(Enum):
    """Why a session ended. The values are labels of metrics."""

    STOPPED = "stopped"  # by its user, an administrator, a rule, or a newer session of the same server
    SERVER = "server"  # the server ended, or failed
    TIME_LIMIT = "time-limit"
    MEMORY = "memory"
    CANCELLED = "cancelled"  # in Slurm, by its user or an administrator
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    NODE = "node"  # the compute node failed
    INTERRUPTED = "interrupted"  # the hub was, before Slurm had the job
    LOST = "lost"  # Slurm's controller lost the job in a crash
    UNKNOWN = "unknown"


#: Causes by which a running session is lost by our services or Slurm's, which must not happen.
LOSSES = frozenset({EndCause.LOST, EndCause.UNKNOWN})

_OF_STATES = {
    "COMPLETED": EndCause.SERVER,
    "FAILED": EndCause.SERVER,
    "TIMEOUT": EndCause.TIME_LIMIT,
    "DEADLINE": EndCause.TIME_LIMIT,
    "OUT_OF_MEMORY": EndCause.MEMORY,
    "NODE_FAIL": EndCause.NODE,
    "BOOT_FAIL": EndCause.NODE,
    "PREEMPTED": EndCause.PREEMPTED,
    "REQUEUED": EndCause.REQUEUED,
}
_OF_SENTENCES = {
    **{end_sentence(state): cause for state, cause in _OF_STATES.items()},
    **dict.fromkeys(LAUNCH_CODES.values(), EndCause.SERVER),
    INTERRUPTED: EndCause.INTERRUPTED,
    CONTROLLER_LOST: EndCause.LOST,
    REQUEUED: EndCause.REQUEUED,
}
#: Beginnings of sentences that have a number, a name or a folder in them.
_BEGINNINGS = {
    "The job was cancelled": EndCause.CANCELLED,
    "The session was ended by signal ": EndCause.SERVER,
    "The server ended with exit code ": EndCause.SERVER,
    "The working folder ": EndCause.SERVER,
}


def end_cause(session: Session) -> EndCause:
    """Return why a session that has ended did so."""
    known = _OF_SENTENCES.get(session.end_reason)
    if session.cancel_wanted and known is not EndCause.REQUEUED:
        # A job that outlives its server is cancelled, too.
        return EndCause.SERVER if 0 < session.server_ended < session.cancel_wanted else EndCause.STOPPED
    if known is not None:
        return known
    for beginning, cause in _BEGINNINGS.items():
        if session.end_reason.startswith(beginning):
            return cause
    return EndCause.SERVER if session.server_ended else EndCause.UNKNOWN
