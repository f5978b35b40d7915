"""Each way in which a session ends has its cause, and what is not known counts as lost."""

from __future__ import annotations

import pytest

from carme_hub.domain.cluster.reasons import LAUNCH_CODES, end_sentence
from carme_hub.domain.sessions.end_cause import CONTROLLER_LOST, INTERRUPTED, LOSSES, REQUEUED, EndCause, end_cause
from carme_hub.domain.sessions.session import Request, Session, SessionState

RAN = Session(
    "s1", "lab", "alice", "", Request("gpu", "base"), SessionState.ENDED, 1000.0, started=1010.0, ended=2000.0
)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (end_sentence("COMPLETED"), EndCause.SERVER),
        (end_sentence("FAILED", (1, 0)), EndCause.SERVER),
        (end_sentence("FAILED", (0, 9)), EndCause.SERVER),
        (end_sentence("FAILED", (77, 0), folder="/home/alice/x"), EndCause.SERVER),
        (end_sentence("TIMEOUT"), EndCause.TIME_LIMIT),
        (end_sentence("OUT_OF_MEMORY"), EndCause.MEMORY),
        (end_sentence("NODE_FAIL"), EndCause.NODE),
        (end_sentence("PREEMPTED"), EndCause.PREEMPTED),
        (end_sentence("CANCELLED by 0"), EndCause.CANCELLED),
        (end_sentence("CANCELLED by 1000", name="alice"), EndCause.CANCELLED),
        (end_sentence("REQUEUED"), EndCause.REQUEUED),
        (INTERRUPTED, EndCause.INTERRUPTED),
        (CONTROLLER_LOST, EndCause.LOST),
        (end_sentence("REVOKED"), EndCause.UNKNOWN),
        ("", EndCause.UNKNOWN),
        *((text, EndCause.SERVER) for text in LAUNCH_CODES.values()),
    ],
)
def test_a_sentence_has_its_cause(reason: str, cause: EndCause) -> None:
    assert end_cause(RAN.replace(end_reason=reason)) is cause


def test_whoever_stops_a_session_has_not_lost_it() -> None:
    stopped = RAN.replace(end_reason="Stopped.", cancel_wanted=1900.0)
    assert end_cause(stopped) is EndCause.STOPPED
    assert end_cause(stopped.replace(server_ended=1901.0)) is EndCause.STOPPED
    outlived = RAN.replace(end_reason="Its job was still running.", server_ended=1900.0, cancel_wanted=1931.0)
    assert end_cause(outlived) is EndCause.SERVER
    requeued = RAN.replace(end_reason=REQUEUED, cancel_wanted=1900.0)
    assert end_cause(requeued) is EndCause.REQUEUED


def test_only_a_controllers_crash_and_what_nobody_knows_are_losses() -> None:
    assert {EndCause.LOST, EndCause.UNKNOWN} == LOSSES
