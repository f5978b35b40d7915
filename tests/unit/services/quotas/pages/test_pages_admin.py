"""The administration: anomalies, settling, report, and a policy that is tried before it counts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from forged_login import Site, Visitor, logged_in, plain, running

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.services.quotas.pages import policy
from carme_hub.store.idle import ENDED, HERE, WARNED, IdleEvent
from carme_hub.store.ledger.writes import Anomaly

POLICY = "currency: EUR\nquotas:\n- {id: week, user: '*', gpu_time: 20, window: week}\n"
PAGE = "administration/policy"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for its trial however slow the machine is; test_pages_trial.py has those that take long."""
    monkeypatch.setattr(policy, "TRIAL_WAIT", 60)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY, price_of_gpu_hour="0.50") as found:
        yield found


def job(site: Site, number: int = 7, hours: float = 4, **changes: object) -> Usage:
    """A job outside the hub that ended an hour ago."""
    end = site.now - 3600
    start = end - hours * 3600
    found = Usage(
        *(number, str(number), "train", "bob", "physics", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(start - 5, start, end, (Gpus("a100", 2),), "node1", 86400),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


async def odd_job(site: Site) -> int:
    """A job that ran longer than its limit allows; it waits for a person."""
    await site.ledger.settle([job(site, time_limit=3600)], sessions=[])
    (found,) = await site.ledger.anomalies()
    return found.id


async def test_the_queue_says_what_was_seen_and_a_person_settles_it_once(site: Site) -> None:
    id = await odd_job(site)
    root = await logged_in(site, "root")
    page = await root.text("administration/anomalies")
    assert "Job 7: long It ran longer than its time limit allows" in page
    assert "The time in Slurm’s record: 4 h" in page
    form = {"decision": "charge-seconds", "minutes": "60", "reason": "the clock stepped"}
    asked = await root.post(f"administration/anomalies/{id}", **form)
    assert "1 h of its GPUs are charged." in plain(asked)
    assert len(await site.ledger.anomalies()) == 1
    done = await root.post(f"administration/anomalies/{id}", **form, confirmed="yes")
    assert done.code == 303
    assert "2 h" in await site.visitor("bob").text("")
    assert "No anomaly waits for a decision." in await root.text("administration/anomalies")
    again = await root.post(f"administration/anomalies/{id}", **form, confirmed="yes")
    assert "Somebody has decided on this already." in plain(again)


async def test_of_more_accounts_than_a_page_shows_it_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    root = site.visitor("root")
    assert "2 accounts" in await root.text("administration")
    assert "1 of 2 accounts" in await root.text("administration?q=phys")
    monkeypatch.setattr("carme_hub.services.quotas.pages.admin.MAX_ACCOUNTS", 1)
    assert "The first 1 of 2 accounts; search for the others." in await root.text("administration")


async def test_an_anomaly_of_nobody_known_says_so_before_and_after_it_is_decided(site: Site) -> None:
    await site.ledger.settle([job(site, time_limit=3600, user="", account="")], sessions=[])
    (found,) = await site.ledger.anomalies()
    root = await logged_in(site, "root")
    assert "unknown user, account unknown, found" in await root.text("administration/anomalies")
    form = {"decision": "ignore", "reason": "a test of the nodes", "confirmed": "yes"}
    assert (await root.post(f"administration/anomalies/{found.id}", **form)).code == 303
    assert "(unknown user, account unknown). root" in await root.text("administration/anomalies")


async def test_who_only_reads_settles_and_compares_nothing(site: Site) -> None:
    id = await odd_job(site)
    reader = await logged_in(site, "operator")
    assert "Settle…" not in await reader.text("administration/anomalies")
    form = {"decision": "ignore", "reason": "x", "confirmed": "yes"}
    assert (await reader.post(f"administration/anomalies/{id}", **form)).code == 403
    assert (await reader.post("administration/reconcile", days="1")).code == 403
    assert (await reader.post(f"{PAGE}/switch", policy="{}", reason="x", stamp="x")).code == 403
    assert len(await site.ledger.anomalies()) == 1


async def test_settling_says_how_old_it_is_and_why_it_failed(site: Site) -> None:
    root = await logged_in(site, "root")
    page = await root.text("administration/health")
    assert "Nothing has been settled yet." in page
    assert "New sessions with GPUs are refused until it succeeds again." in page
    await site.ledger.settle([], sessions=[])
    site.service.settlement.problem = ""
    site.now += 90
    page = await root.text("administration/health")
    assert "1 min 30 s ago" in page
    assert "it is tried again" not in page


async def test_the_report_adds_up_and_has_its_cost(site: Site) -> None:
    await site.ledger.settle([job(site), job(site, 8, 1, user="alice")], sessions=[])
    root = site.visitor("root")
    page = await root.text("administration/report?by=user")
    assert "bob 1 8 h 0 h 4.00" in page
    assert "alice 1 2 h 0 h 1.00" in page
    assert "All 2 10 h 0 h 5.00" in page
    csv = (await root.get("administration/report.csv?by=gpu")).body.decode()
    assert csv.splitlines() == ["gpu,jobs,gpu_hours,refunded_gpu_hours,cost_eur", "a100,2,10.000,0.000,5.00"]
    assert "No job with GPUs ended in this month." in await root.text("administration/report?month=2026-01")
    assert "is not a month" in plain(await root.get("administration/report?month=x"))


async def test_the_report_says_what_idle_sessions_have_given_back(site: Site) -> None:
    root = await logged_in(site, "root")
    assert "Idle sessions" not in await root.text("administration/report")
    at = site.now - 60
    request = Request("a100", "base", Gpus("a100", 2), time_limit=121)
    row = Session("one", "lab", "bob", "", request, SessionState.ENDED, at - 3600, started=at - 3600, ended=at)
    site.service.sessions.add(row)
    for kind in (WARNED, HERE, WARNED, ENDED):
        site.service.idle_events.add(IdleEvent("one", at, kind))
    assert (
        "Idle sessions Warned: 1. Clicks on “still here”: 1. Ended: 1, which gave back at most 2.03 GPU-hours. "
        "Started again within ten minutes (false alarms): 0."
    ) in await root.text("administration/report")


async def current(visitor: Visitor) -> tuple[str, str]:
    """Return the policy in the form, and its stamp."""
    body = (await visitor.get(PAGE)).body.decode()
    text = re.search(r"<textarea.*?>\n(.*?)</textarea>", body, re.DOTALL)
    stamp = re.search(r'name="stamp" value="(\w+)"', body)
    assert text is not None
    assert stamp is not None
    return unescape(text[1]), stamp[1]


async def test_a_policy_is_tried_on_what_was_used_and_then_switched_on_with_its_history(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.services.quotas.application.policies.UsageReader", lambda _commands: site.slurm)
    site.service.slurm = type("Slurm", (), {"commands": lambda _self: None})()
    site.slurm.usages = [job(site)]
    root = await logged_in(site, "root")
    text, stamp = await current(root)
    assert "gpu_time: 20" in text
    form = {"policy": text.replace("gpu_time: 20", "gpu_time: 1"), "reason": "less", "stamp": stamp}
    tried = await root.post(f"{PAGE}/try", **form)
    assert "Of 1 job with GPUs, 1 would have been refused , with 8 h of the 8 h that were used." in plain(tried)
    assert site.service.policy().quotas[0].gpu_time == 20 * 3_600_000
    assert (await root.post(f"{PAGE}/switch", **form)).code == 303
    assert site.service.policy().quotas[0].gpu_time == 3_600_000
    page = await root.text(PAGE)
    assert "The new policy is in force." in page
    assert "root: less in force" in page
    assert "as it was before the first change here" in page
    late = await root.post(f"{PAGE}/switch", **{**form, "policy": text})
    assert "The policy was changed in the meantime." in plain(late)


async def test_a_trial_knows_who_is_in_a_group_and_says_so_where_it_does_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.services.quotas.application.policies.UsageReader", lambda _commands: site.slurm)
    site.service.slurm = type("Slurm", (), {"commands": lambda _self: None})()
    site.slurm.usages = [job(site)]
    root = await logged_in(site, "root")
    _, stamp = await current(root)
    new = "quotas:\n- {id: course, group: course, session_gpus: 1}\n"
    page = plain(await root.post(f"{PAGE}/try", policy=new, reason="x", stamp=stamp))
    assert "0 would have been refused" in page
    assert "rules about groups and roles are left out of this trial" in page
    site.service.hub_users.people = {"bob": Person("bob", frozenset({"course"}))}
    page = plain(await root.post(f"{PAGE}/try", policy=new, reason="x", stamp=stamp))
    assert "1 would have been refused" in page
    assert "left out" not in page


async def test_a_wrong_policy_is_refused_with_the_place_and_what_was_typed_stays(site: Site) -> None:
    root = await logged_in(site, "root")
    _, stamp = await current(root)
    wrong = "quotas:\n- {id: a, user: '*', gpu_tme: 3}\n"
    answer = await root.post(f"{PAGE}/try", policy=wrong, reason="x", stamp=stamp)
    assert "quotas[0].gpu_tme: unknown key. Did you mean gpu_time?" in plain(answer)
    assert "gpu_tme: 3" in answer.body.decode()
    assert (await root.post(f"{PAGE}/switch", policy=wrong, reason="x", stamp=stamp)).code == 409
    assert site.service.policy().quotas[0].id == "week"


async def test_a_policy_of_the_configuration_is_shown_and_not_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as site:
        root = await logged_in(site, "root")
        page = await root.text(PAGE)
        assert "To edit it here, name a file in CarmeQuotas.policy_file." in page
        assert "Check and try it" not in page


async def odd_jobs(site: Site, *numbers: int) -> None:
    for number in numbers:
        await site.ledger.settle([job(site, number, time_limit=3600)], sessions=[])


def jobs_in(body: str, what: str) -> list[int]:
    return [int(number) for number in re.findall(what, body)]


async def test_the_queue_pages_on_to_all_that_waits_the_oldest_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.services.quotas.pages.admin.MAX_OPEN", 3)
    await odd_jobs(site, *range(1, 9))
    root, path, seen = await logged_in(site, "root"), "administration/anomalies", []
    for more in (True, True, False):
        body = (await root.get(path)).body.decode()
        seen += jobs_in(body, r'id="odd-\d+">Job (\d+)')
        assert "8 wait, the oldest first" in body
        newer = re.search(r'href="\?(after=\d+)">Newer', body)
        assert (newer is not None) is more
        path = f"administration/anomalies?{newer[1]}" if newer else ""
    assert seen == list(range(1, 9))
    newest = (await site.ledger.anomalies())[0]
    form = {"decision": "ignore", "reason": "no", "confirmed": "yes"}
    assert (await root.post(f"administration/anomalies/{newest.id}", **form)).code == 303
    page = await root.text(f"administration/anomalies?after={newest.id}")
    assert "Job 1: long" in page, "nothing is newer: the oldest again"


async def test_what_was_decided_can_be_read_back_to_the_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carme_hub.services.quotas.pages.admin.MAX_DECIDED", 2)
    await odd_jobs(site, 1, 2, 3)
    for each in await site.ledger.anomalies():
        await site.ledger.decide_anomaly(each.id, actor="root", decision="no")
    root = site.visitor("root")
    body = (await root.get("administration/anomalies")).body.decode()
    assert jobs_in(body, r"<li>Job (\d+)") == [3, 2]
    older = re.search(r'href="\?(before=\d+)#decided">Older', body)
    assert older is not None
    body = (await root.get(f"administration/anomalies?{older[1]}")).body.decode()
    assert jobs_in(body, r"<li>Job (\d+)") == [1]
    assert ">Older<" not in body


async def test_more_than_a_thousand_wait_and_are_counted_and_decided(site: Site) -> None:
    with site.ledger.context.store.transaction("lab") as writes:
        for number in range(1, 1003):
            writes.add_anomalies(
                [Anomaly(f"long:lab:{number}:5", "long", "lab", site.now, number, 5, "physics", "bob")]
            )
    root = await logged_in(site, "root")
    assert "1002 wait, the oldest first; 50 of them" in await root.text("administration/anomalies")
    assert re.search(r"1,?002", await root.text("administration/health"))
    metrics = (await site.api("root", "GET", "api/v1/metrics")).body.decode()
    assert "carme_quotas_anomalies_open 1002.0" in metrics
    oldest = (await site.ledger.anomalies())[-1]
    form = {"decision": "ignore", "reason": "no", "confirmed": "yes"}
    assert (await root.post(f"administration/anomalies/{oldest.id}", **form)).code == 303
