"""The home page says of a session what it is, uses and costs; of one that ended, how and what it used."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from affected_parts import ID, session
from booked_parts import HOUR, NOW
from home_page_parts import TIME, Server, page, user

from carme_hub.activity.idle_watch import IdleSession
from carme_hub.domain.activity.idle import IdleState
from carme_hub.domain.activity.minutes import GpuMinute, GpuTotal, Minute, Total
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import Refused
from carme_hub.spawners.home.cards import Card, StoredUse, again, cards, ended_cards, profile_names
from carme_hub.store.activity import JobUse


def hub(*sessions: Session, job: Job | None = None, admission: Any = None) -> Any:
    jobs = {job.id: job} if job is not None else {}
    return SimpleNamespace(
        registry=SimpleNamespace(
            open_of=lambda _user, name: tuple(each for each in sessions if each.server_name == name),
            current=lambda id: next((each for each in sessions if each.id == id), None),
        ),
        watcher=SimpleNamespace(latest=Snapshot(0, 0, jobs), health=SimpleNamespace(ok=True, error="")),
        admission=admission,
        idle=None,
    )


def job(**changes: Any) -> Job:
    found = Job(1, f"carme-{ID}", "sam", "RUNNING", Phase.ACTIVE, start=NOW - HOUR, time_limit=240)
    return replace(found, **changes)


def card(hub: Any, server: Server | None = None, stored: StoredUse | None = None) -> Card:
    [found] = cards(hub, user(server or Server()), stored or StoredUse(), NOW)
    return found


def test_a_running_session_says_where_it_runs_and_what_its_gpu_time_is() -> None:
    found = card(hub(session(node="n1"), job=job()))
    assert (found.state, found.label, found.url, found.stops) == ("running", "Running", "/user/sam/", True)
    assert found.said.startswith("It has been running on n1 since ")
    assert dict(found.facts) == {
        **{"Profile": "Big GPUs", "Image": "base", "GPUs": "1 × a100", "Account": "teaching", "Slurm job": "1"}
    }
    known = card(
        hub(session(node="n1", request=replace(session().request, image_digest="sha256:" + "1f" * 32)), job=job())
    )
    assert dict(known.facts)["Image digest"] == "sha256:1f1f1f1f1f1f…"
    assert found.spent == "1 GPU-hour used so far; until the end of its time at most 3 GPU-hours more."
    assert found.time == TIME
    assert [(each.minutes, each.said, each.costs) for each in found.more] == [
        (30, "30 min", "0.5 GPU-hours"),
        (120, "2 h", "2 GPU-hours"),
    ]


def test_gpu_time_has_the_price_of_the_ledger_and_virtual_gpus_are_called_so() -> None:
    def priced(factor: Any) -> Any:
        return SimpleNamespace(ledger=SimpleNamespace(context=SimpleNamespace(factor=factor)))

    found = card(hub(session(node="n1"), job=job(), admission=priced(lambda *_: 2500)), Server(virtual=True))
    assert found.spent.startswith("2.5 virtual GPU-hours used so far")
    assert dict(found.facts)["GPUs"] == "1 × virtual a100"
    assert [each.costs for each in found.more] == ["1.25 virtual GPU-hours", "5 virtual GPU-hours"]

    def unknown(*_: Any) -> int:
        raise Refused("not read yet")

    not_read = card(hub(session(node="n1"), job=job(), admission=priced(unknown)))
    assert (not_read.spent, [each.costs for each in not_read.more]) == ("", ["", ""])
    without = session(node="n1", request=replace(session().request, gpus=Gpus()))
    assert card(hub(without, job=job())).spent == ""


@pytest.mark.parametrize(
    ("server", "row", "state", "said"),
    [
        ({"pending": "spawn", "ready": False}, {"state": SessionState.SUBMITTED}, "starting", "Its start has begun."),
        ({"pending": "stop"}, {}, "stopping", "It is being stopped."),
        ({}, {"cancel_wanted": 1.0}, "stopping", "It is being stopped."),
        ({"uncertainty": "Slurm is silent."}, {"node": "n1"}, "unknown", "Slurm is silent. The hub ends nothing"),
    ],
)
def test_other_states_are_said_as_they_are(server: dict[str, Any], row: dict[str, Any], state: str, said: str) -> None:
    found = card(hub(session(**row)), Server(**server))
    assert found.state == state
    assert found.said.startswith(said)
    assert found.stops == (state == "unknown")
    assert bool(found.progress) == (state == "starting")
    assert not (found.time and state == "stopping")


def test_a_training_is_on_the_card_with_the_pages_that_show_it() -> None:
    files = ("Files", "/user/sam/carme/files")
    row = {
        **{"name": "resnet", "state": "running", "label": "Running", "session": ID, "submitted": False},
        **{"progress": [40, 100], "scalars": {"loss": 0.5}},
    }
    running = hub(session(node="n1"), job=job())
    found = card(running, stored=StoredUse(runs=[row]))
    assert [(run.name, run.said) for run in found.runs] == [("resnet", "running, 40 of 100, loss 0.5")]
    assert found.links == (files, ("Runs", "/user/sam/carme/runs.html"), ("TensorBoard", "/user/sam/tensorboard/"))
    without = card(running, stored=StoredUse(runs=[{**row, "scalars": {}}]))
    assert [name for name, _ in without.links] == ["Files", "Runs"]
    assert card(running).links == (files,)
    starting = card(running, Server(ready=False, pending="spawn"), StoredUse(runs=[row]))
    assert starting.links == ()


def test_a_job_that_waits_says_why() -> None:
    waits = job(state="PENDING", phase=Phase.WAITING, reason="Resources", start=0.0)
    found = card(hub(session(state=SessionState.SUBMITTED), job=waits), Server(pending="spawn", ready=False))
    assert found.state == "starting"
    assert "GPU" in found.said or "free" in found.said or "wait" in found.said.lower(), found.said


def test_a_server_whose_session_has_no_row_yet_is_starting() -> None:
    found = card(hub(), Server(pending="spawn", ready=False))
    assert (found.state, found.facts, found.stops) == ("starting", (), False)


def test_what_it_uses_is_there_or_it_is_said_that_it_comes() -> None:
    about = {"memory_limit": 4096, "cpus": 2, "gpus": [{"uuid": "a", "name": "A100", "memory": 40960}]}
    use = JobUse(ID, "n1", int(NOW) - 60, about, Total())
    minutes = {ID: {"n1": (Minute(int(NOW) - 120, 60, 50.0, 1024, gpus=(GpuMinute(80.0, 90, 4096),)),)}}
    running = hub(session(node="n1"), job=job())
    found = card(running, stored=StoredUse(True, {ID: [use]}, minutes))
    assert found.use is not None
    assert (found.use.rows[0].value, found.note) == ("80 %, 4 GiB of 40 GiB", "")
    assert card(running, stored=StoredUse(True)).note == "What it uses is shown after its first two minutes."
    assert card(running, stored=StoredUse()).note == "", "this hub measures nothing"


@pytest.mark.parametrize(
    ("action", "left", "idle", "warned", "clicks"),
    [
        ("stop", 3000, "It is stopped at ", False, 2),
        ("stop", 900, "It is stopped at ", True, 2),
        ("tell", 900, "It has been idle since ", False, 0),
    ],
)
def test_an_idle_session_says_since_when_and_what_follows(
    action: str, left: int, idle: str, warned: bool, clicks: int
) -> None:
    state = IdleState("idle", NOW - 600, NOW + left)
    found = IdleSession(IdleRule(Action(action)), state, 2)
    parts = hub(session(node="n1"), job=job())
    parts.idle = SimpleNamespace(states={ID: found})
    shown = card(parts)
    assert idle in shown.idle
    assert (shown.warned, shown.clicks) == (warned, clicks)
    parts.idle.states[ID] = replace(found, ending=True)
    assert card(parts).idle.endswith("It is being put in order now, and then stopped.")
    parts.idle.states[ID] = replace(found, state=IdleState("active"))
    assert card(parts).idle == ""
    assert card(hub(session(node="n1"), job=job())).idle == "", "nobody watches"


def test_the_default_server_comes_first_and_what_does_not_run_has_no_card() -> None:
    servers = [Server(name="b"), Server(name=""), Server(name="a", active=False)]
    found = cards(hub(), user(*servers), StoredUse(), NOW)
    assert [each.title for each in found] == ["Your server", "Server “b”"]


def test_an_ended_session_says_how_it_ended_and_what_it_used() -> None:
    ended = session(
        **{"state": SessionState.ENDED, "started": NOW - 2 * HOUR, "ended": NOW - HOUR, "end_reason": "Stopped."},
        request=replace(session().request, gpus=Gpus("a100", 4)),
    )
    gpu, idle = GpuTotal(80 * 3600, 3600, 95, 20_000), GpuTotal(0, 3600, 0, 10)
    use = JobUse(ID, "n1", int(NOW - HOUR), {}, Total(3600, memory=2000, gpus=(gpu, idle, idle, idle)))
    earlier = ended.replace(id="other", ended=NOW - 3 * HOUR, end_reason="A node failed.", started=0.0)
    first, second = ended_cards(
        hub(), [earlier, ended], {"gpu": "Big GPUs"}, StoredUse(True, {ID: [use]}), NOW, virtual=False
    )
    assert (first.ran, first.reason, first.suggestion) == ("1 h", "Stopped.", "Ask for 1 GPU.")
    assert first.used.startswith("1 of 4 GPUs was used, at 80 % on average.")
    assert dict(first.facts)["Profile"] == "Big GPUs"
    assert (second.ran, second.reason, second.used, second.suggestion) == ("", "A node failed.", "", "")


def test_a_link_fills_in_the_form_like_the_session() -> None:
    request = replace(session().request, working_folder="work", fields={"dataset": "imagenet"})
    assert again(request) == {
        **{"opt-profile": "gpu", "opt-image": "base", "opt-account": "teaching", "opt-gpu_type": "a100"},
        **{"opt-gpus": "1", "opt-cpus": "2", "opt-memory_gib": "4", "opt-time_minutes": "240"},
        **{"opt-working_folder": "work", "opt-dataset": "imagenet"},
    }


def test_profiles_that_depend_on_the_user_have_their_slug_for_a_name() -> None:
    assert profile_names(Server(profile_list=lambda _spawner: [])) == {}


def test_the_page_escapes_what_users_and_slurm_say() -> None:
    row = session(node="n1", server_name="<b>")
    shown = page(cards=cards(hub(row), user(Server(name="<b>", uncertainty="<i>")), StoredUse(), NOW), user=user())
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert 'action="/hub/carme/sessions/' in shown
    assert 'value="x&lt;"' in shown


def test_an_ended_session_is_started_again_only_where_its_server_does_not_run() -> None:
    ended = session(state=SessionState.ENDED, ended=NOW - 60, end_reason="Stopped.")
    found = ended_cards(hub(), [ended], {}, StoredUse(), NOW, virtual=False)
    link = f"/hub/spawn/sam?{urlencode(again(ended.request)).replace('&', '&amp;')}"
    assert link in page(ended=found, user=user())
    assert "Start it again" not in page(ended=found, user=user(), active_servers={""})
