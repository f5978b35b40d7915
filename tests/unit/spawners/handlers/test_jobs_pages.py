"""The pages of jobs show and change the visitor's own alone, never by a GET, and work without JavaScript."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from forged_hub import Browser, ForgedHub
from forged_jobs import ARRAY, BOBS, ENDED, RECORD, RUNS, SCRIPT, TASK, WAITS, HubWithJobs, SlurmThatActs
from test_home_sessions import Part, alice, hub, part, session

from carme_hub.errors import SlurmUnreachable
from carme_hub.spawners.handlers.jobs import acts, again, one, output, rest
from carme_hub.spawners.jobs import acts as use_case

__all__ = ["alice", "hub", "part"]
ACT, ONE, OUTPUT, AGAIN = (f"/hub/carme/jobs/{name}" for name in ("act", "one", "output", "again"))
PATH = "/home/alice/slurm-5.out"


@pytest.fixture
def slurm(hub: ForgedHub, part: Part, monkeypatch: pytest.MonkeyPatch) -> SlurmThatActs:
    own = replace(RUNS, id=12, name=session().job_name)
    found = SlurmThatActs(RUNS, WAITS, TASK, ARRAY, BOBS, ENDED, own)
    found.files[PATH] = b"<b>step 1</b>\nstep 2\n"
    forged = HubWithJobs(found)
    part.own_jobs, part.log, part.reconciler = found, forged.log, forged.reconciler  # type: ignore[assignment,attr-defined]
    part.watcher.latest = found.snapshot()

    async def fresh() -> Any:
        if found.silent:
            raise SlurmUnreachable("no answer from Slurm in 30 s")
        part.watcher.latest = found.snapshot()
        return part.watcher.latest

    part.watcher.fresh = fresh
    part.settings = SimpleNamespace(submit_again=True)
    monkeypatch.setattr(use_case, "LOOK_AGAIN", 0.01)
    for module in (acts, again, one, output, rest):
        monkeypatch.setattr(module, "started_hub", lambda: part)
    settings = hub.app.tornado_application.settings
    for name in ("carme_sessions", "carme_outputs", "carme_submissions"):
        settings.pop(name, None)
    return found


async def get(browser: Browser, path: str, **asked: Any) -> tuple[int, str]:
    status, text, _ = await browser.get(f"{path}?{urlencode(asked, doseq=True)}")
    return status, " ".join(html.unescape(text).split())


async def post(browser: Browser, path: str, **fields: Any) -> tuple[int, str]:
    data = {
        name: [str(each) for each in value] if isinstance(value, list) else str(value) for name, value in fields.items()
    }
    status, text, _ = await browser.post(path, data)  # type: ignore[arg-type]
    return status, " ".join(html.unescape(text).split())


async def test_the_home_page_lists_the_visitors_jobs_and_what_may_be_done(alice: Browser, slurm: SlurmThatActs) -> None:
    _, text = await get(alice, "/hub/home")
    assert [id for id in (5, 6, 7, 8, 9, 10, 12) if f'name="job" value="{id}"' in text] == [5, 6, 7]
    assert re.findall(r'id="carme-jobs-(\w+)"', text)[1:] == ["hold", "requeue", "cancel"], "none is held"
    assert "secret.sh" not in text
    assert 'href="/hub/carme/jobs/output?job=5"' in text
    assert "past.sh</span>: completed" in text
    assert 'href="/hub/carme/jobs/again?job=20"' in text


async def test_what_loses_something_asks_first_also_by_post(alice: Browser, slurm: SlurmThatActs) -> None:
    for what, button in (("cancel", "Cancel these 2 jobs"), ("requeue", "Requeue these 2 jobs")):
        for call in (get, post):
            status, text = await call(alice, ACT, act=what, job=[5, 7, 9])  # type: ignore[operator]
            assert status == 200
            assert button in text
            assert "sweep.sh</span>: running (8 waiting, 1 running)." in text
            assert "9 has ended already, or is not yours." in text
            assert "secret.sh" not in text
    assert slurm.done == []


async def test_chosen_jobs_are_acted_on_and_each_is_told(alice: Browser, slurm: SlurmThatActs) -> None:
    status, text = await post(alice, ACT, act="cancel", sure="yes", job=[5, 7])
    assert status == 200
    assert slurm.done == [("alice", "cancel", "5"), ("alice", "cancel", "7")]
    assert "train.sh</span> is cancelled." in text
    assert "sweep.sh</span> is cancelled." in text


async def test_a_hold_needs_no_question_and_has_an_undo(alice: Browser, slurm: SlurmThatActs) -> None:
    _, text = await post(alice, ACT, act="hold", job=[6])
    assert slurm.done == [("alice", "hold", "6")]
    assert "Undo: release it again" in text
    assert '<input type="hidden" name="act" value="release">' in text
    _, text = await post(alice, ACT, act="release", job=[6])
    assert slurm.done[-1] == ("alice", "release", "6")
    assert "Undo: hold it again" in text


async def test_tasks_and_time_limits_are_checked(alice: Browser, slurm: SlurmThatActs) -> None:
    await post(alice, ACT, act="hold", job=[7], tasks="3-5, 8")
    assert slurm.done == [("alice", "hold", "7_[3-5,8]")]
    for wrong in ("x", "5-3", "1;2"):
        assert (await post(alice, ACT, act="hold", job=[7], tasks=wrong))[0] == 400
    assert (await post(alice, ACT, act="hold", job=[7, 6], tasks="3"))[0] == 400
    _, text = await post(alice, ACT, act="limit", job=[6], minutes=60)
    assert "It can only be lowered" in text
    _, text = await post(alice, ACT, act="limit", job=[6], minutes=20)
    assert "has a limit of 20 minutes." in text
    assert slurm.done[-1] == ("alice", "limit", "6")


async def test_wrong_requests_change_nothing_and_say_what_is_wrong(alice: Browser, slurm: SlurmThatActs) -> None:
    for fields, words in (
        ({"act": "explode", "job": [5]}, "nothing that can be done"),
        ({"act": "cancel", "sure": "yes", "job": ["5; rm"]}, "is no job"),
        ({"act": "cancel", "sure": "yes", "job": list(range(1, 202))}, "at most 200"),
        ({"act": "limit", "job": [5], "minutes": "-1"}, "a number of minutes"),
        ({"act": "limit", "job": [5], "minutes": "9" * 20}, "a number of minutes"),
    ):
        status, text = await post(alice, ACT, **fields)
        assert (status, words in text) == (400, True), text
    assert "Choose jobs on your page first." in (await get(alice, ACT, act="cancel"))[1]
    assert slurm.done == []


async def test_a_form_without_its_token_or_a_stranger_changes_nothing(
    alice: Browser, hub: ForgedHub, slurm: SlurmThatActs
) -> None:
    stranger = await hub.browser()
    for path in (ACT, AGAIN):
        status, _ = await post(stranger, path, act="hold", job=[6], sure="yes")
        assert status in (302, 403)
    for path in (ONE, OUTPUT, AGAIN, f"{OUTPUT}/file", f"{OUTPUT}/new"):
        assert (await get(stranger, path, job=5))[0] in (302, 403), path
    for path in (ACT, AGAIN):
        alice.xsrf = "wrong"  # each page brings a new one
        assert (await post(alice, path, act="hold", job=[6], sure="yes"))[0] == 403
    assert slurm.done == []
    assert slurm.submitted == []


async def test_while_slurm_is_silent_nothing_is_done_and_the_page_says_so(
    alice: Browser, slurm: SlurmThatActs, part: Part
) -> None:
    slurm.silent = True
    status, text = await post(alice, ACT, act="hold", job=[6])
    assert (status, slurm.done) == (503, [])
    assert "nothing was changed" in text
    assert (await get(alice, OUTPUT, job=5))[0] == 503
    assert (await get(alice, AGAIN, job=5))[0] == 503
    part.watcher.latest = None
    assert (await get(alice, ACT, act="hold", job=6))[0] == 503


async def test_a_sessions_job_is_told_apart(alice: Browser, slurm: SlurmThatActs) -> None:
    _, text = await post(alice, ACT, act="hold", job=[12])
    assert "is a session of yours, which cannot be held" in text
    assert slurm.done == []


async def test_the_page_of_a_job_has_what_it_is_and_what_may_be_done(alice: Browser, slurm: SlurmThatActs) -> None:
    status, text = await get(alice, ONE, job=5)
    assert status == 200
    assert "Job 5 train.sh" in text
    assert "/home/alice/slurm-5.out" in text
    assert 'max="59"' in text
    assert re.findall(r'name="act" value="(\w+)"', text) == ["requeue", "cancel", "limit"]
    _, array = await get(alice, ONE, job=7)
    assert "job=7_1" in array
    assert "job=7_%5B2-9%5D" in array
    assert "Only these tasks" in array
    await post(alice, ACT, act="hold", job=[7], tasks="3-4")
    _, array = await get(alice, ONE, job=7)
    assert "job=7_%5B3-4%5D" in array
    assert "job=7_%5B2%2C5-9%5D" in array
    slurm.jobs[5] = replace(RUNS, time_limit=0)
    await post(alice, ACT, act="hold", job=[6])
    _, unlimited = await get(alice, ONE, job=5)
    assert "Lower the limit" in unlimited
    assert 'max="' not in unlimited
    _, past = await get(alice, ONE, job=20)
    assert "Completed" in past
    assert "sbatch past.sh" in past


@pytest.mark.parametrize("job", ["9", "999", "x", "", "9_1"])
async def test_jobs_of_others_are_as_if_there_were_none(alice: Browser, slurm: SlurmThatActs, job: str) -> None:
    slurm.files["/home/bob/slurm-9.out"] = b"secret"
    slurm.scripts[9] = "#!/bin/sh\nsecret\n"
    for path in (ONE, OUTPUT, AGAIN, f"{OUTPUT}/file", f"{OUTPUT}/new"):
        status, text = await get(alice, path, job=job)
        assert status == 404, path
        assert "secret" not in text


async def test_output_is_shown_as_text_and_found_and_downloaded(alice: Browser, slurm: SlurmThatActs) -> None:
    status, text, _ = await alice.get(f"{OUTPUT}?job=5")
    assert status == 200
    assert "&lt;b&gt;step 1&lt;/b&gt;\nstep 2" in text
    assert 'data-live="yes"' in text
    _, found = await get(alice, OUTPUT, job=5, find="step 2")
    assert "1 line has “step 2”" in found
    status, body, headers = await alice.get(f"{OUTPUT}/file?job=5")
    assert (status, body) == (200, slurm.files[PATH].decode())
    assert headers["Content-Disposition"] == 'attachment; filename="slurm-5.out"'
    assert (headers["Content-Type"], headers["X-Content-Type-Options"]) == ("application/octet-stream", "nosniff")
    assert (await get(alice, OUTPUT, job=5, stream="passwd"))[0] == 404


async def test_the_page_follows_what_is_written_and_notices_a_new_file(alice: Browser, slurm: SlurmThatActs) -> None:
    async def new(since: int, inode: int = 7) -> dict[str, Any]:
        status, text, _ = await alice.get(f"{OUTPUT}/new?job=5&from={since}&inode={inode}")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    size = len(slurm.files[PATH])
    slurm.files[PATH] += b"step 3\n"
    found = await new(size)
    assert (found["text"], found["end"], found["replaced"], found["live"]) == ("step 3\n", size + 7, False, True)
    slurm.files[PATH] = b"anew\n"
    assert (await new(size))["replaced"]
    assert (await new(5, inode=1))["text"] == "anew\n"
    assert (await alice.get(f"{OUTPUT}/new?job=5&from=x"))[0] == 400
    del slurm.files[PATH]
    assert (await alice.get(f"{OUTPUT}/new?job=5&from=0"))[0] == 404


async def test_why_there_is_no_output_is_said(alice: Browser, slurm: SlurmThatActs) -> None:
    slurm.unreadable[PATH] = "no-helper"
    status, text = await get(alice, OUTPUT, job=5)
    assert status == 200
    assert "This hub cannot read files of users" in text
    assert (await get(alice, f"{OUTPUT}/file", job=5))[0] == 404
    assert "Each task of an array" in (await get(alice, OUTPUT, job=7))[1]


async def test_submitting_again_is_shown_first_and_done_once(alice: Browser, slurm: SlurmThatActs) -> None:
    status, text = await get(alice, AGAIN, job=5)
    assert status == 200
    assert "sbatch --job-name=train.sh --time=60 --mem-per-cpu=1G" in text
    assert " ".join(SCRIPT.split()) in text
    assert "is not charged for it" in text
    assert slurm.submitted == []
    [key] = re.findall(r'name="key" value="([^"]+)"', text)
    for _ in range(2):
        status, text = await post(alice, AGAIN, job=5, key=key)
        assert (status, "It is submitted as job 101." in text) == (200, True)
    assert len(slurm.submitted) == 1


async def test_what_cannot_be_submitted_again_says_why_and_a_refusal_is_shown(
    alice: Browser, slurm: SlurmThatActs, part: Part
) -> None:
    _, text = await get(alice, AGAIN, job=20)
    assert "AccountingStoreFlags=job_script" in text
    assert "Submit it" not in text
    status, text = await post(alice, AGAIN, job=7, tasks="x")
    assert (status, "numbers and ranges" in text) == (409, True)
    slurm.errors["submit"] = SlurmUnreachable("timed out")
    status, text = await post(alice, AGAIN, job=5)
    assert (status, "may or may not be submitted" in text) == (503, True)
    part.settings.submit_again = False
    assert "Use sbatch in a terminal" in (await get(alice, AGAIN, job=5))[1]
    assert "carme/jobs/again" not in (await get(alice, ONE, job=5))[1]


async def test_what_has_ended_is_asked_of_accounting_with_the_owner_of_the_page(
    alice: Browser, slurm: SlurmThatActs
) -> None:
    slurm.records = [replace(RECORD, user="bob", name="secret.sh")]
    _, text = await get(alice, "/hub/home")
    assert "secret.sh" not in text
    assert (await get(alice, ONE, job=20))[0] == 404
