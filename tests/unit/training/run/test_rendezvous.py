"""Ranks find each other, and a stranger on the node gets nothing and changes nothing."""

from __future__ import annotations

import http.client
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from carme_hub.training.run import rendezvous
from carme_hub.training.run.rendezvous import Rendezvous


@pytest.fixture
def there() -> Iterator[Rendezvous]:
    with Rendezvous("127.0.0.1") as found:
        yield found


def ask(there: Rendezvous, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Ask as any program on the node can."""
    link = http.client.HTTPConnection("127.0.0.1", there.port, timeout=5)
    try:
        link.request(method, path, body)
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def known(there: Rendezvous, scope: str, key: str) -> str:
    """Return the path that a client makes of the address that it was told (horovod/runner/http/http_client.py)."""
    url = f"http://{there.address}:{there.port}/{scope}/{key}"
    return url.removeprefix(f"http://127.0.0.1:{there.port}")


def test_what_one_rank_says_another_reads(there: Rendezvous) -> None:
    assert ask(there, "PUT", known(there, "global", "0"), b"\x00address") == (200, b"")
    assert ask(there, "GET", known(there, "global", "0")) == (200, b"\x00address")
    assert ask(there, "GET", known(there, "global", "1")) == (404, b"")
    assert ask(there, "DELETE", known(there, "global", "0")) == (200, b"")
    assert ask(there, "GET", known(there, "global", "0")) == (404, b"")


def test_what_ranks_of_an_earlier_attempt_say_is_refused(there: Rendezvous) -> None:
    earlier = known(there, "carme-end", "0")
    assert ask(there, "PUT", earlier, b"before") == (200, b"")
    there.renew()
    assert ask(there, "PUT", earlier, b"late") == (404, b"")
    assert there.missing(1, "carme-end") == [0]
    assert ask(there, "PUT", known(there, "carme-end", "0"), b"now") == (200, b"")


class Told:
    """Unpickles to a call."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pytest.fail, ("something from the network was unpickled",)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/global/0", "/", "/worker_addresses/node1:0", "/x:1/global/0", "//global/0", "*"])
def test_a_stranger_gets_nothing_and_changes_nothing(there: Rendezvous, method: str, path: str) -> None:
    assert ask(there, "PUT", known(there, "global", "0"), b"mine")[0] == 200
    status, said = ask(there, method, path, pickle.dumps(Told()) if method == "PUT" else None)
    assert (status, said) == (404, b"")
    assert ask(there, "GET", known(there, "global", "0")) == (200, b"mine")


def test_what_a_rank_sends_is_not_looked_into(there: Rendezvous) -> None:
    assert ask(there, "PUT", known(there, "worker_addresses", "node1:0"), pickle.dumps(Told()))[0] == 200


def test_it_listens_on_its_one_address_alone() -> None:
    with Rendezvous("127.0.0.2") as there, pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", there.port), timeout=5).close()


def test_who_has_not_come_is_named_also_after_the_others_have_left(there: Rendezvous) -> None:
    for rank in (0, 2):
        ask(there, "PUT", known(there, "global", str(rank)), b"x")
    ask(there, "DELETE", known(there, "global", "0"))
    assert there.missing(4) == [1, 3]
    there.clear()
    assert there.missing(2) == [0, 1]


def test_too_much_is_refused_and_what_was_there_stays(there: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_VALUE_BYTES", 10)
    monkeypatch.setattr(rendezvous, "MAX_VALUES", 1)
    assert ask(there, "PUT", known(there, "global", "0"), b"x" * 11)[0] == 413
    assert ask(there, "PUT", known(there, "global", "0"), b"x" * 10)[0] == 200
    assert ask(there, "PUT", known(there, "global", "1"), b"y")[0] == 507
    assert ask(there, "GET", known(there, "global", "0")) == (200, b"x" * 10)


def test_a_hundred_ranks_come_at_once(there: Rendezvous) -> None:
    def come(rank: int) -> int:
        return ask(there, "PUT", known(there, "global", str(rank)), b"x")[0]

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(come, range(100))) == {200}
    assert there.missing(100) == []


def test_two_runs_know_nothing_of_each_other(there: Rendezvous) -> None:
    with Rendezvous("127.0.0.1") as other:
        assert other.port != there.port
        assert other.secret != there.secret
        path = known(there, "global", "0").replace(f":{there.port}", f":{other.port}")
        assert ask(other, "PUT", path, b"x")[0] == 404
