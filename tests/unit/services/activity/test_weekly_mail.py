"""The weekly mail goes once a week to who had jobs with a suggestion and wants it, over restarts as well."""

from __future__ import annotations

import email
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from little_smtp import LittleSmtp, little_smtp
from test_advice_rest import batch, job

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.activity.tokens import MailTokens
from carme_hub.domain.activity.efficiency import Used
from carme_hub.domain.activity.finished import WEEK, FinishedJob
from carme_hub.services.activity.application import weekly_mail
from carme_hub.services.activity.application.weekly_mail import SUBJECT, WeeklyMail, is_time
from carme_hub.store.engine import CarmeStore
from carme_hub.store.finished_jobs import FinishedJobStore

URL = "https://hub.example.org/services/activity/"
TOKENS = MailTokens("key")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FinishedJobStore]:
    monkeypatch.setenv(weekly_mail.PUBLIC_URL, URL)
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield FinishedJobStore(engine, "lab")
    engine.dispose()


def mail(store: FinishedJobStore, server: LittleSmtp | None, now: float | None = None, **settings: Any) -> WeeklyMail:
    here: dict[str, Any] = {"mail_domain": "lab.org"}
    if server is not None:
        here |= {"smtp_host": "127.0.0.1", "smtp_port": server.port}
    log = logging.getLogger("weekly-mail")
    return WeeklyMail(CarmeQuotas(**{**here, **settings}), store, TOKENS, log, clock=lambda: now or time.time())


def fine(number: int, **changes: Any) -> FinishedJob:
    """Return a job that used what it asked for."""
    return job(number, used=Used(4, 90.0, 20_000, 15.0, 16.0, 60_000, 1.0), **changes)


async def test_only_who_had_jobs_with_a_suggestion_gets_one(store: FinishedJobStore) -> None:
    others = [fine(2, user="bob"), job(3, user="kim"), replace(job(4, user="old"), ended=time.time() - 8 * 86_400)]
    store.put([job(1), batch(5), *others])
    store.set_mail("kim", wanted=False, now=1.0)
    async with little_smtp(LittleSmtp()) as server:
        assert await mail(store, server).send() == 1
    [(to, raw, _)] = server.letters
    letter = email.message_from_string(raw.removesuffix("\r\n.\r\n"), policy=default)
    link = f"{URL}mail?user=alice&token={TOKENS.token('alice')}"
    assert (to, letter["Subject"]) == ("alice@lab.org", SUBJECT)
    assert (letter["List-Unsubscribe"], letter["List-Unsubscribe-Post"]) == (
        f"<{link}>",
        "List-Unsubscribe=One-Click",
    )
    text = letter.get_content()
    assert "* image base in your home, once" in text
    assert "1 of 4 GPUs was used, at 80 % on average." in text
    assert "Ask for 1 GPU." in text
    assert link in text.split()


async def test_a_header_is_one_line_however_long_the_link_is(store: FinishedJobStore) -> None:
    name = "n" * 64
    store.put([job(1, user=name)])
    async with little_smtp(LittleSmtp()) as server:
        await mail(store, server).send()
    [(_, raw, _)] = server.letters
    assert f"List-Unsubscribe: <{URL}mail?user={name}&token={TOKENS.token(name)}>" in raw.splitlines()


async def test_it_is_sent_once_a_week_over_restarts_and_again_in_the_next(store: FinishedJobStore) -> None:
    store.put([job(1)])
    async with little_smtp(LittleSmtp()) as server:
        assert [await mail(store, server).send() for _ in range(2)] == [1, 0]
        store.put([replace(job(2), ended=time.time() + WEEK - 60)])
        assert await mail(store, server, time.time() + WEEK).send() == 1


async def test_one_that_cannot_be_sent_is_logged_and_not_sent_twice(
    store: FinishedJobStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.put([job(1), job(2, user="bob")])
    async with little_smtp(LittleSmtp(refused=frozenset({"alice@lab.org"}))) as server:
        assert await mail(store, server).send() == 1
        assert await mail(store, server).send() == 0
    assert [to for to, _, _ in server.letters] == ["bob@lab.org"]
    assert "The weekly mail for alice could not be sent" in caplog.text


@pytest.mark.parametrize(("url", "host"), [("", "127.0.0.1"), (URL, "")])
async def test_without_a_link_that_ends_it_or_a_mail_server_none_is_sent(
    store: FinishedJobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str, host: str
) -> None:
    monkeypatch.setenv(weekly_mail.PUBLIC_URL, url)
    store.put([job(1)])
    await mail(store, None, smtp_host=host).run()
    assert "The weekly mail is not sent: " in caplog.text


def test_it_waits_for_monday_morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monday = 1_795_996_800.0  # 2026-11-30, 00:00
    try:
        assert [is_time(monday + 3600 * hour) for hour in (0, 6.9, 7, 24, 6 * 24 + 23)] == [
            *(False, False, True, True, True)
        ]
    finally:
        monkeypatch.undo()
        time.tzset()
