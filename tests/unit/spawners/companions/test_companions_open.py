"""A companion is opened in the order of a session: hold, row, job; and never twice, never one too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_hub import NODES, PROFILES
from test_companions_script import SITE
from test_job_script import ALICE, IMAGE
from tornado import web

from carme_hub.domain.cluster.jobs import Job, JobSpec, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.companions import CompanionRequest, NoCompanion
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import QuotaExceeded, SlurmRejected, SlurmUnreachable
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.spawners.companions import companions
from carme_hub.spawners.companions.companions import GIVEN_BACK, KeyUsed, give_back, open_companion, quote
from carme_hub.spawners.companions.descriptions import listed
from carme_hub.spawners.form.cost import Cost, RemainingBudget
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.handlers.companions import companion_request
from carme_hub.spawners.staging.reports import Stagings
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

PARENT = str(uuid.uuid4())
REQUEST = Request("gpu", "default", Gpus("a100", 1), cpus=2, memory_mib=4096, time_limit=60, account="physics")
ONE, TWO = CompanionRequest(gpus=1), CompanionRequest(nodes=2, gpus=4, name="run1")


class Slurm:
    """Takes jobs, or does what the test wants in place of that."""

    def __init__(self) -> None:
        self.specs: list[JobSpec] = []
        self.error: Exception | None = None
        self.silent = False

    async def submit(self, spec: JobSpec) -> int:
        if self.silent:
            await asyncio.sleep(3600)
        if self.error is not None:
            raise self.error
        self.specs.append(spec)
        return 100 + len(self.specs)


class Part:
    """What all spawners of the hub share, as far as companions go."""

    def __init__(self, book: SessionRegistry) -> None:
        self.registry, self.client, self.log = book, Slurm(), logging.getLogger("test")
        self.admission, self.slots, self.reporter_tokens, self.activity = None, None, None, None
        self.images = self.folders = None
        self.stagings = Stagings(book._store._engine, "lab")
        self.associations = SimpleNamespace(known=True)
        self.done: list[str] = []
        self.refuses = ""
        now = time.time()
        self.job = Job(1, f"carme-{PARENT}", "alice", "RUNNING", Phase.ACTIVE, start=now - 600, time_limit=60)
        self.watcher = SimpleNamespace(latest=Snapshot(0, 0, {}), health=SimpleNamespace(ok=True, error=""))
        self.reconciler = SimpleNamespace(
            verdict=lambda _id: SimpleNamespace(job=self.job), submitting=self._held, cancel=self._cancel
        )

    @contextlib.contextmanager
    def _held(self, id: str) -> Iterator[None]:
        yield

    async def _cancel(self, id: str, why: str) -> None:
        await self.registry.request_cancel(id, why)

    async def admit(self, user: Any, session: str, request: Request, say: Any, instead_of: str = "") -> Request:
        self.done.append("hold")
        self.instead_of = instead_of
        await asyncio.sleep(0.01)
        if self.refuses:
            raise QuotaExceeded(self.refuses)
        assert self.registry.current(session) is None  # held before it is written
        say(4, "That is much.")
        return replace(request, qos="normal")

    async def cost(self, user: Any, request: Request) -> tuple[Cost | None, dict[str, RemainingBudget]]:
        self.done.append("cost")
        return Cost("Costs up to 2 GPU-hours.", "ok", "physics", 7_200_500, 9), {
            "physics": RemainingBudget("8 h left", 8)
        }

    async def release_hold(self, id: str) -> None:
        self.done.append("release")


class Spawner:
    """Alice's."""

    max_companions, companion_nodes, virtual, internal_ssl = 2, 4, False, False
    user = SimpleNamespace(name="alice")

    def __init__(self) -> None:
        self.profiles = tuple(p for p in PROFILES if not p.groups)

    async def offer(self) -> Offer:
        return Offer(self.profiles, ("physics",), {"default": ""}, cluster=Cluster(NODES, seen=time.time()))

    def site_images(self) -> tuple[Any, ...]:
        return (IMAGE,)

    def owner(self) -> Any:
        return ALICE

    def callback_url(self, session: str) -> str:
        return f"http://hub/api/carme/sessions/{session}/port"

    def site(self, home: str = "") -> Any:
        return SITE


@pytest.fixture
def book(tmp_path: Path) -> SessionRegistry:
    return SessionRegistry(SessionStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()), "lab")


@pytest.fixture
def part(book: SessionRegistry) -> Part:
    return Part(book)


@pytest.fixture
async def session(book: SessionRegistry) -> Session:
    _, nonce = await book.intend(PARENT, "alice", "", REQUEST, token_id=7)
    return await book.prove(PARENT, nonce, 5000, "n1")


async def test_it_is_held_then_written_then_submitted(part: Any, session: Session) -> None:
    opened, warnings = await open_companion(part, Spawner(), session, TWO)
    assert part.done == ["hold"]
    assert warnings == ("That is much.",)
    assert (opened.parent, opened.user, opened.server_name, opened.state) == (
        PARENT,
        "alice",
        "",
        SessionState.SUBMITTED,
    )
    assert opened.token_id == 0
    [spec] = part.client.specs
    assert (spec.nodes, spec.gpus, spec.qos, spec.account) == (2, Gpus("a100", 4), "normal", "physics")
    assert 49 <= spec.time_limit <= 50  # what is left of its session
    [shown] = await listed(part, session)
    assert (shown["state"], shown["shown"]) == ("waiting", "2 nodes more for run1, 4 × a100")


async def test_one_that_copies_data_is_listed_and_waits_until_its_first_node_has_it(
    part: Any, session: Session
) -> None:
    stage = {"in": [{"source": "s3:b/x", "target": "x"}], "out": [{"source": "run", "target": "s3:b/r"}]}
    staged = replace(session, request=replace(REQUEST, stage={**stage, "scratch_gib": 5}))
    opened, _ = await open_companion(part, Spawner(), staged, replace(TWO, stage=True))
    [spec] = part.client.specs
    report = json.loads(spec.data)["stage"]["report"]
    assert report["url"] == f"http://hub/api/carme/sessions/{opened.id}/stage"
    known = await part.stagings.get(opened.id)
    assert (known.user, known.stage["run"]) == ("alice", "run1")
    job = Job(9, f"carme-{opened.id}", "alice", "RUNNING", Phase.ACTIVE, start=time.time() - 60, time_limit=60)
    part.watcher.latest = Snapshot(0, 0, {9: job})
    await part.registry.mark_running(opened.id, "n1")
    [shown] = await listed(part, session)
    assert shown["state"] == "running", "nothing is known of copies"
    moving = {"way": "in", "state": "moving", "bytes": 1 << 30, "total": 4 << 30}
    await part.stagings.report(opened.id, report["nonce"], moving, "n1")
    [shown] = await listed(part, session)
    assert (shown["state"], shown["said"]) == ("waiting", "Copying data to the node: 1.0 GiB of 4.0 GiB.")
    await part.stagings.report(opened.id, report["nonce"], {"way": "in", "state": "done"}, "n1")
    [shown] = await listed(part, session)
    assert shown["state"] == "running"


async def test_with_a_key_it_is_opened_once_and_the_key_is_good_for_nothing_else(part: Any, session: Session) -> None:
    found = await asyncio.gather(*(open_companion(part, Spawner(), session, TWO, "k1") for _ in range(5)))
    assert len({opened.id for opened, _ in found}) == 1
    assert len(part.client.specs) == 1
    with pytest.raises(KeyUsed):
        await open_companion(part, Spawner(), session, ONE, "k1")
    other, _ = await open_companion(part, Spawner(), session, ONE, "k2")
    assert other.id != found[0][0].id


async def test_two_at_once_are_never_one_too_many(part: Any, session: Session) -> None:
    spawner = Spawner()
    asked = [open_companion(part, spawner, session, ONE) for _ in range(6)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, NoCompanion) for each in found) == 4
    assert len(part.registry.companions_of(PARENT)) == 2


async def test_one_that_was_given_back_is_replaced_and_counts_no_more(part: Any, session: Session) -> None:
    spawner = Spawner()
    first, second = [(await open_companion(part, spawner, session, ONE))[0] for _ in range(2)]
    wanted = replace(ONE, replaces=first.id)
    with pytest.raises(NoCompanion, match="2 companions at most"):
        await open_companion(part, spawner, session, wanted)  # it runs still
    await give_back(part, session, first.id)
    await open_companion(part, spawner, session, wanted)
    assert part.instead_of == first.id
    for each in (first, second):
        await give_back(part, session, each.id)
        await part.registry.close(each.id, GIVEN_BACK)
    other = await part.registry.intend(str(uuid.uuid4()), "bob", "", REQUEST, parent=str(uuid.uuid4()))
    await open_companion(part, spawner, session, replace(ONE, replaces=other[0].id))
    assert part.instead_of == "", "nobody's hold counts less for that of another user"


async def test_what_the_policy_or_slurm_refuses_leaves_nothing(part: Any, session: Session) -> None:
    part.refuses = "No."
    with pytest.raises(QuotaExceeded):
        await open_companion(part, Spawner(), session, ONE)
    assert part.registry.companions_of(PARENT) == ()
    part.refuses, part.client.error = "", SlurmRejected("Invalid partition name specified")
    with pytest.raises(NoCompanion, match="Slurm refused the job") as refused:
        await open_companion(part, Spawner(), session, ONE, "k1")
    assert refused.value.reason == "slurm-rejected"
    assert part.done[-1] == "release"
    assert part.registry.companions_of(PARENT) == ()
    again, _ = await open_companion(part, Spawner(), session, ONE, "k1")  # the same answer, and no second job
    assert again.state is SessionState.ENDED
    assert part.client.specs == []


async def test_while_slurm_is_silent_it_waits_and_is_listed(
    part: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "SUBMIT_WAIT", 0.05)
    part.client.silent = True
    opened, _ = await open_companion(part, Spawner(), session, ONE)
    assert opened.state is SessionState.INTENDED
    [shown] = await listed(part, session)
    assert (shown["state"], shown["said"]) == ("waiting", "It is being submitted to Slurm.")
    part.watcher.health = SimpleNamespace(ok=False, error="time-out")
    [shown] = await listed(part, session)
    assert "Slurm does not answer (time-out)" in str(shown["said"])
    for task in set(companions._submitting):
        task.cancel()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": SessionState.SUBMITTED}, "Only a running session"),
        ({"cancel_wanted": 5.0}, "Only a running session"),
        ({"parent": "x"}, "A companion cannot have companions"),
        ({"request": replace(REQUEST, profile="gone")}, "no longer offered"),
    ],
)
async def test_only_a_session_that_runs_gets_one(
    part: Any, session: Session, change: dict[str, Any], words: str
) -> None:
    session = session.replace(**change)
    with pytest.raises(NoCompanion, match=words):
        await open_companion(part, Spawner(), session, ONE)
    said = await quote(part, Spawner(), session, ONE)
    assert not said.allowed
    assert words in said.message
    assert part.done == []


async def test_a_quote_says_cost_and_start_and_writes_nothing(part: Any, session: Session) -> None:
    said = (await quote(part, Spawner(), session, TWO)).as_json()
    assert (said["allowed"], said["gpu_seconds"], said["left"]) == (True, 7201, "8 h left")
    assert said["message"] == "Costs up to 2 GPU-hours."
    assert (said["companions_left"], said["companions_most"]) == (Spawner().max_companions,) * 2
    assert "2 nodes are free with 2 × a100" in str(said["said"])
    assert part.done == ["cost"]
    assert part.registry.companions_of(PARENT) == ()
    too_many = await quote(part, Spawner(), session, CompanionRequest(nodes=3, gpus=3))
    assert "Only 2 nodes" in too_many.message
    assert said["gpus_of_one_node"] == too_many.as_json()["gpus_of_one_node"] == (1, 2, 3, 4)
    await open_companion(part, Spawner(), session, ONE)
    assert (await quote(part, Spawner(), session, ONE)).as_json()["companions_left"] == Spawner().max_companions - 1


async def test_it_is_given_back_by_its_session_alone(part: Any, session: Session) -> None:
    opened, _ = await open_companion(part, Spawner(), session, ONE)
    other = session.replace(id=str(uuid.uuid4()))
    for wrong in (str(uuid.uuid4()), PARENT):
        with pytest.raises(NoCompanion):
            await give_back(part, session, wrong)
    with pytest.raises(NoCompanion):
        await give_back(part, other, opened.id)
    left = await give_back(part, session, opened.id)
    assert (left.cancel_reason, bool(left.cancel_wanted)) == (GIVEN_BACK, True)
    assert [each["state"] for each in await listed(part, session)] == ["ending"]
    await part.registry.close(opened.id, GIVEN_BACK)
    assert (await give_back(part, session, opened.id)).state is SessionState.ENDED  # once more does no harm
    assert [each["state"] for each in await listed(part, session)] == ["ended"]


async def test_a_time_that_slurm_has_not_said_is_not_guessed(part: Any, session: Session) -> None:
    part.job = None
    assert (
        "Slurm does not show this session's job as running yet" in (await quote(part, Spawner(), session, ONE)).message
    )
    part.client.error = SlurmUnreachable("?")
    with pytest.raises(NoCompanion, match=r"does not show this session.s job as running yet"):
        await open_companion(part, Spawner(), session, ONE)


def test_numbers_are_whole_ones_and_nothing_is_guessed() -> None:
    assert companion_request({"nodes": "2", "gpus": 4, "name": " run 1 "}) == CompanionRequest(
        nodes=2, gpus=4, name="run 1"
    )
    assert companion_request({}) == CompanionRequest()
    assert companion_request({"exclude": "gpu-1.site,n2"}) == CompanionRequest(exclude="gpu-1.site,n2")


@pytest.mark.parametrize(
    "said",
    [
        {"gpus": True},
        {"gpus": 1.0},
        {"gpus": "1e1"},
        {"gpus": "²"},
        {"gpus": -1},
        {"gpus": None},
        {"gpus": 10**9},
        {"nodes": " 2"},
        {"gpu": 1},
        {"qos": "high"},
        {"name": "<b>"},
        {"name": "a\nb"},
        {"name": 7},
        {"name": "x" * 65},
        {"exclude": "n[1-2]"},
        {"exclude": "n1,"},
        {"exclude": "--uid=0"},
        {"exclude": ["n1"]},
    ],
)
def test_what_is_not_understood_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(web.HTTPError) as refused:
        companion_request(said)
    assert refused.value.status_code == 400
