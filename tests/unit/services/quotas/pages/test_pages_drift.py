"""The page on the second fence says what Slurm's limits are, what the policy wants, and who has to write it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from forged_login import Site, running

from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.slurm_limits import MIRRORED
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.quotas.sacctmgr_argv import Entity, Target
from carme_hub.domain.quotas.slurm_limits import State
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.quotas.application import slurm_limits
from carme_hub.store.ledger.writes import Filter

POLICY = """quotas:
- {id: each, user: '*', concurrent_gpus: 2, time_limit: 24h}
- {id: grants, account: teaching, needs_grant: true}
"""
PAGE = "administration/drift"
#: The file that the service was started with, and what to type for it.
CONFIG, APPLY = "/srv/the lab/hub.py", "sudo carme-hub quotas mirror --apply --config '/srv/the lab/hub.py'"
ALICE: Target = (Entity.USER, "physics/alice")
QOS: Target = (Entity.QOS, "carme-teaching")
WRITTEN = {"user physics/alice GrpTRES/gres/gpu": "2"}


class LimitsInSlurm:
    """What sacctmgr says, and whether it answers."""

    def __init__(self) -> None:
        self.limits: dict[Target, Mapping[str, str]] = {
            ALICE: {"GrpTRES/gres/gpu": "2"},
            (Entity.ACCOUNT, "physics"): {},
            (Entity.ACCOUNT, "teaching"): {},
        }
        self.is_silent = False

    def __call__(self, *_args: Any, **_more: Any) -> LimitsInSlurm:
        return self

    async def state(self) -> State:
        if self.is_silent:
            raise SlurmUnreachable("sacctmgr: secret words")
        return State("lab", self.limits, frozenset({"gres/gpu", "gres/gpu:a100"}))

    async def apply(self, *_args: Any) -> None:
        raise AssertionError("a page writes nothing to Slurm")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> LimitsInSlurm:
    found = LimitsInSlurm()
    monkeypatch.setattr(slurm_limits, "LimitsWriter", found)
    return found


@pytest.fixture
async def site(slurm: LimitsInSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY) as found:
        found.service.prices = PriceList(found.service.settings)
        found.service.slurm = type("Slurm", (), {"commands": lambda _self: None})()
        found.service.config_path = CONFIG
        await found.ledger.add_note(MIRRORED, {"written": WRITTEN})
        yield found


def with_budget(slurm: LimitsInSlurm) -> None:
    slurm.limits[QOS] = {"Name": "yes", "Flags/NoDecay": "yes", "GrpTRESMins/gres/gpu": "0"}
    slurm.limits[Entity.ACCOUNT, "teaching"] = {"QOS": "carme-teaching", "DefaultQOS": "carme-teaching"}


async def test_what_takes_an_administrator_comes_as_commands(site: Site) -> None:
    page = await site.visitor("root").text(PAGE)
    assert "Drift: 5 are not written yet." in page
    assert "sacctmgr -i add qos carme-teaching" in page
    assert "QOS carme-teaching exists no yes" in page
    assert "1 that agrees with the policy" in page
    assert "each : Limits of single sessions" in page


async def test_limits_that_are_as_the_policy_wants_them_are_no_drift(site: Site, slurm: LimitsInSlurm) -> None:
    with_budget(slurm)
    page = await site.visitor("root").text(PAGE)
    assert "No drift: Slurm’s limits agree with the policy." in page
    assert "sacctmgr" not in page
    assert "Read from Slurm on 20 Nov 2026" in page


async def test_what_was_set_by_hand_is_named_and_kept(site: Site, slurm: LimitsInSlurm) -> None:
    with_budget(slurm)
    slurm.limits[ALICE] = {"GrpTRES/gres/gpu": "8"}
    page = await site.visitor("root").text(PAGE)
    assert "Drift: 1 limit was set by hand." in page
    assert "user physics/alice GrpTRES=gres/gpu 8 2" in page
    assert APPLY.replace("--apply", "--apply --force") in page


async def test_what_the_hub_may_write_names_its_command(site: Site, slurm: LimitsInSlurm) -> None:
    with_budget(slurm)
    slurm.limits[Entity.USER, "physics/bob"] = {}
    page = await site.visitor("operator").text(PAGE)
    assert "Drift: 1 is not written yet." in page
    assert "user physics/bob GrpTRES=gres/gpu not set 2" in page
    assert APPLY in page
    assert "--force" not in page
    found = json.loads((await site.api("operator", "GET", "api/v1/mirror")).body)
    assert found["commands"] == [APPLY]


async def test_a_command_names_the_file_however_the_service_was_told_of_it(
    site: Site, slurm: LimitsInSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    site.service.config_path = "jupyterhub_config.py"
    slurm.limits[Entity.USER, "physics/bob"] = {}
    page = await site.visitor("root").text(PAGE)
    assert f"mirror --apply --config {tmp_path}/jupyterhub_config.py" in page


async def test_while_slurm_is_silent_it_is_unknown_and_nothing_is_claimed(site: Site, slurm: LimitsInSlurm) -> None:
    slurm.is_silent = True
    page = await site.visitor("root").text(PAGE)
    assert "Unknown: Slurm’s accounting does not answer." in page
    assert "secret" not in page
    assert "Read from Slurm" not in page
    answer = await site.api("root", "GET", "api/v1/mirror")
    assert (answer.code, b"secret" in answer.body) == (503, False)


async def test_without_knowing_who_is_in_a_group_nothing_is_claimed(
    slurm: LimitsInSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = "quotas:\n- {id: course, group: course, concurrent_gpus: 2}\n"
    async with running(tmp_path, monkeypatch, policy) as site:
        site.service.prices = PriceList(site.service.settings)
        site.service.slurm = type("Slurm", (), {"commands": lambda _self: None})()
        assert "Unknown: The hub does not say who is in which group" in await site.visitor("root").text(PAGE)
        site.service.hub_users.people = {"alice": Person("alice", frozenset({"course"}))}
        await site.ledger.add_note(MIRRORED, {"written": WRITTEN})
        assert "No drift" in await site.visitor("root").text(PAGE)


async def test_looking_changes_nothing_and_needs_the_scope(site: Site) -> None:
    before = await site.ledger.note_history(MIRRORED)
    await site.visitor("root").text(PAGE)
    assert await site.ledger.note_history(MIRRORED) == before
    assert await site.ledger.statement(Filter()) == []
    for name in ("alice", "tina"):
        assert (await site.visitor(name).get(PAGE)).code == 403
        assert (await site.api(name, "GET", "api/v1/mirror")).code == 403


async def test_rest_says_the_same(site: Site, slurm: LimitsInSlurm) -> None:
    with_budget(slurm)
    slurm.limits[ALICE] = {"GrpTRES/gres/gpu": "8"}
    found = json.loads((await site.api("operator", "GET", "api/v1/mirror")).body)
    assert (found["state"], found["unknown"], found["commands"]) == ("drift", "", [])
    (limit,) = found["limits"]
    assert limit == {
        **{"entity": "user", "name": "physics/alice", "limit": "GrpTRES/gres/gpu"},
        **{"slurm": "8", "policy": "2", "takes": "operator", "by_hand": True},
    }
