"""Acts are for the user's own jobs alone, are judged by the queue, and do not fight the hub about its sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from affected_parts import session
from forged_jobs import ARRAY, BOBS, ENDED, RUNS, TASK, WAITS, HubWithJobs, SlurmThatActs

from carme_hub.domain.cluster.own_jobs.acts import Act
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import SlurmRejected, SlurmUnreachable, StoreError
from carme_hub.spawners.jobs import acts
from carme_hub.spawners.jobs.acts import MOST_JOBS, NoSuchAct, Result, perform, targets_of


@pytest.fixture
def slurm() -> SlurmThatActs:
    return SlurmThatActs(RUNS, WAITS, TASK, ARRAY, BOBS, ENDED)


@pytest.fixture
def hub(slurm: SlurmThatActs, monkeypatch: pytest.MonkeyPatch) -> HubWithJobs:
    monkeypatch.setattr(acts, "LOOK_AGAIN", 0.01)
    return HubWithJobs(slurm)


async def nothing(_session: Session) -> str:
    return ""


async def act(hub: HubWithJobs, what: Act, *words: str, minutes: int = 0) -> list[Result]:
    return await perform(hub, "alice", what, targets_of(words), minutes=minutes, stop=nothing)  # type: ignore[arg-type]


async def test_each_job_is_told_in_words(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    held, running, others = await act(hub, Act.HOLD, "6", "5", "9")
    assert held.sentence == "6 later.sh is held: it waits until you release it."
    assert running.text == "runs already. Only a job that waits can be held."
    assert others.sentence == "9 has ended already, or is not yours."
    assert slurm.done == [("alice", "hold", "6")]


async def test_jobs_of_others_and_ended_jobs_are_left_alone_by_every_act(
    hub: HubWithJobs, slurm: SlurmThatActs
) -> None:
    for each in Act:
        found = await act(hub, each, "9", "10", "9_1", "8", "99", minutes=5)
        assert [result.text for result in found] == ["has ended already, or is not yours."] * 5
        assert not any(result.name for result in found), "a name would tell that there is such a job"
    assert slurm.done == []


async def test_an_array_is_acted_on_as_a_whole_or_by_tasks(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    [tasks] = await act(hub, Act.HOLD, "7_[3-5]")
    assert tasks.sentence == "7_[3-5] sweep.sh is held: it waits until you release it."
    [again] = await act(hub, Act.HOLD, "7_4")
    assert again.text == "is held already."
    [free] = await act(hub, Act.RELEASE, "7_[6-7]")
    assert free.text == "is not held.", "squeue shows them in one row with those that are"
    [whole] = await act(hub, Act.CANCEL, "7")
    assert whole.sentence == "7 sweep.sh is cancelled."
    assert slurm.done == [("alice", "hold", "7_[3-5]"), ("alice", "cancel", "7")]


async def test_what_slurm_did_not_do_is_not_said_to_be_done(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    slurm.jobs[6] = replace(WAITS, reason="JobHeldUser")
    slurm.stubborn = {"6": "Access/permission denied for job 6", "5": ""}
    [found] = await act(hub, Act.RELEASE, "6")
    assert (found.done, found.text) == (False, "is as it was: Slurm does not allow it to the owner of a job.")
    [found] = await act(hub, Act.CANCEL, "5")
    assert not found.done


async def test_refusals_and_silence_are_told_job_by_job(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    slurm.errors = {"5": SlurmRejected("sudo: a password is required"), "6": SlurmUnreachable("timed out")}
    refused, silent, done = await act(hub, Act.CANCEL, "5", "6", "7")
    assert "a password is required" in refused.text
    assert silent.text.startswith("may or may not be changed")
    assert done.done


async def test_while_slurm_is_silent_nothing_is_done_and_afterwards_nothing_is_claimed(
    hub: HubWithJobs, slurm: SlurmThatActs
) -> None:
    hub.fails_after = 0
    with pytest.raises(SlurmUnreachable):
        await act(hub, Act.CANCEL, "5")
    assert slurm.done == []
    hub.fails_after = 1
    [found] = await act(hub, Act.CANCEL, "5")
    assert (found.done, found.text.startswith("may or may not be changed")) == (False, True)


async def test_a_session_is_stopped_and_nothing_else_is_done_to_it(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    own = session(user="alice", server_name="lab")
    hub.sessions = (own,)
    slurm.jobs[12] = replace(RUNS, id=12, name=own.job_name)
    stopped: list[str] = []

    async def stop(one: Session) -> str:
        stopped.append(one.id)
        hub.sessions = ()
        return ""

    for what in (Act.HOLD, Act.RELEASE, Act.REQUEUE, Act.LIMIT):
        [found] = await act(hub, what, "12", minutes=1)
        assert "is a session of yours" in found.text
        assert "Stop it" in found.text
    [found] = await perform(hub, "alice", Act.CANCEL, targets_of(["12"]), stop=stop)  # type: ignore[arg-type]
    assert (found.sentence, stopped) == ("12 session lab is stopped.", [own.id])
    assert slurm.done == []


async def test_a_stop_that_did_not_happen_is_not_said_to_have(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    own = session(user="alice", server_name="lab")
    slurm.jobs[12] = replace(RUNS, id=12, name=own.job_name)

    afterwards = [own, own.replace(cancel_wanted=1.0)]

    async def stop(_one: Session) -> str:
        hub.sessions = (afterwards.pop(0),)
        return ""

    for words in ("could not be stopped.", "is being stopped."):
        hub.sessions = (own,)
        [found] = await perform(hub, "alice", Act.CANCEL, targets_of(["12"]), stop=stop)  # type: ignore[arg-type]
        assert words in found.text


async def test_a_database_that_is_away_hides_no_result_of_other_jobs(
    hub: HubWithJobs, slurm: SlurmThatActs, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = session(user="alice")
    more = session(id="c" * 36, user="alice", parent=own.id)
    hub.sessions = (own, more)
    slurm.jobs[13] = replace(WAITS, id=13, name=more.job_name)

    async def away(_id: str, _reason: str) -> None:
        raise StoreError("locked")

    monkeypatch.setattr(hub.reconciler, "cancel", away)
    given, cancelled = await act(hub, Act.CANCEL, "13", "5")
    assert "the database does not answer" in given.text
    assert cancelled.done


async def test_more_nodes_and_batch_jobs_are_ended_by_the_hub(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    own = session(user="alice")
    more = session(id="c" * 36, user="alice", parent=own.id)
    batch = session(id="b" * 36, user="alice", parent=own.id, request=replace(own.request, batch="net"), cluster="lab")
    hub.sessions = (own, more, batch)
    slurm.jobs |= {n: replace(WAITS, id=n, name=each.job_name) for n, each in ((13, more), (14, batch))}
    given, cancelled = await act(hub, Act.CANCEL, "13", "14")
    assert given.text == "is given back."
    assert cancelled.sentence == "14 batch job net is being cancelled."
    assert hub.ended == [more.id, batch.id]
    assert "nothing else" in (await act(hub, Act.HOLD, "13"))[0].text
    assert slurm.done == []


async def test_a_job_of_a_session_that_the_hub_lost_is_left_to_the_hub(hub: HubWithJobs, slurm: SlurmThatActs) -> None:
    slurm.jobs[15] = replace(RUNS, id=15, name="carme-0f9a")
    [found] = await act(hub, Act.CANCEL, "15")
    assert "The hub ends it by itself" in found.text
    assert slurm.done == []


def test_bad_requests_are_refused_with_what_a_job_is() -> None:
    with pytest.raises(NoSuchAct, match="“9;id” is no job"):
        targets_of(["5", "9;id"])
    with pytest.raises(NoSuchAct, match="at most 200"):
        targets_of([str(number) for number in range(1, MOST_JOBS + 2)])
    assert len(targets_of(["5", "5", " 5"])) == 1
