"""The order of lines, the records of a log, and what is said to have happened: also where something is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.history import PastJob, PastStep
from carme_hub.domain.cluster.jobs import Job, JobRecord, Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.domain.timeline.happened import Known, all_lines, what_happened
from carme_hub.domain.timeline.lines import DATABASE, Line, Rank, Unread, in_order, printable
from carme_hub.domain.timeline.log_lines import Marks, concerns, marks_of, parse, records

NAME = "carme-s1"
REQUEST = Request("a100", "default", Gpus("a100", 1), working_folder="/home/alice/x")
ENDED = Session(
    *("s1", "lab", "alice", "", REQUEST, SessionState.ENDED, 1000.5),
    job_id=7,
    submitted=1001.0,
    started=1010.0,
    node="node1",
    port=40000,
    ended=1100.0,
    end_reason="The session used more memory than it had asked for. Ask for more memory next time.",
)
OPEN = replace(ENDED, state=SessionState.RUNNING, ended=0.0, end_reason="")
RECORD = JobRecord(7, NAME, "alice", "OUT_OF_MEMORY", Phase.TERMINAL, 1001.0, 1005.0, 1100.0, ("node1",))
QUEUED = Job(7, NAME, "alice", "RUNNING", Phase.ACTIVE, nodes=("node1",), submitted=1001.0, start=1005.0)
CHARGE = Entry("charge", Kind.CHARGE, "lab", "physics", -1_800_000, 1200.0)


def said(known: Known) -> str:
    return what_happened(known, UTC)


def known(**values: object) -> Known:
    start = Known("s1", 2000.0, session=ENDED, queue=(), past=(PastJob(RECORD),), entries=(CHARGE,))
    return replace(start, **values)  # type: ignore[arg-type]


def test_what_ended_is_told_with_slurms_word_once_and_its_price() -> None:
    text = said(known())
    assert "Slurm started job 7 on node1 after 4 s. Its server reported 9 s after the click." in text
    assert text.count("more memory than it had asked for") == 1
    assert "It was charged 0.5 GPU-hours." in text
    assert "not known" not in text


def test_what_slurm_says_otherwise_is_told_beside_the_reason() -> None:
    session = ENDED.replace(cancel_wanted=1090.0, cancel_reason="Stopped.", end_reason="Stopped.")
    past = (PastJob(replace(RECORD, state="NODE_FAIL")),)
    assert "Slurm's accounting says NODE_FAIL: The compute node failed." in said(known(session=session, past=past))
    step = PastStep("0", "python", "OUT_OF_MEMORY", 1005.0, 1100.0, ("node1",), (0, 125))
    text = said(known(session=session, past=(PastJob(replace(RECORD, state="COMPLETED"), steps=(step,)),)))
    assert "Step 7.0 ran out of memory." in text


def test_a_start_that_failed_has_the_words_of_its_exit_code() -> None:
    failed = replace(RECORD, state="FAILED", exit_code=(77, 0))
    reason = "The working folder /home/alice/x does not exist. Have it made at the next start, or choose another one."
    session = ENDED.replace(started=0.0, port=0, node="", end_reason=reason)
    text = said(known(session=session, past=(PastJob(failed),)))
    assert text.count("does not exist") == 1
    assert "Its server never reported to the hub" in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"session": OPEN, "queue": (QUEUED,), "past": ()}, "Now job 7 is RUNNING: it is on node1 for 16 min."),
        ({"session": OPEN, "queue": None, "past": None}, "Whether it runs now is not known"),
        ({"session": OPEN, "queue": (), "past": ()}, "and accounting has no end of it: no proof of an end"),
        ({"session": OPEN, "queue": (), "past": None}, "accounting was not read: no proof of an end"),
        ({"session": OPEN, "queue": ()}, "The hub has not closed the session yet"),
        ({"session": OPEN, "queue": None, "past": None, "mark": EndMark(71, 7)}, "The container image is missing"),
        (
            {"session": OPEN.replace(job_id=0, started=0.0), "queue": None, "past": None},
            "Whether it has a job is not known",
        ),
        ({"session": OPEN.replace(job_id=0, started=0.0), "queue": (), "past": ()}, "It has no job"),
        ({"session": ENDED.replace(job_id=0, started=0.0), "past": ()}, "It never had a job"),
        ({"session": None}, "The database has no row of this session."),
        ({"session": None, "rows_read": False}, "The database was not read"),
        ({"session": None, "id": ""}, "This job was not started by the hub"),
        ({"entries": None}, "What it cost is not known"),
        ({"entries": ()}, "The ledger has no entry of it."),
        (
            {"unread": (Unread("sacct", "no answer"), Unread("sacct", "x"))},
            "Not known is what could not be read: sacct.",
        ),
    ],
)
def test_what_is_not_known_is_said_to_be_not_known(values: dict[str, object], words: str) -> None:
    assert words in said(known(**values))


def test_a_job_that_waits_is_told_with_slurms_reason() -> None:
    waiting = replace(QUEUED, state="PENDING", phase=Phase.WAITING, reason="QOSMaxGRESPerUser", nodes=(), start=0.0)
    session = OPEN.replace(state=SessionState.SUBMITTED, started=0.0, port=0, node="")
    text = said(known(session=session, queue=(waiting,), past=(), entries=()))
    assert "Now job 7 is PENDING: waiting for" in text
    assert "the limit on GPUs for one user is reached" in text


def test_a_requeued_job_is_told_as_incarnations() -> None:
    first = PastJob(replace(RECORD, state="REQUEUED", end=1050.0))
    again = PastJob(replace(RECORD, start=1060.0))
    assert "Slurm has 2 incarnations of its job" in said(known(past=(first, again)))
    lines = [line.text for line in all_lines(known(past=(first, again)), UTC)]
    assert any(text.startswith("Incarnation 1 of 2: job 7 ended as REQUEUED") for text in lines)


def test_lines_of_one_second_are_in_the_order_of_cause_and_those_without_a_time_are_last() -> None:
    lines = [
        Line(0.0, DATABASE, "no time"),
        Line(10.0, DATABASE, "ended", Rank.ENDED),
        Line(10.0, DATABASE, "submitted", Rank.SUBMITTED),
        Line(10.9, DATABASE, "asked", Rank.ASKED),
        Line(9.9, DATABASE, "before", Rank.SETTLED),
    ]
    assert [line.text for line in in_order(lines)] == ["before", "asked", "submitted", "ended", "no time"]


def test_a_text_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[31mb\u202ec\nd\te") == "a\\x1b[31mb\\u202ec\nd\te"


@pytest.mark.parametrize(
    "line",
    [
        "[W 1970-01-01 00:16:45.500 JupyterHub base:9] hello",
        "\x1b[33m[W 1970-01-01 00:16:45.500 JupyterHub base:9]\x1b(B\x1b[m hello".replace("\x1b(B", ""),
        "1970-01-01T00:16:45.500+00:00 host jupyterhub[12]: hello",
        '{"time": "1970-01-01T00:16:45.500Z", "level": "WARNING", "message": "hello", "session": "s1"}',
        '{"ts": 1005.5, "levelname": "warning", "msg": "hello"}',
    ],
)
def test_records_of_each_form_have_their_time_and_text(line: str) -> None:
    [found] = records([line + "\n"], UTC)
    assert (found.at, found.text.strip()) == (1005.5, "hello")


def test_what_begins_no_record_belongs_to_the_one_before() -> None:
    lines = ["lost\n", "[E 1970-01-01 00:16:45 JupyterHub base:9] it failed\n", "Traceback:\n", "  ValueError\n"]
    [found] = records(lines, UTC)
    assert found.text == "it failed\nTraceback:\n  ValueError"
    assert parse("  ValueError", UTC) is None
    assert parse("{no json", UTC) is None


@pytest.mark.parametrize(
    ("text", "server", "found"),
    [
        ("Session s1 of alice has job 7", "", True),
        ("Job 7 is gone", "", True),
        ("Job 77 is gone", "", False),
        ("JobId=7 Requeue=0", "", True),
        ("Adding alice to the proxy", "", True),
        ("Adding malice to the proxy", "", False),
        ("Adding alice:train to the proxy", "", False),
        ("Adding alice:train to the proxy", "train", True),
        ("Adding alice:train2 to the proxy", "train", False),
        ("200 GET /hub/api/users/alice", "", False),
        ("502 GET /user/alice/lab", "", True),
    ],
)
def test_a_record_concerns_a_session_by_its_id_its_job_or_its_server(text: str, server: str, found: bool) -> None:
    marks = marks_of(ENDED.replace(id="s1", server_name=server), (), 2000.0)
    record = parse(f"[I 1970-01-01 00:17:00 JupyterHub x:1] {text}", UTC)
    assert record is not None
    assert concerns(record, marks) is found
    late = replace(record, at=90_000.0)
    assert concerns(late, marks) is (found and "s1" in text), "Slurm uses numbers again"
    assert not concerns(record, Marks())
