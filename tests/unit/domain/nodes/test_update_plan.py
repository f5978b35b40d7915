"""The plan of a rolling update: what it may say, what it refuses, and which nodes may begin."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.domain.nodes import progress as steps
from carme_hub.domain.nodes.plan import Plan, parse_plan
from carme_hub.domain.nodes.progress import NodeProgress, Progress, Stage
from carme_hub.errors import ConfigError

NOW = 1_800_000_000.0
SMALL: dict[str, Any] = {
    "title": "New driver",
    "wait": "8h",
    "command": {"argv": ["ssh", "{node}", "update"]},
    "groups": [{"nodes": "n[1-8]"}],
}


def plan(**changes: Any) -> Plan:
    return parse_plan({**SMALL, **changes}, "Europe/Berlin")


def at(progress: Progress, **stages: Stage) -> Progress:
    for node, stage in stages.items():
        progress = progress.with_node(progress.nodes[node].to(stage, NOW))
    return progress


def test_what_is_left_out_has_a_careful_default() -> None:
    found = plan()
    assert (found.groups[0].at_once, found.stop_after, found.at_deadline, found.drained) == (1, 0, "resume", "skip")
    assert (found.command.limit, found.check, found.mail, found.reservation) == (3600, None, False, 0)
    assert found.command.of("n3") == ["ssh", "n3", "update"]
    assert found.deadline(NOW) == NOW + 8 * 3600


def test_the_earlier_deadline_counts() -> None:
    found = plan(until="2027-01-15T15:00:00", wait="2d")
    assert found.deadline(NOW) == found.until < NOW + 2 * 86400
    assert plan(until="2027-01-15T15:00:00", wait="10min").deadline(NOW) == NOW + 600
    assert plan(until="2020-01-01").deadline(NOW) == NOW, (
        "one that is over leaves no time, and is never before the drain"
    )


def test_a_share_is_of_each_group_and_one_node_at_least() -> None:
    groups = [{"nodes": "n[1-8]"}, {"nodes": ["m1", "m2"]}, {"nodes": "k[1-3]", "at_once": 9}]
    assert [group.at_once for group in plan(at_once="25 %", groups=groups).groups] == [2, 1, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "titel: unknown key. Did you mean title?"),
        ({"title": None}, "title: it is missing; every plan has title, groups and command."),
        ({"title": "x" * 81}, "title: give a text of at most 80 characters. It has 81 characters; 80 are allowed."),
        ({"wait": 8}, 'wait: give a time with its unit, such as "8h"'),
        ({"groups": []}, "groups: it has no group"),
        ({"groups": [{"nodes": "n[1-"}]}, "groups[0].nodes: give nodes as Slurm writes them"),
        ({"groups": [{"nodes": "n1; rm -rf /"}]}, "groups[0].nodes: give nodes as Slurm writes them"),
        ({"groups": [{"nodes": "--help"}]}, "groups[0].nodes: give nodes as Slurm writes them"),
        ({"groups": [{"nodes": ["n1", "n1"]}]}, "groups[0].nodes: n1 is there twice."),
        ({"groups": [{"nodes": "n1"}, {"nodes": "n[1-2]"}]}, "groups[1].nodes: n1 is in groups[0].nodes already."),
        ({"groups": [{"node": "n1"}]}, "groups[0].node: unknown key. Did you mean nodes?"),
        ({"groups": [{"name": "rack1"}]}, "groups[0]: it has no nodes"),
        ({"at_once": 0}, 'at_once: give a number of nodes from 1 on, or a share such as "25 %", not 0.'),
        ({"at_once": "150%"}, "at_once: give a number"),
        ({"stop_after": -1}, "stop_after: give a whole number from 0 on"),
        ({"at_deadline": "kill"}, "at_deadline: give one of resume, stop-sessions, update, not 'kill'."),
        ({"command": {"argv": "ssh {node}"}}, "command.argv: give a list"),
        ({"command": {"argv": ["ssh", 7, "{node}"]}}, "command.argv: each word is a text; put 7 in quotes."),
        ({"command": {"argv": ["update-all"]}}, "command.argv: no word has {node}"),
        ({"command": {"argv": ["x", "{node}"], "limit": "0 s"}}, "command.limit: it leaves no time."),
        ({"check": {"limit": "1 min"}}, "check: it has no argv"),
        ({"mail": "yes"}, "plan.mail: give true or false"),
    ],
)
def test_an_error_names_its_place_and_what_to_write(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(**changes)
    assert str(error.value).startswith(message), str(error.value)


def test_a_plan_without_a_deadline_is_refused() -> None:
    without = {name: value for name, value in SMALL.items() if name != "wait"}
    with pytest.raises(ConfigError, match="how long a node may take to get empty"):
        parse_plan(without, "UTC")


def test_groups_come_in_turn_and_never_more_nodes_than_they_allow() -> None:
    found = plan(at_once=2, groups=[{"nodes": "n[1-3]"}, {"nodes": "m[1-2]"}])
    progress = steps.begin(found, NOW)
    assert [one.node for one in steps.may_begin(found, progress)] == ["n1", "n2"]
    progress = at(progress, n1=Stage.DONE, n2=Stage.UPDATING)
    assert [one.node for one in steps.may_begin(found, progress)] == ["n3"]
    progress = at(progress, n2=Stage.LEFT, n3=Stage.RESUMING)
    assert steps.may_begin(found, progress) == [], "the next group waits for the last node of this one"
    assert [one.node for one in steps.may_begin(found, at(progress, n3=Stage.DONE))] == ["m1", "m2"]


def test_it_stops_when_more_fail_than_the_plan_allows() -> None:
    found = plan(at_once=2, stop_after=1)
    progress = at(steps.begin(found, NOW), n1=Stage.FAILED)
    assert not progress.is_stopped(found)
    progress = at(progress, n2=Stage.FAILED)
    assert progress.is_stopped(found)
    assert steps.may_begin(found, progress) == []
    gone_on = steps.accepted(progress)
    assert [one.node for one in steps.may_begin(found, gone_on)] == ["n3", "n4"]
    assert gone_on.nodes["n1"].stage is Stage.FAILED
    again = steps.retried(progress, NOW)
    assert [one.node for one in steps.may_begin(found, again)] == ["n1", "n2"]


def test_progress_is_kept_as_json_and_follows_a_changed_plan() -> None:
    progress = at(steps.begin(plan(), NOW), n1=Stage.DONE, n2=Stage.CHECKING)
    assert steps.from_json(steps.to_json(progress)) == progress
    longer = steps.continued(plan(groups=[{"nodes": "n[1-9]", "name": "rack"}]), progress)
    assert [longer.nodes[name].stage.value for name in ("n1", "n2", "n9")] == ["done", "checking", "waiting"]
    assert longer.nodes["n2"].group == "rack"
    with pytest.raises(ConfigError, match="n2: the update is there at the moment"):
        steps.continued(plan(groups=[{"nodes": "n[3-9]"}]), progress)
    with pytest.raises(ConfigError, match="not the progress of an update"):
        steps.from_json({"version": 2})


def test_a_summary_counts_by_stage() -> None:
    progress = at(steps.begin(plan(), NOW), n1=Stage.DONE, n2=Stage.FAILED)
    assert steps.summary(progress) == "8 nodes: 6 waiting, 1 done, 1 failed."
    assert [one.node for one in progress.of(Stage.FAILED)] == ["n2"]
    assert NodeProgress("n1", "g").stage is Stage.WAITING
