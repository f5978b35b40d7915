"""Nodes are updated in turn; what fails stays drained; it stops by itself, and goes on after any crash."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from forged_update_site import Site

from carme_hub.cli.hub_client import HubRefused, HubUnreachable
from carme_hub.cli.nodes import node_steps
from carme_hub.cli.nodes.hub_nodes import NodeNow
from carme_hub.domain.nodes import progress as steps
from carme_hub.domain.nodes.progress import Stage


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, "n1", "n2", "n3", "n4")


class Clock:
    """The time, which a test moves."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


async def test_all_nodes_are_updated_never_more_at_a_time_than_the_plan_allows(site: Site) -> None:
    assert set((await site.run(site.plan(at_once=2))).values()) == {"done"}
    assert sorted(site.ran) == ["n1", "n2", "n3", "n4"]
    assert site.hub.most_drained == 2
    assert [act[0] for act in site.hub.acts if act[1] == "n1"] == ["drain", "note", "note", "note", "resume"]
    assert not any(node.drained for node in site.hub.nodes.values())
    assert site.hub.done("drain")[0] == ("n1", "carme-update: Kernel")
    notes = site.hub.done("note")
    assert notes[0][1].startswith("Started: ")
    assert all(note[2] == "" for note in notes)
    output = next((site.store.path / "n1").glob("command-*/output")).read_text()
    assert output == "updating n1\n"


async def test_who_is_on_a_node_is_told_and_the_node_waits_until_they_have_gone(site: Site) -> None:
    site.hub.occupy("n1", "alice", "bob", until_look=4)
    plan = site.plan(groups=[{"nodes": "n1"}], reservation="2h")
    assert await site.run(plan) == {"n1": "done"}
    [(_, text)] = site.hub.done("tell")
    assert "Node n1 is being updated: Kernel." in text
    assert "it starts on another node" in text
    assert site.hub.done("reserve") == [("n1", "7200")]
    kinds = [act[0] for act in site.hub.acts]
    assert kinds == ["drain", "tell", "reserve", "note", "note", "note", "withdraw", "unreserve", "resume"]


@pytest.mark.parametrize(
    ("then", "stage", "ran"), [("resume", "left", False), ("stop-sessions", "done", True), ("update", "done", True)]
)
async def test_at_the_deadline_the_plan_says_what_happens(site: Site, then: str, stage: str, ran: bool) -> None:
    site.hub.occupy("n1", "alice")
    clock = Clock()
    plan = site.plan(groups=[{"nodes": "n1"}], at_deadline=then, text="Go from {node} until {until}!")
    running = asyncio.create_task(site.run(plan, clock=clock))
    await asyncio.sleep(0.2)
    assert site.hub.done("tell")[0][1].startswith("Go from n1 until ")
    assert (site.ran, site.hub.done("stop"), running.done()) == ([], [], False)
    clock.now += 8 * 3600 + 1
    assert await running == {"n1": stage}
    assert (bool(site.ran), bool(site.hub.done("stop"))) == (ran, then == "stop-sessions")
    assert not site.hub.nodes["n1"].drained
    if then == "resume":
        assert site.store.read().nodes["n1"].words == "1 job was still on it at the deadline (alice)"  # type: ignore[union-attr]


async def test_a_node_whose_command_fails_stays_drained_with_the_reason_and_it_stops(site: Site) -> None:
    for node in ("n1", "n2"):
        (site.marks / node).touch()
    found = await site.run(site.plan(stop_after=1))
    assert found == {"n1": "failed", "n2": "failed", "n3": "waiting", "n4": "waiting"}
    words = "the site's command ended with 3: updating n1"
    assert site.hub.nodes["n1"].why == f"Update failed: Kernel: {words} (ada)"
    assert ("n1", "The site's command", words) in site.hub.done("note")
    assert any("2 nodes have failed, and the plan allows 1." in line for line in site.said)
    progress = site.store.read()
    assert progress is not None
    (site.marks / "n1").unlink()
    site.said.clear()
    assert (await site.run(site.plan(stop_after=1), steps.retried(progress, 1.0)))["n1"] == "done"
    assert site.hub.nodes["n2"].drained


async def test_where_it_stops_nodes_that_were_only_drained_are_resumed_and_begun_ones_finished(site: Site) -> None:
    (site.marks / "n1").touch()
    site.hub.occupy("n2", "alice")
    found = await site.run(site.plan(at_once=3))
    assert found == {"n1": "failed", "n2": "waiting", "n3": "done", "n4": found["n4"]}
    assert not site.hub.nodes["n2"].drained
    assert site.hub.done("withdraw"), "alice need not go any more"
    assert ("n2", "Kernel: the update ends before this node") in site.hub.done("resume")


async def test_a_node_must_become_well_within_the_time_of_its_check(site: Site) -> None:
    seen = site.folder / "seen"
    second = f"import pathlib, sys; p = pathlib.Path({str(seen)!r}); sys.exit(0 if p.exists() else p.touch() or 1)"
    assert await site.run(site.plan(groups=[{"nodes": "n1"}], check=site.check(second))) == {"n1": "done"}


async def test_a_node_that_is_not_well_stays_drained(site: Site) -> None:
    never = site.check("print('GPU 3 is lost'); raise SystemExit(1)", within="0 s")
    assert await site.run(site.plan(groups=[{"nodes": "n2"}], check=never)) == {"n2": "failed"}
    assert site.hub.nodes["n2"].why == "Update failed: Kernel: its health check ended with 1: GPU 3 is lost (ada)"


async def test_a_node_that_restarted_is_down_until_it_is_resumed_and_must_not_be_down_then(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_steps, "SETTLE_SECONDS", 0.1)
    for name in ("n1", "n2"):
        site.hub.nodes[name] = replace(site.hub.nodes[name], state=("down",))
    resume = site.hub.resume

    async def stays_down(name: str, reason: str) -> None:
        await resume(name, reason)
        if name == "n2":
            site.hub.nodes[name] = replace(site.hub.nodes[name], state=("down",))

    site.hub.resume = stays_down  # type: ignore[method-assign]
    plan = site.plan(groups=[{"nodes": "n[1-2]"}], check=site.check("pass"))
    assert await site.run(plan) == {"n1": "done", "n2": "failed"}
    assert "Slurm shows it as down after it was resumed" in site.hub.nodes["n2"].why


async def test_a_hub_that_shows_a_node_as_it_was_a_moment_ago_is_believed_later(site: Site) -> None:
    node, before = site.hub.node, site.hub.nodes["n1"]
    stale = {"drain": 3, "resume": 3}

    async def late(name: str) -> NodeNow | None:
        found = await node(name)
        for act in ("resume", "drain"):
            if site.hub.done(act) and stale[act]:
                stale[act] -= 1
                return before if act == "drain" else replace(before, drained=True, why="Update: Kernel (ada)")
        return found

    site.hub.node = late  # type: ignore[method-assign]
    assert await site.run(site.plan(groups=[{"nodes": "n1"}])) == {"n1": "done"}
    assert [act[0] for act in site.hub.acts] == ["drain", "note", "note", "note", "resume"]


async def test_nodes_that_somebody_else_drained_or_resumed_are_left_to_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_steps, "SETTLE_SECONDS", 0.1)
    site.hub.nodes["n1"] = replace(site.hub.nodes["n1"], drained=True, why="A fan fails (bob)", state=("idle", "drain"))
    site.hub.occupy("n2", "alice")
    running = asyncio.create_task(site.run(site.plan(groups=[{"nodes": "n[1-2]"}])))
    await asyncio.sleep(0.2)
    site.hub.nodes["n2"] = replace(site.hub.nodes["n2"], drained=False, why="")
    assert await running == {"n1": "left", "n2": "left"}
    progress = site.store.read()
    assert progress is not None
    assert progress.nodes["n1"].words == "it was out of service already: A fan fails (bob)"
    assert progress.nodes["n2"].words == "somebody resumed it"
    assert (site.ran, site.hub.nodes["n1"].why) == ([], "A fan fails (bob)")


async def test_a_node_that_slurm_no_longer_has_is_not_said_to_be_updated(site: Site) -> None:
    plan = site.plan(groups=[{"nodes": "n1"}])
    node, site_nodes = site.hub.node, site.hub.nodes

    async def forgets(name: str) -> NodeNow | None:
        return None if "The node is well" in [words[1] for words in site.hub.done("note")] else await node(name)

    site.hub.node = forgets  # type: ignore[method-assign]
    assert await site.run(plan) == {"n1": "failed"}
    assert site_nodes["n1"].why == "Update failed: Kernel: Slurm has no such node any more (ada)"


async def test_a_hub_that_does_not_answer_is_waited_for_and_nothing_is_done_twice(site: Site) -> None:
    site.hub.occupy("n1", "alice", until_look=6)
    running = asyncio.create_task(site.run(site.plan(groups=[{"nodes": "n[1-2]"}], at_once=2)))
    await asyncio.sleep(0.05)
    site.hub.silent = 8
    assert set((await running).values()) == {"done"}
    assert any("The update goes on as soon as it answers." in line for line in site.said)
    assert "The hub answers again." in site.said
    assert sorted(site.ran) == ["n1", "n2"]
    assert len(site.hub.messages) == 1


async def test_a_token_that_is_refused_ends_it_and_no_node_is_to_blame(site: Site) -> None:
    site.hub.refuses["drain"] = HubRefused("forbidden", 403, {"error": "forbidden"})
    with pytest.raises(HubRefused):
        await site.run(site.plan())
    del site.hub.refuses["drain"]
    assert set((await site.run(site.plan())).values()) == {"done"}


async def test_a_refusal_of_slurm_is_the_failure_of_one_node(site: Site) -> None:
    site.hub.refuses["drain"] = HubRefused("Slurm refused: busy", 409, {"error": "slurm-rejected"})
    assert (await site.run(site.plan()))["n1"] == "failed"
    assert "and it is not drained: Slurm refused: busy" in site.store.read().nodes["n1"].words  # type: ignore[union-attr]


@pytest.mark.parametrize("at", range(1, 9))
async def test_killed_at_any_moment_it_goes_on_and_the_command_runs_once(site: Site, at: int) -> None:
    plan = site.plan(groups=[{"nodes": "n1"}])

    class Killed(BaseException):
        """The process ends here."""

    writes = 0
    update = site.update(plan)
    store = site.store.write

    def write(progress: object) -> None:
        nonlocal writes
        writes += 1
        store(progress)  # type: ignore[arg-type]
        if writes == at:
            raise Killed

    site.store.write = write  # type: ignore[method-assign]
    with contextlib.suppress(Killed):
        await update.run()
    site.store.write = store  # type: ignore[method-assign]
    assert await site.run(plan) == {"n1": "done"}
    assert site.ran == ["n1"]
    assert not site.hub.nodes["n1"].drained


async def test_a_command_whose_watcher_is_killed_goes_on_and_is_not_run_again(site: Site) -> None:
    slow = site.plan(groups=[{"nodes": "n1"}]).command.argv
    argv = [slow[0], "-c", "import time; time.sleep(1.5);" + slow[2], "{node}"]
    plan = site.plan(groups=[{"nodes": "n1"}], command={"argv": argv, "limit": "20 s"})
    watcher = asyncio.create_task(site.run(plan))
    while not list(site.store.path.glob("n1/command-*/lock")):
        await asyncio.sleep(0.02)
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    assert site.store.read().nodes["n1"].stage is Stage.UPDATING  # type: ignore[union-attr]
    assert await site.run(plan) == {"n1": "done"}
    assert site.ran == ["n1"]


async def test_an_aborted_update_resumes_what_was_only_drained(site: Site) -> None:
    site.hub.occupy("n1", "alice")
    running = asyncio.create_task(site.run(site.plan()))
    await asyncio.sleep(0.2)
    assert site.hub.nodes["n1"].drained
    site.store.abort()
    assert set((await running).values()) == {"waiting"}
    assert not site.hub.nodes["n1"].drained
    assert "The update ends: no other node begins, and what was only drained is resumed." in site.said


async def test_an_unreachable_hub_proves_nothing_of_a_reservation(site: Site) -> None:
    site.hub.occupy("n1", "alice", until_look=9)

    async def lost(*_: object, **__: object) -> str:
        raise HubUnreachable("no answer")

    reserve, site.hub.reserve = site.hub.reserve, lost  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(site.run(site.plan(groups=[{"nodes": "n1"}], reservation="1h")))
    await asyncio.sleep(0.1)
    site.hub.reserve = reserve  # type: ignore[method-assign]
    assert await running == {"n1": "done"}
    assert (site.hub.done("reserve"), site.hub.done("unreserve")) == ([("n1", "3600")], [("r-n1",)])
