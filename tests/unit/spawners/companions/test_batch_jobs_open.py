"""A batch job is requested like a companion, has a time of its own, and is its user's from then on."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader
from test_companions_open import ONE, PARENT, REQUEST, Part, Spawner, book, part, session
from test_companions_script import SITE
from test_job_script import ALICE, IMAGE
from tornado import web

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.companions import (
    BATCH_START_MINUTES,
    CompanionRequest,
    NoCompanion,
    describe_companion,
)
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import SlurmRejected, StoreError
from carme_hub.spawners import session_state
from carme_hub.spawners.companions import companions
from carme_hub.spawners.companions.companions import (
    CANCELLED,
    CONTINUED,
    cancel_batch_job,
    continue_batch_job,
    open_companion,
    quote,
)
from carme_hub.spawners.companions.descriptions import listed
from carme_hub.spawners.companions.script import render_batch_job
from carme_hub.spawners.handlers.companions import companion_request
from carme_hub.spawners.handlers.pages import templates_path
from carme_hub.spawners.session_state import SessionStatus, as_shown

__all__ = ["book", "part", "session"]

JOB = CompanionRequest(nodes=2, gpus=4, minutes=200, name="long", run="long", python="/opt/venv/bin/python3")


class SpawnerOfBatchJobs(Spawner):
    """Its site allows two batch jobs."""

    max_batch_jobs = 2


async def opened(part: Part, session: Session, wanted: CompanionRequest = JOB) -> Session:
    return (await open_companion(part, SpawnerOfBatchJobs(), session, wanted))[0]  # type: ignore[arg-type]


async def test_its_time_is_its_own_and_it_needs_no_reservation(part: Part, session: Session) -> None:
    session = session.replace(request=replace(REQUEST, reservation="course"))
    job = await opened(part, session)
    assert (job.parent, job.request.batch, job.request.time_limit) == (PARENT, "long", 200 + BATCH_START_MINUTES)
    [spec] = part.client.specs
    # The session has 50 minutes left, and its booking ends with it.
    assert (spec.nodes, spec.gpus, spec.time_limit, spec.reservation) == (2, Gpus("a100", 4), 202, "")
    assert "singleuser" not in json.loads(spec.data)
    shown = (await listed(part, session))[0]  # type: ignore[arg-type]
    assert (shown["run"], shown["shown"], shown["cancelled"]) == ("long", "long: 2 nodes, 4 × a100", False)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"minutes": 0}, "gives a batch job 1 to 480 minutes. Say how long"), ({"minutes": 481}, "you asked for 481")],
)
async def test_its_time_is_said_and_is_within_the_profile(
    part: Part, session: Session, change: dict[str, Any], said: str
) -> None:
    spawner = SpawnerOfBatchJobs()
    found = await quote(part, spawner, session, replace(JOB, **change))  # type: ignore[arg-type]
    assert not found.allowed
    assert said in found.message
    longest = await quote(part, spawner, session, replace(JOB, minutes=480))  # type: ignore[arg-type]
    assert longest.allowed
    assert longest.as_json()["minutes"] == 480


async def test_they_are_counted_for_each_user_and_not_as_companions(part: Part, session: Session) -> None:
    spawner = SpawnerOfBatchJobs()
    for name in ("a", "b"):
        await opened(part, session, replace(JOB, run=name))
    with pytest.raises(NoCompanion, match="You may have 2 batch jobs at once here"):
        await opened(part, session, replace(JOB, run="c"))
    assert (await quote(part, spawner, session, JOB)).left_to_open == 0  # type: ignore[arg-type]
    assert (await quote(part, spawner, session, ONE)).left_to_open == 2  # type: ignore[arg-type]
    await opened(part, session, ONE)


async def test_it_is_cancelled_by_its_user_alone_and_is_no_companion_to_cancel(part: Part, session: Session) -> None:
    job, companion = await opened(part, session), await opened(part, session, ONE)
    for user, id in (("bob", job.id), ("alice", companion.id), ("alice", PARENT)):
        with pytest.raises(NoCompanion, match="no such batch job"):
            await cancel_batch_job(part, user, id)  # type: ignore[arg-type]
    left = await cancel_batch_job(part, "alice", job.id)  # type: ignore[arg-type]
    assert left.cancel_reason == CANCELLED
    assert (await listed(part, session))[0]["said"] == "It is being cancelled."  # type: ignore[arg-type]
    await part.registry.close(job.id, CANCELLED)
    assert [each.id for each in await part.registry.all_batch_jobs_of("alice")] == [job.id]
    assert part.registry.batch_jobs_of("alice") == await part.registry.all_batch_jobs_of("bob") == ()


async def test_another_job_continues_it_once(part: Part, session: Session) -> None:
    user = SimpleNamespace(name="alice", spawner=SpawnerOfBatchJobs())
    job = await opened(part, session, replace(JOB, requeue=True))
    for _ in range(2):
        assert await continue_batch_job(part, user, job) == CONTINUED  # type: ignore[arg-type]
    first, second = part.client.specs
    assert (first.name, first.time_limit, first.gpus) != (second.name, second.time_limit, second.gpus)
    assert replace(first, name="", session_folder="", data=b"", environment={}) == replace(
        second, name="", session_folder="", data=b"", environment={}
    )
    assert part.done == ["hold", "hold"]
    assert part.instead_of == job.id, "what the first one has not used is free"


async def test_the_policy_has_a_say_when_another_job_continues_it(part: Part, session: Session) -> None:
    user = SimpleNamespace(name="alice", spawner=SpawnerOfBatchJobs())
    job = await opened(part, session, replace(JOB, requeue=True))
    part.refuses = "Your account has 1 GPU-hour left."
    said = await continue_batch_job(part, user, job)  # type: ignore[arg-type]
    assert said == "Its time was over, and it is not continued: Your account has 1 GPU-hour left."
    assert len(part.client.specs) == 1


async def test_what_slurm_refuses_or_a_restart_loses_is_tried_again_and_not_for_ever(
    part: Part, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "SUBMIT_WAIT", 0.05)
    monkeypatch.setattr(SpawnerOfBatchJobs, "max_batch_jobs", 9)
    user = SimpleNamespace(name="alice", spawner=SpawnerOfBatchJobs())
    job = await opened(part, session, replace(JOB, requeue=True))
    part.client.error = SlurmRejected("Job violates accounting/QOS policy")
    with pytest.raises(NoCompanion):
        await continue_batch_job(part, user, job)  # type: ignore[arg-type]
    part.client.error, part.client.silent = None, True
    for _ in range(2):
        with pytest.raises(StoreError):  # it is being submitted, and then nobody knows
            await continue_batch_job(part, user, job)  # type: ignore[arg-type]
    for task in set(companions._submitting):
        task.cancel()
    waits = part.registry.batch_jobs_of("alice")[-1]
    await part.registry.close(waits.id, "The hub was interrupted.")
    part.client.silent = False
    monkeypatch.setattr(companions, "SUBMIT_WAIT", 30.0)  # a busy machine takes longer than the wait above
    assert await continue_batch_job(part, user, job) == CONTINUED  # type: ignore[arg-type]
    assert len(part.client.specs) == 2

    other = await opened(part, session, replace(JOB, run="other", requeue=True))
    part.client.error = SlurmRejected("Job violates accounting/QOS policy")
    for _ in range(companions.MOST_TRIES):
        with pytest.raises(NoCompanion):
            await continue_batch_job(part, user, other)  # type: ignore[arg-type]
    said = await continue_batch_job(part, user, other)  # type: ignore[arg-type]
    assert said.startswith("Its time was over, and it is not continued: Slurm refused the job")


async def test_one_that_is_cancelled_meanwhile_is_not_continued(
    part: Part, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = SimpleNamespace(name="alice", spawner=SpawnerOfBatchJobs())
    job = await opened(part, session, replace(JOB, requeue=True))
    admit = part.admit

    async def admit_and_cancel(*args: Any, **more: Any) -> Any:
        await cancel_batch_job(part, "alice", job.id)  # type: ignore[arg-type]
        return await admit(*args, **more)

    monkeypatch.setattr(part, "admit", admit_and_cancel)
    assert await continue_batch_job(part, user, job) == CANCELLED  # type: ignore[arg-type]
    assert (part.done, len(part.client.specs)) == (["hold", "hold", "release"], 1)


def test_it_has_the_sessions_container_and_in_it_the_conductor_of_its_run() -> None:
    request = replace(REQUEST, nodes=2, gpus=Gpus("a100", 4), batch="long", python="/opt/venv/bin/python3")
    spec = render_batch_job("0f9a", ALICE, request, IMAGE, SITE, {})
    assert spec.nodes == 2
    document = json.loads(spec.data)
    assert "singleuser" not in document
    assert {"carme-steps", "carme-srun", "carme-rank", "carme-supervise", "carme-memory"} == set(document["files"])
    run = "/home/alice/.carme/runs/long"
    argv = ("/opt/venv/bin/python3", "-P", "-m", "carme_hub.training.conduct_batch", run)
    assert tuple(document["plan"]["argv"][-len(argv) :]) == argv
    environ = document["plan"]["environ"]
    assert environ["CARME_PACKAGES"] == document["rank"]["plan"]["environ"]["CARME_PACKAGES"] == f"{run}/packages"
    assert not [name for name in environ if "TOKEN" in name or "JUPYTERHUB" in name]


@pytest.mark.parametrize(
    "said",
    [
        {"run": "../x", "python": "/p"},
        {"run": "a/b", "python": "/p"},
        {"run": "-x", "python": "/p"},
        {"run": "x" * 65, "python": "/p"},
        {"run": "x", "python": "python3"},
        {"run": "x", "python": "/p\n"},
        {"run": 1},
        {"requeue": True},
        {"run": "x", "requeue": "yes"},
    ],
)
def test_a_run_and_a_python_are_names_and_paths(said: dict[str, Any]) -> None:
    with pytest.raises(web.HTTPError) as refused:
        companion_request(said)
    assert refused.value.status_code == 400


def test_its_name_is_that_of_its_run() -> None:
    found = companion_request({"run": "long", "python": "/opt/my python/bin/python3", "minutes": 9})
    assert found == CompanionRequest(minutes=9, name="long", run="long", python="/opt/my python/bin/python3")
    assert describe_companion(replace(REQUEST, batch="long"), virtual=True) == "long: 1 node, 1 × virtual a100"


async def test_the_home_page_lists_it_apart_from_companions_and_asks_before_it_cancels(
    part: Part, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "started_hub", lambda: part)
    waits, leaves = await opened(part, session), await opened(part, session, replace(JOB, run="short"))
    await cancel_batch_job(part, "alice", leaves.id)  # type: ignore[arg-type]
    server = SessionStatus()
    server.user, server.name, server.virtual = SimpleNamespace(name="alice"), "", True
    assert server.companions == []
    jobs = [as_shown(part, each, virtual=True) for each in part.registry.batch_jobs_of("alice")]  # type: ignore[arg-type]
    environment = Environment(loader=FileSystemLoader(templates_path()), autoescape=True)
    template = environment.get_template("carme_batch_jobs.html")
    shown = " ".join(template.render(batch_jobs=jobs, base_url="/hub/", xsrf="x<").split())
    assert "long: 2 nodes, 4 × virtual a100: it is being submitted to Slurm." in shown
    assert "short: 2 nodes, 4 × virtual a100: it is being cancelled." in shown
    assert shown.count("<dialog") == shown.count("data-carme-dialog=") == 1
    assert f'action="/hub/carme/batch-jobs/{waits.id}/cancel"' in shown
    assert "Its run does not start." in shown
    assert "Open a session" not in shown, "it has no node yet"
    assert template.render(batch_jobs=[]).strip() == ""


async def test_one_that_runs_has_a_link_to_the_form_with_its_node(part: Part, session: Session) -> None:
    job = (await opened(part, session)).replace(state=SessionState.RUNNING)
    running = Job(7, job.job_name, "alice", "RUNNING", Phase.ACTIVE, start=5.0, nodes=("n2", "n3"))
    part.watcher.latest = Snapshot(0, 0, {7: running})
    one = as_shown(part, job, virtual=False)  # type: ignore[arg-type]
    environment = Environment(loader=FileSystemLoader(templates_path()), autoescape=True)
    template = environment.get_template("carme_batch_jobs.html")
    server = SimpleNamespace(active=False)
    shown = template.render(batch_jobs=[one], base_url="/hub/", xsrf="x", default_server=server)
    href = 'href="/hub/spawn?opt-profile=gpu&amp;opt-image=default&amp;opt-account=physics&amp;opt-node=n2"'
    assert href in shown
    server.active = True
    shown = template.render(batch_jobs=[one], base_url="/hub/", xsrf="x", default_server=server)
    assert "opt-node" not in shown, "the form cannot be opened while that server runs"
    await part.registry.request_cancel(job.id, CANCELLED)
    leaving = job.replace(cancel_wanted=5.0)
    assert as_shown(part, leaving, virtual=False).beside == {}  # type: ignore[arg-type]
