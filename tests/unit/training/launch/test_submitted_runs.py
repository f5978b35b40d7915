"""A submitted run: its price is said, what it needs is kept, and until it begins its state is what the hub says."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training import command, distributed
from carme_hub.training.launch import new_run, start
from carme_hub.training.records import batch_jobs
from carme_hub.training.records.batch_jobs import NOT_SUBMITTED, Refresher
from carme_hub.training.run import environment
from carme_hub.training.run.failures import CannotRun, Interrupted
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import LOOKING_UP, Run, all_runs
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, parse_line
from carme_hub.training.server.runs_page import RunsPage
from carme_hub.training.session import companions, user_jobs
from carme_hub.training.session.companions import Companion, Hub, NoHub, Quote, Refused

ID = "11111111-2222-4333-8444-555555555555"
OPTIONS = RunOptions(6, submit=True, seconds=3600, name="long")


class HubThatTakesJobs:
    """Takes one batch job, of up to four GPUs on a node, and says what the test wants of it."""

    user = ""

    def __init__(self) -> None:
        self.quoted: list[dict[str, Any]] = []
        self.opened: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.questions = 0
        self.answer: Exception | None = None
        self.allowed = self.has_jobs = True

    def quote(self, **asked: Any) -> Quote:
        self.quoted.append(asked)
        said = "Costs up to 6 GPU-hours" if self.allowed else "Your account has 1 GPU-hour left."
        return Quote(self.allowed, said, said="starts now", gpus_of_one_node=(1, 2, 3, 4), batch_jobs=self.has_jobs)

    def open(self, **asked: Any) -> Companion:
        self.opened.append(asked)
        if self.answer is not None:
            raise self.answer
        self.says("waiting", "Waiting for GPUs.")
        return Companion(ID, "waiting", "Waiting for GPUs.", job=7, created=self.jobs[0]["created"])

    def says(self, state: str, said: str, *, cancelled: bool = False) -> None:
        run = self.opened[-1]["run"]
        self.jobs = [
            {
                "id": ID,
                "run": run,
                "state": state,
                "said": said,
                "job": 7,
                "created": time.time(),
                "cancelled": cancelled,
            }
        ]

    def ask(self, method: str, path: str) -> dict[str, Any]:
        self.questions += 1
        if isinstance(self.answer, NoHub):
            raise self.answer
        if method == "DELETE":
            self.cancelled.append(path)
        return {"batch_jobs": self.jobs}


@pytest.fixture(autouse=True)
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> HubThatTakesJobs:
    """A session with one GPU on one node, and its hub."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    monkeypatch.delenv("CARME_BACKEND", raising=False)
    found = HubThatTakesJobs()
    monkeypatch.setattr(Hub, "from_environ", lambda *_environ: found)
    monkeypatch.setattr(user_jobs, "hub_of_user", lambda **_how: found)
    monkeypatch.setattr(distributed, "_refresher", Refresher(0, lambda: found))  # type: ignore[arg-type,return-value]
    return found


def submitted(options: RunOptions = OPTIONS, **code: Any) -> tuple[Run, list[str]]:
    lines: list[str] = []
    return start.begin(options, lines.append, **(code or {"cell": "print(1)"})), lines


def test_its_size_and_price_are_said_and_all_its_ranks_are_in_the_job(hub: HubThatTakesJobs) -> None:
    run, lines = submitted()
    assert lines == ["A batch job of 2 nodes with 6 GPUs is requested. Costs up to 6 GPU-hours. Starts now."]
    size = {"nodes": 2, "gpus": 6, "cpus": 0, "memory_mib": 0, "minutes": 60}
    assert hub.quoted[-1] == {**size, "run": "long"}
    [opened] = hub.opened
    assert opened == {
        **size,
        "name": "long",
        "run": "long",
        "key": run.request()["key"],
        "python": sys.executable,
        "requeue": False,
    }
    asked = run.request()["asked"]
    assert (asked["nodes"], asked["gpus_per_task"], asked["detach"], asked["own"]) == (2, 1, True, [0, 0])
    assert (run.state()["state"], run.state()["message"]) == ("waiting", "Waiting for GPUs.")
    given = new_run.given_options(run)
    assert (given.nodes, given.submit, given.seconds) == (0, True, 3600)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-n 2 --submit", "say how long the batch job may take, such as --time 4h"),
        ("-n 2 --submit --time 1h --elastic 1:2", "a batch job has a fixed number of ranks"),
        ("-n 2 --submit --time 1h --pull a", "--pull is not for a run that is submitted"),
        ("-n 2 --batch --time 1h --dry-run", "--dry-run is not for a run that is submitted"),
    ],
)
def test_what_a_batch_job_cannot_do_is_said(line: str, said: str) -> None:
    with pytest.raises(InvalidOptions, match=said):
        parse_line(line)


def test_what_the_hub_does_not_allow_creates_nothing(hub: HubThatTakesJobs) -> None:
    hub.allowed = False
    with pytest.raises(CannotRun, match=r"1 GPU-hour left"):
        submitted()
    with pytest.raises(CannotRun, match=r"2 ranks with 8 GPUs each cannot be divided .* may have 1, 2, 3, 4 GPUs"):
        submitted(RunOptions(2, gpus_per_task=8, submit=True, seconds=60))
    assert all_runs() == []
    hub.has_jobs = False
    with pytest.raises(CannotRun, match="The hub is older than this image"):
        submitted()
    hub.has_jobs = hub.allowed = True
    hub.answer = Refused("You may have 16 batch jobs at once here.")
    with pytest.raises(CannotRun, match="16 batch jobs"):
        submitted()
    [run] = all_runs()
    assert run.state()["state"] == "failed"
    assert "16 batch jobs" in run.state()["message"]


def test_where_the_answer_is_lost_the_hub_is_asked_later(
    hub: HubThatTakesJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.answer = NoHub("The hub does not answer.")
    with pytest.raises(CannotRun, match=r"Whether long was submitted is not known"):
        submitted()
    assert distributed.runs().states()[0]["state"] == "waiting"
    hub.answer = None
    hub.says("waiting", "You are next.")
    assert distributed.runs().states()[0]["message"] == "You are next."
    run = Run.load("long")
    run.set_batch_job({"state": "waiting", "said": ""})
    hub.jobs = []
    assert distributed.runs().states()[0]["state"] == "waiting"  # it may show up still
    monkeypatch.setattr(batch_jobs, "UNKNOWN_SECONDS", -1.0)
    assert distributed.runs().states()[0]["message"] == f"The batch job ended before its run began. {NOT_SUBMITTED}"


@pytest.mark.parametrize(
    ("begun", "cancelled", "found"),
    [
        (False, False, ("failed", "The batch job ended before its run began. No such image.")),
        (True, False, ("failed", "The batch job ended. No such image.")),
        (True, True, ("interrupted", "The batch job was cancelled. No such image.")),
        (False, True, ("interrupted", "The batch job was cancelled. No such image.")),
    ],
)
def test_a_job_that_ends_without_a_word_is_said_by_the_hub(
    hub: HubThatTakesJobs, begun: bool, cancelled: bool, found: tuple[str, str]
) -> None:
    run, _ = submitted()
    kept = run.folder / environment.SUBMITTED_FILE
    if begun:
        write_json(run.folder / "state.json", run.state() | {"state": "running", "conductor": {"pid": 1}})
        assert (run.state()["state"], run.state()["message"]) == ("running", LOOKING_UP)  # the hub may not know yet
    assert kept.exists()
    hub.says("ended", "No such image.", cancelled=cancelled)
    [state] = distributed.runs().states()
    assert (state["state"], state["message"]) == found
    assert time.time() - 60 < state["ended"] <= time.time()
    assert not kept.exists()
    asked = hub.questions
    distributed.runs()
    assert hub.questions == asked, "what has ended is not asked about again"


def test_one_that_waits_is_cancelled_and_says_so_at_once(
    hub: HubThatTakesJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = submitted()
    hub.answer = NoHub("The hub does not answer.")
    assert command.main(["runs", "stop", "long"]) == command.CANNOT
    assert "The batch job of long is not cancelled. The hub does not answer." in capsys.readouterr().err
    hub.answer = None
    assert command.main(["runs", "stop", "long"]) == 0
    assert (hub.cancelled, run.state()["state"]) == ([f"/{ID}"], "interrupted")


def test_a_stop_while_it_is_being_submitted_is_not_lost(
    hub: HubThatTakesJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.answer = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(Interrupted, match=r"^long may have been submitted"):
        submitted()
    run = Run.load("long")
    assert (run.folder / "stop").exists()
    (run.folder / "stop").unlink()
    hub.answer, hub.jobs = None, []
    assert command.main(["runs", "stop", "long"]) == command.CANNOT
    assert "It is being submitted. Try it again in a moment." in capsys.readouterr().err
    assert (run.folder / "stop").exists(), "its conductor reads this, should it begin"
    assert run.state()["state"] == "waiting"


def test_a_hub_that_forgot_a_job_is_believed_after_a_while(
    hub: HubThatTakesJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = submitted()
    hub.jobs = []
    distributed.runs()
    assert run.state()["state"] == "waiting"
    monkeypatch.setattr(batch_jobs, "UNKNOWN_SECONDS", -1.0)
    distributed.runs()
    assert run.state()["message"].endswith("The hub does not know its job any more.")


def test_the_next_job_of_a_run_is_followed_and_an_older_one_of_its_name_is_not(hub: HubThatTakesJobs) -> None:
    run, _ = submitted()
    other = {"id": "2" * 8, "run": "long", "state": "ended", "said": "Old.", "job": 5, "created": 1.0}
    hub.jobs = [other]
    distributed.runs()
    assert run.state()["state"] == "waiting"
    hub.jobs = [other | {"id": "3" * 8, "state": "waiting", "said": "You are next.", "created": time.time() + 9}]
    distributed.runs()
    assert (run.state()["message"], run.batch_job()["id"]) == ("You are next.", "3" * 8)


def test_what_pip_has_installed_goes_along(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = home / ".carme/sessions/s1/packages/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (site / "net.py").write_text("x = 1")
    monkeypatch.setenv("CARME_PACKAGES", str(home / ".carme/sessions/s1/packages"))
    monkeypatch.syspath_prepend(str(site))
    run, _ = submitted()
    request, kept = run.request(), run.folder / "packages"
    assert request["packages"] == str(kept)
    assert request["path"][0] == str(kept / "lib/python3.11/site-packages")
    assert not any("sessions/s1" in each for each in request["path"])
    (site / "net.py").unlink()  # the session ends
    assert (kept / "lib/python3.11/site-packages/net.py").read_text() == "x = 1"


def test_the_page_says_the_price_before_it_submits(hub: HubThatTakesJobs) -> None:
    first, _ = submitted()
    page = RunsPage()
    body = {"ask": "repeat", "options": "--time 2h --submit", "args": None}
    answer = page.do(first.id, body)
    assert answer["confirm"]
    assert answer["message"].startswith("A batch job of 2 nodes with 6 GPUs is requested.")
    assert len(hub.opened) == 1
    answer = page.do(first.id, {**body, "confirm": True})
    assert answer["run"] == "long-2"
    assert answer["message"].startswith("long-2 is submitted. ")
    assert hub.opened[-1]["minutes"] == 120


def test_the_hub_is_asked_once_in_a_while_for_all_of_them(hub: HubThatTakesJobs) -> None:
    runs = [submitted(RunOptions(1, submit=True, seconds=60))[0] for _ in range(3)]
    forged: Callable[[], Hub] = lambda: hub  # type: ignore[assignment,return-value]  # noqa: E731
    refresher = Refresher(60, forged)
    before = hub.questions
    for _ in range(3):
        refresher.refresh(runs)
    assert hub.questions == before + 1


def test_the_hubs_list_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    environ = {
        "JUPYTERHUB_API_URL": "http://hub/hub/api",
        "JUPYTERHUB_API_TOKEN": "t",
        "CARME_SESSION": ID,
        "JUPYTERHUB_USER": "ann/o'n",
    }
    assert user_jobs.hub_of_user(environ).url == "http://hub/hub/api/carme/users/ann%2Fo%27n/batch-jobs"
    with pytest.raises(companions.NoHub):
        user_jobs.hub_of_user({})
