"""A policy is tried with what was used before; the page says that it is at work where that takes long."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from forged_login import NOW, Site, Visitor, plain, running

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.replay import replay
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.quotas.pages import policy

POLICY = "quotas:\n- {id: week, user: '*', gpu_time: 100, window: week}\n"
PAGE, TRY = "administration/policy", "administration/policy/try"
DAY = 86400


def job(number: int, days: float, hours: float = 4) -> Usage:
    """A job outside the hub that began so many days ago."""
    start = NOW - days * DAY
    return Usage(
        *(number, str(number), "train", "bob", "physics", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(start - 5, start, start + hours * 3600, (Gpus("a100", 2),), "node1", int(hours * 3600)),
    )


class SlowAccounting:
    """Slurm's accounting, which answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.fails = False
        self.usages: list[Usage] = []

    async def usage(self, start: float, _end: float | None = None) -> tuple[Usage, ...]:
        self.asked.set()
        await self.may_answer.wait()
        if self.fails:
            raise SlurmUnreachable("sacct: secret words")
        return tuple(each for each in self.usages if each.end >= start)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for its trial however slow the machine is; the tests of one that takes long say so."""
    monkeypatch.setattr(policy, "TRIAL_WAIT", 60)


@pytest.fixture
async def slurm(monkeypatch: pytest.MonkeyPatch) -> SlowAccounting:
    found = SlowAccounting()
    found.may_answer.set()
    monkeypatch.setattr("carme_hub.services.quotas.application.policies.UsageReader", lambda _commands: found)
    return found


@pytest.fixture
async def site(slurm: SlowAccounting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY) as found:
        found.service.slurm = type("Slurm", (), {"commands": lambda _self: None})()
        yield found
        await found.service.trials.stop()


async def form(visitor: Visitor, hours: int = 1) -> dict[str, str]:
    """Return the form as it would be sent with another limit."""
    body = (await visitor.get(PAGE)).body.decode()
    text = re.search(r"<textarea.*?>\n(.*?)</textarea>", body, re.DOTALL)
    stamp = re.search(r'name="stamp" value="(\w+)"', body)
    assert text is not None
    assert stamp is not None
    return {
        "policy": unescape(text[1]).replace("gpu_time: 100", f"gpu_time: {hours}"),
        "reason": "x",
        "stamp": stamp[1],
    }


async def test_use_from_before_the_trial_counts_and_is_said(site: Site, slurm: SlowAccounting) -> None:
    slurm.usages = [job(1, 40), job(2, 5)]
    root = site.visitor("root")
    sent = await form(root)
    page = plain(await root.post(TRY, **{**sent, "policy": rolling(12)}))
    assert "Of 1 job with GPUs, 1 would have been refused" in page
    assert "Use from 22 Aug 2026, 12:00 on counts in the policy’s limits." in page
    assert "knows nothing from before" not in page


def rolling(hours: int) -> str:
    return f"quotas:\n- {{id: month, user: '*', gpu_time: {hours}, window: rolling, days: 60}}\n"


async def test_what_slurm_forgot_is_said(site: Site, slurm: SlowAccounting) -> None:
    await site.ledger.settle([replace(job(1, 40), time_limit=86400)], sessions=[])
    slurm.usages = [job(2, 5)]
    root = site.visitor("root")
    sent = await form(root)
    page = plain(await root.post(TRY, **{**sent, "policy": rolling(12)}))
    assert "0 would have been refused" in page
    assert "Slurm’s accounting has no records from before 15 Nov 2026, 11:59. The ledger has 8 h from then" in page


async def test_a_trial_that_takes_long_has_a_page_that_says_so(
    site: Site, slurm: SlowAccounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "TRIAL_WAIT", 0.05)
    slurm.usages = [job(2, 5)]
    slurm.may_answer.clear()
    root = site.visitor("root")
    sent = await form(root)
    answer = await root.post(TRY, **sent)
    assert answer.code == 303
    address = answer.headers["Location"].removeprefix("/services/quotas/")
    await asyncio.wait_for(slurm.asked.wait(), 60)
    waiting = await root.get(address)
    assert waiting.headers["Refresh"] == "2"
    assert "The policy is being tried Reason: x Reading Slurm’s accounting." in plain(waiting)
    again = await root.post(TRY, **sent)
    assert again.headers["Location"].endswith(address)
    slurm.may_answer.set()
    page = await until_done(root, address)
    assert "1 would have been refused" in page
    assert "Activate" in page
    assert site.service.policy().quotas[0].gpu_time == 100 * 3_600_000


async def until_done(visitor: Visitor, address: str) -> str:
    async with asyncio.timeout(120):
        while "Refresh" in (answer := await visitor.get(address)).headers:
            await asyncio.sleep(0.05)
    return plain(answer)


async def test_an_accounting_that_fails_is_said_without_its_words(site: Site, slurm: SlowAccounting) -> None:
    slurm.fails = True
    root = site.visitor("root")
    page = plain(await root.post(TRY, **await form(root)))
    assert "Slurm’s accounting does not answer, so it could not be tried." in page
    assert "secret" not in page
    assert "Activate" in page


async def test_a_trial_is_for_who_may_change_the_policy_and_not_kept_for_ever(site: Site) -> None:
    address = "administration/policy/trial/0123456789abcdef"
    assert (await site.visitor("operator").get(address)).code == 403
    answer = await site.visitor("root").get(address)
    assert (answer.code, "This trial is no longer kept" in plain(answer)) == (404, True)


async def test_a_trials_page_takes_no_form(site: Site) -> None:
    root = site.visitor("root")
    sent = await form(root)
    assert (await root.post("administration/policy/trial/0123456789abcdef", **sent)).code == 405


async def test_a_month_of_ten_thousand_jobs_holds_nobody_up(
    site: Site, slurm: SlowAccounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def replay_that_waits(*what: object, **more: object) -> object:
        goes_on.wait(300)
        return replay(*what, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("carme_hub.accounting.policy_trial.replay", replay_that_waits)
    monkeypatch.setattr(policy, "TRIAL_WAIT", 0.05)
    slurm.usages = [job(n, 29 - n * 0.0029, 1) for n in range(10_000)]
    root = site.visitor("root")
    sent = await form(root)
    answer = await root.post(TRY, **sent)
    assert answer.code == 303
    assert (await root.get("")).code == 200
    goes_on.set()
    page = await until_done(root, answer.headers["Location"].removeprefix("/services/quotas/"))
    assert "Of 10000 jobs with GPUs" in page
