"""Mail goes out encrypted where that can be had, logs in where it must, and never tells a password to the wrong ear."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from certipy import Certipy
from little_smtp import LittleSmtp, little_smtp

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.quotas.policy import Policy
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.mail import PASSWORD
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.ledger.writes import LedgerStore

SECRET = "Korr3ct-horse"
NOW = 1_795_000_000.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certipy:
    certipy = Certipy(store_dir=str(tmp_path_factory.mktemp("certificates")))
    certipy.create_ca("mail-ca")
    certipy.create_signed_pair("mail", "mail-ca", alt_names=["IP:127.0.0.1"])
    return certipy


@pytest.fixture
def tls(certificates: Certipy) -> ssl.SSLContext:
    files = certificates.store.get_record("mail")["files"]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    return context


@pytest.fixture
def authority(certificates: Certipy) -> str:
    return str(Path(certificates.store.get_record("mail-ca")["files"]["cert"]).resolve())


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "smtp-password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    return file


async def told(tmp_path: Path, server: LittleSmtp, *users: str, **settings: Any) -> None:
    """Tell users something by this server, and wait until it was sent or given up."""
    store = LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())
    ledger = Ledger(store, "lab", policy=Policy, factor=lambda *_: 1000, clock=lambda: NOW)
    log = logging.getLogger("mail-test")
    here: dict[str, Any] = {"smtp_host": "127.0.0.1", "smtp_port": server.port, "mail_domain": "lab.org", **settings}
    book: Any = None
    notices = Notices(CarmeQuotas(**here), ledger, book, HubUsers(log), log)
    await notices.send([(SentNotice(f"about {user}", user, "info", "Überall\nis news", NOW), "") for user in users])


async def test_mail_is_encrypted_where_the_server_offers_it(tmp_path: Path, tls: ssl.SSLContext) -> None:
    async with little_smtp(LittleSmtp(tls)) as server:
        await told(tmp_path, server, "alice")
    [(to, text, encrypted)] = server.letters
    assert (to, encrypted) == ("alice@lab.org", True)
    assert "Subject: Your GPU time" in text


async def test_mail_goes_out_plain_where_the_server_offers_nothing_better(tmp_path: Path) -> None:
    async with little_smtp(LittleSmtp()) as server:
        await told(tmp_path, server, "alice", "bob")
    assert [(to, encrypted) for to, _, encrypted in server.letters] == [
        ("alice@lab.org", False),
        ("bob@lab.org", False),
    ]
    assert server.connections == 1, "several mails go over one connection"


async def test_a_site_that_requires_tls_sends_nothing_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with little_smtp(LittleSmtp()) as server:
        await told(tmp_path, server, "alice", smtp_tls="require")
    assert server.letters == []
    assert "offers no STARTTLS" in caplog.text


async def test_a_required_certificate_must_be_good_for_the_server(
    tmp_path: Path, tls: ssl.SSLContext, authority: str
) -> None:
    async with little_smtp(LittleSmtp(tls)) as server:
        await told(tmp_path, server, "alice", smtp_tls="require")
        assert server.letters == [], "nobody that the system trusts has signed it"
        await told(tmp_path, server, "alice", smtp_tls="require", smtp_ca_file=authority)
        await told(tmp_path, server, "bob", smtp_tls="require", smtp_ca_file=authority, smtp_host="localhost")
    assert [(to, encrypted) for to, _, encrypted in server.letters] == [("alice@lab.org", True)]


async def test_tls_can_be_switched_off(tmp_path: Path, tls: ssl.SSLContext) -> None:
    async with little_smtp(LittleSmtp(tls)) as server:
        await told(tmp_path, server, "alice", smtp_tls="off")
    assert [encrypted for *_, encrypted in server.letters] == [False]


async def test_tls_from_the_first_byte(tmp_path: Path, tls: ssl.SSLContext, authority: str) -> None:
    async with little_smtp(LittleSmtp(tls, implicit=True)) as server:
        await told(tmp_path, server, "alice", smtp_tls="implicit", smtp_ca_file=authority)
        await told(tmp_path, server, "bob", smtp_tls="implicit")  # not signed by whom the system trusts
    assert [(to, encrypted) for to, _, encrypted in server.letters] == [("alice@lab.org", True)]


async def test_the_password_comes_from_a_file_or_the_environment_and_travels_in_tls_alone(
    tmp_path: Path, tls: ssl.SSLContext, authority: str, password_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"smtp_user": "hub", "smtp_ca_file": authority}
    async with little_smtp(LittleSmtp(tls, login=("hub", SECRET))) as server:
        await told(tmp_path, server, "alice", **login, smtp_password_file=str(password_file))
        monkeypatch.setenv(PASSWORD, SECRET)
        await told(tmp_path, server, "bob", **login)
    assert server.logins == [("hub", SECRET, True)] * 2
    assert [to for to, *_ in server.letters] == ["alice@lab.org", "bob@lab.org"]


async def test_no_password_is_told_in_the_open_nor_to_a_stranger(
    tmp_path: Path, tls: ssl.SSLContext, password_file: Path
) -> None:
    login = {"smtp_user": "hub", "smtp_password_file": str(password_file)}
    async with little_smtp(LittleSmtp(login=("hub", SECRET))) as server:
        await told(tmp_path, server, "alice", **login)  # who is in between may have taken STARTTLS out of the offer
    async with little_smtp(LittleSmtp(tls, login=("hub", SECRET))) as other:
        await told(tmp_path, other, "alice", **login)  # a certificate that anybody can make
    assert (server.logins, other.logins, server.letters, other.letters) == ([], [], [], [])


async def test_a_password_that_others_can_read_is_not_used_and_none_is_ever_logged(
    tmp_path: Path, password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    login = {"smtp_user": "hub", "smtp_password_file": str(password_file), "smtp_tls": "off"}
    async with little_smtp(LittleSmtp(login=("hub", "another"))) as server:
        password_file.chmod(0o640)
        await told(tmp_path, server, "alice", **login)
        assert server.connections == 0
        assert f"chmod 600 {password_file}" in caplog.text
        password_file.chmod(0o600)
        await told(tmp_path, server, "alice", **login)
    assert server.logins == [("hub", SECRET, False)], "the site wants it so"
    assert "SMTPAuthenticationError 535" in caplog.text
    assert SECRET not in caplog.text


async def test_a_mail_server_that_is_silent_is_given_up_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    async with little_smtp(LittleSmtp(silent=True)) as server:
        await told(tmp_path, server, "alice", smtp_timeout=0.2)
    assert "A notice for alice could not be mailed: SMTPServerDisconnected" in caplog.text
    assert time.monotonic() - began < 9.5, "the usual limit is 10 s"


async def test_a_recipient_who_is_refused_keeps_nobody_else_from_their_mail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with little_smtp(LittleSmtp(refused=frozenset({"gone@lab.org"}))) as server:
        await told(tmp_path, server, "alice", "gone", "bob")
    assert [to for to, *_ in server.letters] == ["alice@lab.org", "bob@lab.org"]
    assert "A notice for gone could not be mailed" in caplog.text


TEN = [f"user{number}" for number in range(10)]


@pytest.mark.parametrize("full", ["421 too many letters", ""])
@pytest.mark.parametrize("full_at", ["MAIL", "RCPT", "DATA"])
async def test_everybody_gets_their_mail_once_from_a_server_that_takes_few_letters_over_one_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, full: str, full_at: str
) -> None:
    async with little_smtp(LittleSmtp(most=3, full=full, full_at=full_at)) as server:
        await told(tmp_path, server, *TEN)
    assert [to for to, *_ in server.letters] == [f"{user}@lab.org" for user in TEN]
    assert server.connections == 4
    assert complaints(caplog) == []


async def test_a_server_that_takes_no_letter_over_a_new_connection_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with little_smtp(LittleSmtp(most=0)) as server:
        await told(tmp_path, server, *TEN)
    assert (server.letters, server.connections) == ([], 1)
    for user in TEN:
        assert f"A notice for {user} could not be mailed: SMTPSenderRefused 421" in caplog.text


async def test_who_got_no_mail_is_told_apart_where_the_server_takes_no_further_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with little_smtp(LittleSmtp(most=3, most_connections=1)) as server:
        await told(tmp_path, server, *TEN)
    assert [to for to, *_ in server.letters] == [f"{user}@lab.org" for user in TEN[:3]]
    assert server.connections == 2
    lost = [message.split()[3] for message in complaints(caplog)]
    assert lost == TEN[3:]


async def test_mail_that_was_taken_counts_whatever_the_server_says_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with little_smtp(LittleSmtp(most=1, full_at="QUIT")) as server:
        await told(tmp_path, server, "alice")
    assert [to for to, *_ in server.letters] == ["alice@lab.org"]
    assert complaints(caplog) == []


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what an administrator would be warned of, whatever else is logged since other tests ran."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
