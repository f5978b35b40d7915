"""``carme-hub explain`` and logs: as JSON, packed by halves, of a unit that is not shown to everybody, of the job."""

from __future__ import annotations

import gzip
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from explained_site import ID, T0, ExplainedSite, session

from carme_hub.cli.explain import job_log
from carme_hub.cli.explain.command import EXIT_UNKNOWN, ExplainApp
from carme_hub.logs import JsonFormatter, about


def told(site: ExplainedSite, *argv: str) -> tuple[int, dict[str, Any]]:
    code, out, err = site.line.run(ExplainApp, *argv, "--json")
    assert code in (0, EXIT_UNKNOWN), err
    return code, dict(json.loads(out))


def texts(story: dict[str, Any], source: str = "log") -> list[str]:
    return [each["text"] for each in story["lines"] if each["source"] == source]


def not_read(story: dict[str, Any]) -> set[str]:
    return {each["source"] for each in story["not_read"]}


def as_json(message: str, at: float, error: BaseException | None = None, **fields: object) -> str:
    """Return a record as the hub writes it with ``json_logs``."""
    info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("JupyterHub", logging.ERROR, "x.py", 1, message, None, info)
    record.created = at
    with about(**fields):
        return JsonFormatter().format(record) + "\n"


def test_the_hubs_json_is_read_with_its_fields_and_tracebacks(site: ExplainedSite) -> None:
    site.store(session())
    try:
        raise ValueError("token=0123456789abcdef0123456789abcdef")
    except ValueError as error:
        failed = as_json("The proxy refused", T0 + 3, error, session=ID, user="alice")
    site.log.write_text(
        failed
        + as_json("A job of its", T0 + 4, job=4711)
        + as_json("A job of others", T0 + 5, job=4712)
        + as_json("Another session", T0 + 6, session=ID[:-1] + "b", user="bob")
        + '{"a":' * 100_000
        + "\n"
    )
    story = told(site, ID, "--log", str(site.log))[1]
    first, second = texts(story)
    assert not_read(story) == {"job.log"}, "this machine has no such user"
    assert first.startswith("error: The proxy refused\nTraceback (most recent call last):")
    assert first.endswith("ValueError: token=[removed]")
    assert second == "error: A job of its"


def test_a_packed_log_that_is_not_whole_is_said_not_to_be_read(site: ExplainedSite) -> None:
    site.store(session())
    packed = site.log.with_suffix(".log.gz")
    whole = gzip.compress(as_json("here", T0 + 2, session=ID).encode() * 100)
    for text in (whole[: len(whole) // 2], b"no gzip at all", whole[:20] + b"\0" * 40):
        packed.write_bytes(text)
        code, story = told(site, ID, "--log", str(packed))
        assert code == EXIT_UNKNOWN
        [unread] = [each for each in story["not_read"] if each["source"] == f"log {packed}"]
        assert "damaged, or is being packed" in unread["why"]


def test_a_journal_that_this_user_may_not_read_is_not_said_to_be_empty(
    site: ExplainedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.store(session())
    monkeypatch.setenv("PATH", str(site.slurm.folder), prepend=":")
    hint = "Hint: You are currently not seeing messages from other users and the system.\n"
    for out, err, why in (
        ("-- No entries --\n", hint, "systemd-journal"),
        ("-- No entries --\n", "", "is that the unit's name?"),
    ):
        site.slurm.say("journalctl", out, err=err)
        code, story = told(site, ID, "--unit", "carme-hub")
        assert code == EXIT_UNKNOWN
        [unread] = [each for each in story["not_read"] if each["source"] == "journal of carme-hub"]
        assert why in unread["why"]
    site.slurm.say("journalctl", as_json("here", T0 + 2, session=ID))
    story = told(site, ID, "--unit", "carme-hub")[1]
    assert (not_read(story), texts(story)) == ({"job.log"}, ["error: here"])


def test_the_end_of_a_long_output_begins_with_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is cut would not be seen to be one."""
    folder = tmp_path / ".carme" / "sessions" / ID
    folder.mkdir(parents=True)
    forged = SimpleNamespace(pw_name="alice", pw_dir=str(tmp_path), pw_uid=os.getuid())
    monkeypatch.setattr(job_log, "pwd", SimpleNamespace(getpwnam=lambda _: forged))
    log, line = folder / "job.log", f"token={'0123456789abcdef' * 2}\n"
    for text, begins in (
        (line + "x" * (job_log.TAIL - 17) + "\nend\n", "x"),
        ("short\n" + line, "short\n"),
        ("-" * (job_log.TAIL - 4) + "\nend", "---"),
        (f"{'y' * 9000}\rend\n", "end\n"),
        ("z" * 9000, ""),
    ):
        log.write_text(text)
        found, _ = job_log.by_file("alice", ID)
        assert found.startswith(begins)
        assert text.endswith(found)
        assert len(found) <= job_log.TAIL
    assert found == ""


def test_the_output_is_read_in_the_home_that_the_hub_uses(site: ExplainedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.store(session())
    folder = site.line.folder / "homes" / "alice" / ".carme" / "sessions" / ID
    folder.mkdir(parents=True)
    (folder / "job.log").write_text("here it ended\n")
    forged = SimpleNamespace(pw_name="alice", pw_dir="/nonexistent", pw_uid=os.getuid())
    monkeypatch.setattr(job_log, "pwd", SimpleNamespace(getpwnam=lambda _: forged))
    with site.line.file.open("a") as file:
        file.write(f"c.SlurmContainerSpawner.req_homedir = {str(site.line.folder / 'homes')!r} + '/{{username}}'\n")
    code, story = told(site, ID)
    assert (code, not_read(story)) == (0, set())
    assert texts(story, "job.log")[0].endswith("here it ended")


def test_an_id_that_begins_with_digits_alone_is_found_by_them(site: ExplainedSite) -> None:
    digits = "12345678" + ID[8:]
    site.slurm.accounting()
    site.store(session(digits, job_id=17))
    assert told(site, "12345678")[1]["id"] == digits
    site.store(session(job_id=12345678))
    assert told(site, "12345678")[1]["id"] == ID, "a number is first of all that of a job"
    code, out, err = site.line.run(ExplainApp, "12345679")
    assert (code, out, "There is no session or job" in err) == (1, "", True)
    site.slurm.silent()
    assert told(site, "12345679")[0] == EXIT_UNKNOWN, "a silent Slurm may have such a job"
