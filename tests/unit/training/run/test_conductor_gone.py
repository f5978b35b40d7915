"""A run's port is anybody's once its conductor is gone: no rank takes another program's word for its conductor's."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Iterator

import pytest

from carme_hub.training.elastic import rendezvous
from carme_hub.training.elastic.rendezvous import ElasticRendezvous, WorkerClient
from carme_hub.training.run.messages import BROADCAST, HELLO, MAX_ANSWER, ConductorUnreachable, RendezvousClient
from carme_hub.training.run.rendezvous import Rendezvous


class Told:
    """Unpickles to a call."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pytest.fail, ("something from the network was unpickled",)


@contextlib.contextmanager
def another_program(port: int, body: bytes) -> Iterator[None]:
    """Answer every request at a port with these bytes, as another user's program may."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        over = threading.Event()
        listening.settimeout(0.1)

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    line, _ = listening.accept()
                    with line:
                        line.recv(65536)
                        line.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(10)


BODIES = {
    "a pickle": pickle.dumps(Told()),
    "a list": b"[1, 2]",
    "no text": b"\xff\xfe",
    "too much": b" " * (MAX_ANSWER + 65536) + b"{}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_another_program_says_in_its_place_is_no_word_of_the_conductor(body: bytes) -> None:
    with Rendezvous("127.0.0.1") as there:
        rank = RendezvousClient(there.address, there.port, timeout=5)
    with another_program(rank.port, body), pytest.raises(ConductorUnreachable):
        rank.get(BROADCAST, "all")


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_worker_takes_no_place_from_another_program(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "UNREACHABLE_LIMIT", 0.0)
    with ElasticRendezvous("127.0.0.1", 1, 1) as there:
        worker = WorkerClient(there.address, there.port, "a")
    with another_program(worker.port, body):
        assert worker.next_generation() == 0
        with pytest.raises(ConductorUnreachable):
            worker.wait()


def test_a_new_run_has_another_secret_so_one_that_leaked_is_worth_nothing() -> None:
    with Rendezvous("127.0.0.1") as first:
        pass
    with Rendezvous("127.0.0.1") as second:
        leaked = RendezvousClient(first.address.replace(str(first.port), str(second.port), 1), second.port)
        assert leaked.get(BROADCAST, "all") is None
        with pytest.raises(ConductorUnreachable):
            leaked.put(HELLO, 0, {"node": "of a stranger"})
        assert second.get(HELLO, "0") is None
