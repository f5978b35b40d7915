"""``carme-hub explain``: the story of a session from all that is known, and what is not known is said."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from explained_site import ID, REQUEST, T0, ExplainedSite, record, session

from carme_hub.cli.explain import reader
from carme_hub.cli.explain.command import EXIT_UNKNOWN, ExplainApp
from carme_hub.cli.explain.database import SessionRows
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore


def told(site: ExplainedSite, *argv: str) -> dict[str, Any]:
    code, out, err = site.line.run(ExplainApp, *argv, "--json")
    assert code in (0, EXIT_UNKNOWN), err
    return dict(json.loads(out))


def sources(story: dict[str, Any]) -> list[str]:
    return [each["source"] for each in story["lines"]]


def test_a_session_is_told_in_order_of_time_with_the_source_of_each_line(site: ExplainedSite) -> None:
    site.store_story()
    story = told(site, ID)
    times = [each["at"] for each in story["lines"]]
    assert [int(each) for each in times] == sorted(int(each) for each in times)
    assert [(each["source"], each["about"]["event"]) for each in story["lines"]] == [
        ("database", "asked"),
        ("ledger", "hold"),
        ("database", "submitted"),
        ("sacct", "job-submitted"),
        ("sacct", "job-started"),
        ("database", "started"),
        ("idle rules", "idle-warned"),
        ("database", "ended"),
        ("sacct", "job-ended"),
        ("sacct", "step"),
        ("ledger", "release"),
        ("ledger", "charge"),
    ]
    assert story["lines"][0]["time"] == "2026-11-20T10:00:00.500+00:00"
    assert story["session"]["id"] == ID
    assert not {"nonce_hash", "token_id"} & set(story["session"])
    for words in (
        "alice asked for a session “train”",
        "2 × a100, 4 CPUs, 8 GiB for 1 h (profile a100, image default, account physics)",
        "Slurm started job 4711 on node1 after 1 min.",
        "Its server reported 1 min 4 s after the click.",
        "The time limit was reached",
        "It was charged 2 GPU-hours.",
    ):
        assert words in story["happened"]
    assert story["happened"].count("The time limit was reached") == 1, "Slurm says the same"


def test_the_text_has_a_time_and_a_source_in_each_line_and_ends_with_what_happened(site: ExplainedSite) -> None:
    site.store_story()
    _, out, err = site.line.run(ExplainApp, "4711")
    assert out.splitlines()[0] == f"Session {ID} of alice, server train, job 4711 on cluster lab: ended"
    [row] = [each for each in out.splitlines() if "Its server reported on node1" in each]
    assert row.split()[2] == "database"
    assert row.split()[0].startswith("2026-11-20")
    assert (
        out.rstrip().splitlines()[-1].startswith(("It was", "Not known", "charged", "what")) or "What happened" in out
    )
    assert "--log FILE" in err


@pytest.mark.parametrize("word", [ID, ID.upper(), f"carme-{ID}", "1b2c3d4e", "4711", "alice/train"])
def test_a_session_is_named_by_its_id_its_job_or_its_server(site: ExplainedSite, word: str) -> None:
    site.store(session())
    assert told(site, word)["id"] == ID


@pytest.mark.parametrize("word", ["alice", "0", "12ab", "-"])
def test_a_word_that_names_no_session_is_refused_with_the_ways_to_name_one(site: ExplainedSite, word: str) -> None:
    code, out, err = site.line.run(ExplainApp, word)
    assert (code, out) == (2, "")
    assert "USER/SERVER" in err


def test_what_begins_like_several_sessions_is_asked_for_more_exactly(site: ExplainedSite) -> None:
    site.store(session(), session(ID[:-1] + "b"))
    code, _, err = site.line.run(ExplainApp, "1b2c3d4e")
    assert code == 1
    assert ID in err
    assert ID[:-1] + "b" in err


def test_a_job_number_that_slurm_used_twice_tells_the_newest_and_names_the_other(site: ExplainedSite) -> None:
    other = ID[:-2] + "bb"
    site.store(session(other, created=T0 - 90_000), session())
    story = told(site, "4711")
    assert story["id"] == ID
    assert any(f"before: session {other}" in each["text"] for each in story["lines"])


def test_there_is_no_story_of_what_neither_database_nor_slurm_knows(site: ExplainedSite) -> None:
    site.slurm.accounting()
    for word in (ID, "99", "bob/"):
        code, out, err = site.line.run(ExplainApp, word)
        assert (code, out) == (1, "")
        assert "There is no session or job" in err


def test_a_silent_slurm_does_not_end_the_story_and_what_it_would_have_said_is_not_known(site: ExplainedSite) -> None:
    site.slurm.silent()
    site.store(session(state=SessionState.RUNNING, ended=0.0, end_reason=""))
    code, out, _ = site.line.run(ExplainApp, ID)
    assert code == EXIT_UNKNOWN
    assert "Its server reported on node1, port 40000." in out
    assert "squeue: " in out.partition("Not read:")[2]
    assert "sacct: " in out.partition("Not read:")[2]
    assert "Whether it runs now is not known" in " ".join(out.split())
    assert "Unable to contact slurm controller" in out


def test_an_unreadable_database_does_not_end_the_story(site: ExplainedSite) -> None:
    site.store_story()
    site.line.database.write_bytes(b"this is no database, and never was one" * 400)
    for extra in (
        site.line.database.with_name("carme-hub.sqlite-wal"),
        site.line.database.with_name("carme-hub.sqlite-shm"),
    ):
        extra.unlink(missing_ok=True)
    story = told(site, "4711")
    assert "database" in [each["source"] for each in story["not_read"]]
    assert story["happened"].startswith("The database was not read, so what was asked for is not known.")
    assert "Slurm started job 4711 on node1 after 1 min." in story["happened"]
    assert "Accounting has its end: TIMEOUT" in story["happened"]
    nobody = told(site, "alice/train")
    assert nobody["lines"] == []
    assert "not known" in nobody["happened"]


def test_nothing_is_written_and_a_missing_database_is_not_made(site: ExplainedSite) -> None:
    site.store_story()
    before = hashlib.sha256(site.line.database.read_bytes()).hexdigest()
    told(site, ID)
    assert hashlib.sha256(site.line.database.read_bytes()).hexdigest() == before
    for each in site.line.database.parent.glob("carme-hub.sqlite*"):
        each.unlink()
    told(site, "4711")
    assert not site.line.database.exists()


def test_a_row_that_a_restored_database_lacks_is_said_to_be_missing(site: ExplainedSite) -> None:
    story = told(site, "4711")
    assert story["session"] is None
    assert story["id"] == ID
    assert story["happened"].startswith("The database has no row of this session.")


def test_a_job_that_came_another_way_is_told_from_slurm_alone(site: ExplainedSite) -> None:
    site.slurm.accounting(record(JobName="train.sh", State="FAILED", ExitCode="3:0"))
    story = told(site, "4711")
    assert story["happened"].startswith("This job was not started by the hub")
    assert "exit code 3" in story["happened"]


def test_records_of_the_log_about_the_session_are_shown_and_those_of_others_are_not(site: ExplainedSite) -> None:
    site.store(session())
    when = [time.strftime("%Y-%m-%d %H:%M:%S.000", time.localtime(T0 + seconds)) for seconds in (2, 3, 4, 5, 6, 90_000)]
    site.log.write_text(
        f"[I {when[0]} JupyterHub reconciler:244] Session {ID} of alice has job 4711\n"
        f"[E {when[1]} JupyterHub base:9] alice:train cannot be reached\n"
        "    Traceback (most recent call last):\n"
        "    ValueError: token=0123456789abcdef0123456789abcdef\n"
        f"[I {when[2]} JupyterHub log:192] 200 GET /hub/api/users/alice (alice@127.0.0.1) 3.02ms\n"
        f"[W {when[3]} JupyterHub base:9] bob:train cannot be reached\n"
        f"[I {when[4]} JupyterHub base:9] Job 47110 of bob\n"
        f"[I {when[5]} JupyterHub base:9] Job 4711 of bob, a day later\n"
    )
    found = [each for each in told(site, ID, "--log", str(site.log))["lines"] if each["source"] == "log"]
    assert [each["text"].splitlines()[0] for each in found] == [
        f"Session {ID} of alice has job 4711",
        "error: alice:train cannot be reached",
    ]
    assert "ValueError: token=[removed]" in found[1]["text"], "a traceback belongs to its record"
    assert found[0]["at"] == T0 + 2
    packed = site.log.with_suffix(".log.gz")
    packed.write_bytes(gzip.compress(site.log.read_bytes()))
    again = [each for each in told(site, ID, "--log", str(packed))["lines"] if each["source"] == "log"]
    assert [each["text"] for each in again] == [each["text"] for each in found]


def test_a_log_that_cannot_be_read_is_said_and_many_records_are_cut(site: ExplainedSite) -> None:
    site.store(session())
    missing = site.line.folder / "missing.log"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(T0 + 2))
    site.log.write_text("".join(f"[I {when}.{n:03} JupyterHub x:1] {ID} number {n}\n" for n in range(50)))
    story = told(site, ID, "--log", str(missing), "--log", str(site.log), "--log-lines", "5")
    assert f"log {missing}" in [each["source"] for each in story["not_read"]]
    found = [each["text"] for each in story["lines"]]
    assert [each for each in found if "number" in each] == [f"{ID} number {n}" for n in range(45, 50)]
    assert any(each.startswith("45 earlier records") for each in found)


def test_what_others_wrote_cannot_steer_the_terminal(site: ExplainedSite) -> None:
    site.store(session(end_reason="\x1b]0;owned\x07 gone\u202e"))
    out = site.line.run(ExplainApp, ID)[1]
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\\x1b]0;owned" in out


def test_the_output_of_the_job_is_read_by_the_sites_command(site: ExplainedSite) -> None:
    tail = site.line.folder / "tail"
    end = "[carme] ended with exit status 71 (job 4711)"
    tail.write_text(f"#!/bin/sh\necho \"$1 $2\"\necho 'JUPYTERHUB_API_TOKEN=very-secret-token-1'\necho '{end}'\n")
    tail.chmod(0o755)
    with site.line.file.open("a") as file:
        file.write(f"c.CarmeSlurm.tail_command = [{str(tail)!r}]\n")
    site.slurm.silent()
    site.store(session(state=SessionState.SUBMITTED, started=0.0, ended=0.0, end_reason="", port=0))
    story = told(site, ID)
    assert "job.log" not in [each["source"] for each in story["not_read"]]
    [output] = [each["text"] for each in story["lines"] if each["source"] == "job.log"]
    assert output.endswith(f"alice {ID}\nJUPYTERHUB_API_TOKEN=[removed]\n{end}")
    assert "Its job wrote that it has ended" in story["happened"]
    assert "The container image is missing on the compute node" in story["happened"]


def test_a_configuration_that_fails_is_named(tmp_path: Path, site: ExplainedSite) -> None:
    site.line.file.write_text("raise ValueError('broken')\n")
    code, _, err = site.line.run(ExplainApp, ID)
    assert code == 2
    assert "broken" in err


def test_the_booking_it_ran_in_and_its_companions_are_part_of_the_story(site: ExplainedSite) -> None:
    booking = Reservation(
        id="0a1b2c3d-4e5f-4000-8000-000000000001",
        cluster="lab",
        owner="alice",
        account="physics",
        title="Course",
        need=Need("a100", 2),
        period=Period(int(T0), int(T0) + 7200),
        places=(Place("node1", "a100", 2, 1),),
        state=State.ACTIVE,
        created=T0 - 1000,
        used=T0 + 61,
    )
    engine = CarmeStore(url=site.line.url).open()
    with ReservationStore(LedgerStore(engine)).transaction("lab") as calendar:
        calendar.add([booking])
    engine.dispose()
    companion = session(ID[:-2] + "cc", parent=ID, created=T0 + 100, started=T0 + 110, job_id=4712, server_name="")
    site.store(session(request=replace(REQUEST, reservation=booking.names()[0])), companion)
    texts = [each["text"] for each in told(site, ID)["lines"]]
    assert texts[0].startswith("Booking “Course” of alice was made: 2 × a100")
    assert "Booking “Course” of alice was first used." in texts
    assert any(text.startswith(f"The companion {companion.id} was asked for, job 4712") for text in texts)
    assert "a companion of session" in told(site, companion.id)["happened"]


def test_a_database_that_never_answers_does_not_keep_the_command(
    site: ExplainedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.store(session())
    monkeypatch.setattr(reader, "LIMIT", 1.0)
    for name in ("entries", "anomalies", "use", "messages"):
        monkeypatch.setattr(SessionRows, name, lambda *_: threading.Event().wait())
    began = time.monotonic()
    story = told(site, ID)
    assert time.monotonic() - began < 20, "it is given up once, not for each question, and not waited for at the end"
    assert {"source": "ledger", "why": "no answer in 1 s"} in story["not_read"]
    assert "Slurm started job 4711" in story["happened"]
    assert "What it cost is not known" in story["happened"]
