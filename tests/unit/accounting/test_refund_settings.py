"""Each automatic refund is a setting of the site, and a policy that speaks of refunds decides alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forged_site import MONDAY, Site, usage
from traitlets.config import Config

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.policy_trial import try_policy
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.domain.ledger.entries import GPU_HOUR, ONE
from carme_hub.domain.quotas.policy import REFUNDS, dump_policy, parse_policy
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, SessionState


def settings(**values: Any) -> CarmeQuotas:
    """Read settings as the hub reads its file: a setting that there is not stays without effect."""
    return CarmeQuotas(config=Config({"CarmeQuotas": values}))


def ledger(site: Site, said: CarmeQuotas) -> Ledger:
    return Ledger(site.store, "lab", policy=PolicyInForce(said), factor=lambda *_: ONE, clock=lambda: site.now)


async def refunded(site: Site, said: CarmeQuotas) -> set[str]:
    """Settle a job for each refund, and return for which of them it was given."""
    site.session("s1", state=SessionState.ENDED, job_id=9, created=site.now, ended=site.now + 90, submitted=site.now)
    start_failed = site.usage_of(job=9, start=MONDAY, end=MONDAY + 90)
    at = site.now + 80
    more = {"submitted": site.now, "started": site.now, "cancel_wanted": at, "cancel_reason": MAINTENANCE_STOP + "n1."}
    site.session("s2", state=SessionState.ENDED, job_id=10, created=site.now, ended=site.now + 90, **more)
    made_way = site.usage_of("s2", job=10, start=MONDAY, end=MONDAY + 90, state="CANCELLED by 0")
    site.now += 7000
    done = await ledger(site, said).settle(
        [
            usage(7, MONDAY, MONDAY + 10, "NODE_FAIL"),
            usage(8, MONDAY, MONDAY + 10, "PREEMPTED"),
            start_failed,
            made_way,
        ],
        sessions=site.rows.values(),
    )
    assert len(done.charged) == 4
    rules = {7: "node-failure", 8: "preemption", 9: "start-failed", 10: "maintenance"}
    return {rules[entry.job_id] for entry in done.refunded}


async def test_all_are_given_without_a_word(site: Site) -> None:
    assert await refunded(site, settings()) == set(REFUNDS)


@pytest.mark.parametrize("rule", REFUNDS)
async def test_each_is_switched_off_by_its_setting(site: Site, rule: str) -> None:
    off = settings(**{f"refund_{rule.replace('-', '_')}": False})
    assert await refunded(site, off) == set(REFUNDS) - {rule}


async def test_a_policy_that_speaks_of_refunds_decides_alone(site: Site) -> None:
    said = settings(refund_preemption=False, policy={"refunds": ["preemption"]})
    assert await refunded(site, said) == {"preemption"}


async def test_a_policy_file_leaves_refunds_to_the_settings_and_is_written_back_without_them(
    site: Site, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("quotas: []\n")
    said = settings(refund_node_failure=False, policy_file=str(file))
    assert await refunded(site, said) == {"preemption", "start-failed", "maintenance"}
    assert "refunds" not in dump_policy(PolicyInForce(said)())
    file.write_text(json.dumps({"quotas": [], "refunds": ["node-failure"]}))
    assert PolicyInForce(said)().refunded == ("node-failure",)


async def test_a_replay_refunds_what_the_site_refunds(site: Site) -> None:
    class Accounting:
        async def usage(self, *_when: Any) -> Any:
            failed = usage(1, MONDAY, MONDAY + 3600, "NODE_FAIL", submitted=MONDAY, time_limit=3600)
            return failed, usage(2, MONDAY + 7200, MONDAY + 10800, submitted=MONDAY + 7200, time_limit=3600)

    tried = parse_policy({"quotas": [{"id": "day", "user": "*", "gpu_time": 1, "window": "day"}]})
    assert tried.quotas[0].gpu_time == GPU_HOUR
    for given_back, refused in ((True, 0), (False, 1)):
        context = ledger(site, settings(refund_node_failure=given_back)).context
        reader: Any = Accounting()
        found = await try_policy(context, reader, tried, {}, MONDAY, MONDAY + 86400)
        assert found.replay.total.refused == refused
