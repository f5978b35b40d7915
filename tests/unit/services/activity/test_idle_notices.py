"""Users of idle sessions get each warning once by mail, with its deadline, also over restarts; and are told the end."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from little_smtp import LittleSmtp, little_smtp

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.services.activity.application.notices import IdleNotices, NoticeStores
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import ENDED, HERE, TOLD, WARNED, IdleEvent, IdleStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

ID = "5f0d8f0e-0000-4000-8000-000000000001"
NOW = float(time.time() // 3600 * 3600)


class Lab:
    """One session of alice and the events of the hub."""

    def __init__(self, engine: Any, port: int) -> None:
        self.engine, self.now = engine, NOW
        self.events, self.sessions = IdleStore(engine, "lab"), SessionStore(engine)
        request = Request("a100", "base", Gpus("a100", 1))
        self.row = Session(ID, "lab", "alice", "big", request, SessionState.RUNNING, NOW - 7200, node="n1")
        self.sessions.add(self.row)
        self.settings = CarmeQuotas(smtp_host="127.0.0.1", smtp_port=port, mail_domain="lab.org", smtp_tls="off")
        self.notices = self.new_notices()

    def new_notices(self) -> IdleNotices:
        """Return those of a service that has just started."""
        stores = NoticeStores(LedgerStore(self.engine), "lab", lambda: self.now)
        log = logging.getLogger("test")
        return IdleNotices(self.settings, stores, self.events, self.sessions, lambda: "UTC", log)

    def add(self, kind: str, seconds: int = 0, at: float | None = None, **about: Any) -> None:
        plain = {"action": "stop", "since": NOW - 2400.0, "deadline": NOW + seconds}
        self.events.add(IdleEvent(ID, NOW if at is None else at, kind, seconds, {**plain, **about}))

    async def sent(self) -> list[str]:
        """Return the texts that are sent now."""
        found = await self.notices.look()
        await self.notices.wait_until_delivered()
        return [notice.text for notice in found]


@pytest.fixture
async def smtp() -> AsyncIterator[LittleSmtp]:
    async with little_smtp(LittleSmtp()) as found:
        yield found


@pytest.fixture
async def lab(tmp_path: Path, smtp: LittleSmtp) -> AsyncIterator[Lab]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield Lab(engine, smtp.port)
    engine.dispose()


async def test_a_warning_is_mailed_once_with_its_deadline_also_over_a_restart(lab: Lab, smtp: LittleSmtp) -> None:
    lab.add(WARNED, 1200)
    [text] = await lab.sent()
    since, end = (time.strftime("%H:%M", time.gmtime(at)) for at in (NOW - 2400, NOW + 1200))
    assert text.startswith("Your session “big” on n1 has been idle since ")
    assert f"at {since}. It is stopped " in text
    assert f"at {end} if nothing is at work in it until then." in text
    assert await lab.sent() == []
    lab.notices = lab.new_notices()
    assert await lab.sent() == []
    lab.add(WARNED, 300)
    assert len(await lab.sent()) == 1
    assert [to for to, *_ in smtp.letters] == ["alice@lab.org"] * 2
    assert "Subject: Your session is idle" in smtp.letters[0][1]
    assert "/hub/home" in smtp.letters[0][1]


REASON = "It was idle for 1 h. 1 kernel was interrupted."


async def test_the_end_is_mailed_with_what_was_done(lab: Lab) -> None:
    lab.add(ENDED, reason=REASON)
    assert await lab.sent() == [], "its reason is stored a moment later"
    lab.sessions.save(lab.row.replace(cancel_wanted=NOW, cancel_reason=REASON))
    assert await lab.sent() == [f"Your session “big” on n1 was stopped. {REASON}"]


async def test_an_end_that_two_hubs_have_stored_is_mailed_once(lab: Lab) -> None:
    lab.sessions.save(lab.row.replace(cancel_wanted=NOW, cancel_reason=REASON))
    lab.add(ENDED, reason=REASON)
    lab.add(ENDED, reason=REASON, at=NOW + 60)
    assert len(await lab.sent()) == 1


async def test_a_session_that_its_user_stopped_first_has_no_mail_of_an_idle_end(lab: Lab) -> None:
    lab.add(ENDED, reason=REASON)
    lab.sessions.save(lab.row.replace(cancel_wanted=NOW, cancel_reason="Stopped by its user."))
    assert await lab.sent() == []


async def test_a_rule_that_only_tells_sends_one_mail(lab: Lab) -> None:
    lab.add(WARNED, 300, action="tell")
    lab.add(TOLD, action="tell")
    [text] = await lab.sent()
    assert text.endswith("Nothing happens to it, but its GPUs are held: stop it if you do not need it.")


async def test_clicks_old_events_and_warnings_of_what_has_ended_are_no_mail(lab: Lab) -> None:
    lab.add(HERE)
    lab.add(WARNED, 300, at=NOW - 3700)
    assert await lab.sent() == []
    lab.sessions.save(lab.row.replace(cancel_wanted=NOW, cancel_reason="Stopped."))
    lab.add(WARNED, 300)
    assert await lab.sent() == []
