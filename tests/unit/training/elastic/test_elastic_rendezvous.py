"""A worker is told its place and when to come back; a stranger is told nothing, and nothing is unpickled."""

from __future__ import annotations

import http.client
import pickle
import threading
from collections.abc import Iterator

import pytest

from carme_hub.training.elastic import rendezvous
from carme_hub.training.elastic.membership import RELEASED, Assignment
from carme_hub.training.elastic.rendezvous import ASSIGNMENT, NEWS, RANK_AND_SIZE, ElasticRendezvous, WorkerClient
from carme_hub.training.run.messages import ConductorUnreachable


@pytest.fixture
def there() -> Iterator[ElasticRendezvous]:
    with ElasticRendezvous("127.0.0.1", 2, 4) as found:
        yield found


def ask(there: ElasticRendezvous, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", there.port, timeout=5)
    try:
        link.request(method, path, body)
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def workers(there: ElasticRendezvous, *names: str) -> list[WorkerClient]:
    for name in names:
        there.membership.add(name)
    return [WorkerClient(there.address, there.port, name) for name in names]


def together(*found: WorkerClient) -> list[Assignment]:
    threads = [threading.Thread(target=each.wait) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return [each.assignment for each in found]


def test_workers_wait_for_each_other_and_for_news(there: ElasticRendezvous) -> None:
    first, second = workers(there, "w0-0-0", "w1-0-1")
    assert sorted(place.rank for place in together(first, second)) == [0, 1]
    assert first.next_generation() == 0
    there.membership.leave("w1-0-1")
    assert (first.next_generation(), second.next_generation()) == (2, 2)
    assert second.wait() == RELEASED


def test_what_ranks_said_in_the_last_generation_is_forgotten_and_what_they_say_of_themselves_is_not(
    there: ElasticRendezvous,
) -> None:
    pair = workers(there, "a", "b")
    together(*pair)
    there.put("global", "0", b"address")
    there.put("carme", "0", b"hello")
    there.membership.leave("b")
    there.membership.add("c")
    third = WorkerClient(there.address, there.port, "c")
    assert pair[1].wait() == RELEASED
    together(pair[0], third)
    assert there.membership.generation == 2
    assert there.get("global", "0") is None
    assert there.missing(1) == [0], "nobody has come in this generation"
    assert there.get("carme", "0") == b"hello"


def test_horovods_own_question_is_answered(there: ElasticRendezvous) -> None:
    pair = workers(there, "a", "b")
    together(*pair)
    by_rank = {each.assignment.rank: each for each in pair}
    assert there.get(RANK_AND_SIZE, f"{by_rank[1].name}:0") == b"1,2,0,1,1,2"
    assert there.get(RANK_AND_SIZE, "nobody:0") == b"-1,0,0,1,-1,0"


class Told:
    """Unpickles to a call."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pytest.fail, ("something from the network was unpickled",)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
@pytest.mark.parametrize("path", [f"/{ASSIGNMENT}/a:0", f"/{NEWS}/a", f"/{RANK_AND_SIZE}/a:0", "/worker_addresses/a:0"])
@pytest.mark.parametrize("start", ["", "/x:1"])
def test_a_stranger_gets_nothing_and_changes_nothing(
    there: ElasticRendezvous, method: str, path: str, start: str
) -> None:
    there.membership.add("a")
    assert ask(there, method, start + path, pickle.dumps(Told()) if method == "PUT" else None) == (404, b"")
    assert there.membership.starting() == ["a"]


def test_a_worker_cannot_write_its_own_place(there: ElasticRendezvous) -> None:
    pair = workers(there, "a", "b")
    together(*pair)
    path = f"/{there.secret}:{there.port}"
    assert ask(there, "PUT", f"{path}/{RANK_AND_SIZE}/a:0", b"7,8,0,1,7,8")[0] == 200
    assert ask(there, "PUT", f"{path}/worker_addresses/a:0", pickle.dumps(Told()))[0] == 200
    assert there.get(RANK_AND_SIZE, "a:0") != b"7,8,0,1,7,8"


def test_a_worker_gives_up_when_its_conductor_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "UNREACHABLE_LIMIT", 0.0)
    with ElasticRendezvous("127.0.0.1", 1, 1) as there:
        worker = WorkerClient(there.address, there.port, "a")
    with pytest.raises(ConductorUnreachable):
        worker.wait()
    assert worker.next_generation() == 0
