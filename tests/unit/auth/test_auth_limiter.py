"""Guessing passwords is slow, from one address, at one name, and behind any header."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from auth_hub import DirectoryOfThree, Hub, running
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyterhub.utils import random_port
from tornado.httputil import HTTPHeaders
from traitlets.config import Config

from carme_hub.address import address_key, client_address
from carme_hub.auth.login_limiter import LoginLimiter, TooManyTries


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_eleventh_try_waits_until_the_first_is_five_minutes_old(clock: Clock) -> None:
    limiter = LoginLimiter(clock=clock)
    for _ in range(10):
        limiter.enter("user alice")
        clock.now += 10
    with pytest.raises(TooManyTries) as refused:
        limiter.enter("user alice")
    assert refused.value.wait == 200
    assert "4 minutes" in refused.value.message
    clock.now += 200
    limiter.enter("user alice")


def test_a_refused_try_does_not_make_the_wait_longer(clock: Clock) -> None:
    limiter = LoginLimiter(2, 60, clock=clock)
    limiter.enter("a")
    limiter.enter("a")
    for _ in range(59):
        clock.now += 1
        with pytest.raises(TooManyTries):
            limiter.enter("a")
    clock.now += 1
    limiter.enter("a")


def test_name_and_address_both_count(clock: Clock) -> None:
    limiter = LoginLimiter(3, 60, clock=clock)
    for n in range(3):
        limiter.enter(f"user {n}", "address here")
    with pytest.raises(TooManyTries):
        limiter.enter("user new", "address here")
    limiter.enter("user new", "address there")


def test_a_success_takes_its_own_try_back_and_no_other(clock: Clock) -> None:
    limiter = LoginLimiter(3, 60, clock=clock)
    limiter.enter("user a", "address")
    for _ in range(20):
        limiter.undo(limiter.enter("user b", "address"))
    limiter.enter("user a", "address")
    limiter.enter("user a", "address")
    with pytest.raises(TooManyTries):
        limiter.enter("user b", "address")


def test_memory_is_bounded(clock: Clock) -> None:
    limiter = LoginLimiter(3, 60, max_keys=100, clock=clock)
    for n in range(10_000):
        limiter.enter(f"user {n}")
    assert len(limiter) == 100


@settings(max_examples=50, deadline=None)
@given(steps=st.lists(st.tuples(st.floats(0, 120), st.booleans()), max_size=60))
def test_never_more_failures_in_a_window_than_allowed(steps: list[tuple[float, bool]]) -> None:
    clock, failed, waits = Clock(), [], []
    limiter = LoginLimiter(5, 300, clock=clock)
    for pause, is_allowed in steps:
        clock.now += pause
        try:
            attempt = limiter.enter("k")
        except TooManyTries as error:
            waits.append(error.wait)
            continue
        if is_allowed:
            limiter.undo(attempt)
        else:
            failed.append(clock.now)
    assert all(0 < wait <= 300 for wait in waits)
    for end in failed:
        assert sum(end - 300 < at <= end for at in failed) <= 5


class SocketOf:
    def __init__(self, peer: Any, own: Any) -> None:
        self.peer, self.own = peer, own

    def getpeername(self) -> Any:
        return self.peer

    def getsockname(self) -> Any:
        return self.own


class RequestFrom:
    """Forges what the hub sees of a request."""

    def __init__(self, peer: Any, own: Any = ("10.0.0.1", 8081), **headers: str) -> None:
        self.headers = HTTPHeaders({name.replace("_", "-"): value for name, value in headers.items()})
        self.remote_ip = headers.get("X_Real_Ip", "")
        self.connection = type("C", (), {"stream": type("S", (), {"socket": SocketOf(peer, own)})})


@pytest.mark.parametrize(
    ("request_", "address"),
    [
        # A stranger's word counts for nothing.
        (RequestFrom(("10.0.0.9", 5), X_Forwarded_For="1.2.3.4", X_Real_Ip="1.2.3.4"), "10.0.0.9"),
        # The proxy on this machine wrote the last entry; what is before it and X-Real-Ip is the client's invention.
        (RequestFrom(("10.0.0.1", 5), X_Forwarded_For="1.2.3.4, 5.6.7.8", X_Real_Ip="6.6.6.6"), "5.6.7.8"),
        (RequestFrom(("127.0.0.1", 5), ("127.0.0.1", 8081), X_Forwarded_For="1.2.3.4"), "1.2.3.4"),
        (RequestFrom("", "", X_Forwarded_For="1.2.3.4"), "1.2.3.4"),  # a unix socket
        # A proxy elsewhere, named by the site, and one before it that is skipped.
        (RequestFrom(("10.9.0.7", 5), X_Forwarded_For="5.6.7.8, 10.0.0.3"), "5.6.7.8"),
        (RequestFrom(("10.0.0.1", 5), X_Forwarded_For="::ffff:5.6.7.8"), "5.6.7.8"),
        (RequestFrom(("10.0.0.1", 5), X_Forwarded_For="rubbish"), "10.0.0.1"),
        (RequestFrom(("10.0.0.1", 5)), "10.0.0.1"),
    ],
)
def test_the_address_is_the_one_the_client_cannot_choose(request_: Any, address: str) -> None:
    assert client_address(request_, ["10.9.0.0/16"], ["10.0.0.3"]) == address


def test_an_ipv6_customer_is_one_address() -> None:
    assert address_key("2001:db8:1:2:3::4") == address_key("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert address_key("::ffff:1.2.3.4") == address_key("1.2.3.4")


async def test_the_login_page_says_how_long_to_wait(hub: Hub) -> None:
    for _ in range(10):
        assert (await hub.login("alice", "guess")).code == 403
    response = await hub.login("alice")  # the right password does not help now
    assert response.code == 429
    assert 0 < int(response.headers["Retry-After"]) <= 300
    page = response.body.decode()
    assert re.search(r"Too many failed logins\. Try again in 5 minutes", page)
    assert 'id="login_submit"' in page  # it is the form, not a bare error
    assert "Xguess" not in page


async def test_a_hundred_guesses_at_once_are_ten(hub: Hub) -> None:
    await hub.fetch("/login")
    answers = await asyncio.gather(*(hub.login("alice", f"guess {n}", fresh=False) for n in range(40)))
    codes = [answer.code for answer in answers]
    assert codes.count(403) == 10
    assert codes.count(429) == 30


async def test_logging_in_rightly_is_never_put_off(hub: Hub) -> None:
    for _ in range(15):
        assert (await hub.login("alice")).code == 302


async def test_our_own_failures_do_not_count(tmp_path: Path, directory: DirectoryOfThree) -> None:
    def change(c: Config) -> None:
        c.CarmeAuthenticator.allowed_groups = set()
        c.CarmeAuthenticator.allowed_accounts = {"chem"}

    async with running(tmp_path, directory, change) as hub:
        hub.slurm.silent = True
        for _ in range(12):
            assert (await hub.login("bob")).code == 503


async def test_headers_do_not_help_past_the_real_proxy(
    tmp_path: Path, directory: DirectoryOfThree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JupyterHub's own proxy hands X-Real-Ip through, and JupyterHub believes it; we do not."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def change(c: Config) -> None:
        c.JupyterHub.proxy_class = "configurable-http-proxy"
        c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{random_port()}"
        c.ConfigurableHTTPProxy.pid_file = str(tmp_path / "proxy.pid")

    async with running(tmp_path, directory, change) as hub:
        try:
            base = hub.app.bind_url.rstrip("/") + "/hub"
            believed, codes = [], []
            seen = hub.authenticator._address_of

            def spy(handler: Any) -> str:
                believed.append(handler.request.remote_ip)
                return seen(handler)

            monkeypatch.setattr(hub.authenticator, "_address_of", spy)
            for n in range(12):
                forged = {"X_Forwarded_For": f"9.9.9.{n}", "X_Real_Ip": f"8.8.8.{n}"}
                codes.append((await hub.login(f"user{n}", "guess", base=base, **forged)).code)
            assert codes == [403] * 10 + [429] * 2
            assert believed[0] == "8.8.8.0"  # why request.remote_ip would not do
        finally:
            hub.app.proxy.stop()
            hub.app.proxy.proxy_process.wait(10)
