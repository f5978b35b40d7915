"""A server that a signal ended is said to be that: sacct takes 128 off its status, the job's supervisor does not."""

from __future__ import annotations

import pytest
from session_parts import REQUEST

from carme_hub.domain.cluster.jobs import JobRecord, Phase
from carme_hub.domain.sessions.liveness import Liveness, Verdict
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.sessions.reconciler import end_reason

SIGNAL = "The session was ended by signal 9; 9 often means that memory ran out."
CODE = "The server ended with exit code 9; the job's output says why."


@pytest.mark.parametrize(
    ("told", "state", "said"),
    [
        ((1.0, 137), "FAILED", SIGNAL),
        ((1.0, 9), "FAILED", CODE),
        ((0.0, 0), "FAILED", CODE),
        ((1.0, 137), "OUT_OF_MEMORY", "more memory than it had asked for"),
    ],
)
def test_how_a_session_ended(told: tuple[float, int], state: str, said: str) -> None:
    row = ("s1", "test", "alice", "", REQUEST, SessionState.RUNNING, 1.0)
    session = Session(*row, server_ended=told[0], server_exit=told[1])
    record = JobRecord(1, session.job_name, "alice", state, Phase.TERMINAL, 1.0, exit_code=(9, 0))
    verdict = Verdict(Liveness.GONE, "It has ended.", record=record)
    assert said in end_reason(session, verdict)
