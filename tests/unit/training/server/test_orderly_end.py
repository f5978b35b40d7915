"""A session is put in order once, only where nothing is at work, and each step has its time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.server.orderly_end import LOG, OrderlyEnd, ServerParts, commands, run_command


class Server:
    """A Jupyter server whose parts are forged, with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kernels = [{"id": "k1", "execution_state": "idle"}, {"id": "k2", "execution_state": "idle"}]
        self.runs: list[dict[str, Any]] = []
        self.announced: list[tuple[str, float]] = []
        self.interrupted: list[str] = []
        self.on_interrupt = lambda: None
        self.on_announce = lambda: None
        self.books: list[tuple[str, float]] = [("b.ipynb", 200.0), ("a.ipynb", 100.0)]
        self.environ = {"CARME_SESSION": "one", "CARME_SESSION_FOLDER": str(home), "HOME": str(home)}

    async def interrupt(self, id: str) -> None:
        if id == "gone":
            raise KeyError(id)
        self.interrupted.append(id)
        self.on_interrupt()

    def announce(self, id: str, seconds: float) -> None:
        self.announced.append((id, seconds))
        self.on_announce()

    async def notebooks(self) -> list[tuple[str, float]]:
        return self.books

    def rows(self) -> Iterable[dict[str, Any]]:
        return self.runs

    def order(self, kernel_seconds: float = 1.0) -> OrderlyEnd:
        parts = ServerParts(lambda: self.kernels, lambda: [], self.rows, self.interrupt, self.notebooks, self.announce)
        return OrderlyEnd(parts, self.environ, run_seconds=1.0, kernel_seconds=kernel_seconds)

    def command(self, text: str) -> None:
        path = self.home / ".carme/before-end"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def run(id: str, state: str = "running", session: str = "one") -> dict[str, Any]:
    return {"id": id, "state": state, "session": session, "submitted": False}


async def test_kernels_are_interrupted_commands_run_and_the_last_saves_are_known(server: Server) -> None:
    server.kernels.append({"id": "gone", "execution_state": "idle"})
    server.command("echo saving; touch saved")
    found = await server.order().end("key", unless_at_work=True)
    assert server.interrupted == ["k1", "k2"]
    assert found == {
        **{"runs": 0, "runs_ended": 0, "kernels": 2},
        "commands": [{"name": "before-end", "status": 0, "seconds": 0}],
        "notebooks": [{"name": "a.ipynb", "saved": 100}, {"name": "b.ipynb", "saved": 200}],
    }
    assert (server.home / "saved").exists(), "it runs in the home"
    log = server.home / LOG
    assert (log.read_text(), log.stat().st_mode & 0o077) == ("saving\n", 0)


async def test_where_something_is_at_work_nothing_is_done(server: Server) -> None:
    server.command("touch saved")
    server.kernels[0]["execution_state"] = "busy"
    server.runs = [run("r1"), run("r2", session="another")]
    order = server.order()
    assert await order.end("key", unless_at_work=True) == {"at_work": {"kernels": 1, "runs": 1}}
    assert (server.interrupted, server.announced, (server.home / "saved").exists()) == ([], [], False)
    server.kernels[0]["execution_state"], server.runs = "idle", []
    assert "kernels" in await order.end("key", unless_at_work=True), "the same question is asked anew"


async def test_who_begins_to_work_while_commands_run_keeps_the_session(server: Server) -> None:
    server.command("echo x >> times")
    rows, seen = server.rows, []

    def began() -> Iterable[dict[str, Any]]:
        seen.append(1)
        return rows() if len(seen) == 1 else [run("r1")]

    server.rows = began  # type: ignore[method-assign]
    assert await server.order().end("key", unless_at_work=True) == {"at_work": {"runs": 1}}
    assert (server.home / "times").exists()


async def test_runs_are_told_to_save_and_those_that_do_not_end_are_not_waited_for(server: Server) -> None:
    server.runs = [run("r1"), run("r2"), run("old", "finished"), run("theirs", session="another")]
    server.on_announce = lambda: server.runs.__setitem__(0, run("r1", "finished"))
    found = await server.order().end("key", unless_at_work=False)
    assert server.announced == [("r1", 1.0), ("r2", 1.0)]
    assert (found["runs"], found["runs_ended"]) == (2, 1)


async def test_a_cell_may_handle_its_interrupt(server: Server) -> None:
    server.kernels[0]["execution_state"] = "busy"

    def soon() -> None:
        asyncio.get_running_loop().call_later(0.1, server.kernels[0].update, {"execution_state": "idle"})

    server.on_interrupt = soon
    began = asyncio.get_running_loop().time()
    await server.order(kernel_seconds=20).end("key", unless_at_work=False)
    assert asyncio.get_running_loop().time() - began < 10


async def test_the_same_question_is_answered_alike_and_does_nothing_twice(server: Server) -> None:
    server.command("echo x >> times")
    order = server.order()
    one, two = await asyncio.gather(*(order.end("key", unless_at_work=True) for _ in range(2)))
    assert one == two == await order.end("key", unless_at_work=True)
    assert (server.home / "times").read_text() == "x\n"
    await order.end("another", unless_at_work=True)
    assert (server.home / "times").read_text() == "x\nx\n"


async def test_work_that_began_after_the_first_answer_is_said_when_the_question_comes_again(server: Server) -> None:
    server.command("echo x >> times")
    order = server.order()
    assert "kernels" in await order.end("key", unless_at_work=True)
    server.kernels[0]["execution_state"] = "busy"
    assert await order.end("key", unless_at_work=True) == {"at_work": {"kernels": 1}}
    assert "kernels" in await order.end("another", unless_at_work=False), "who asks to end it in any case does"
    server.kernels[0]["execution_state"] = "idle"
    assert "kernels" in await order.end("key", unless_at_work=True)
    assert (server.home / "times").read_text() == "x\nx\nx\n", "its answer of then is no answer any more"


async def test_a_contents_manager_that_fails_costs_only_the_names(server: Server) -> None:
    def fail() -> Any:
        raise OSError("the home is away")

    server.notebooks = fail  # type: ignore[method-assign]
    assert (await server.order().end("key", unless_at_work=True))["notebooks"] == []


async def test_a_command_that_takes_too_long_is_ended_with_what_it_started(server: Server) -> None:
    script = server.home / "slow"
    script.write_text("#!/bin/sh\nsleep 987 &\necho $! > child\nwait\n")
    script.chmod(0o700)
    found = await run_command([str(script)], 0.3, server.environ)
    assert (found["name"], found["status"]) == ("slow", None)
    child = int((server.home / "child").read_text())

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    deadline = time.monotonic() + 20  # it is killed, and dies when it gets a processor
    while not has_ended() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert has_ended()


async def test_a_command_that_fails_or_is_none_has_no_good_status(server: Server) -> None:
    assert (await run_command(["/nowhere/x"], 5, server.environ))["status"] is None
    assert (await run_command(["/bin/false"], 5, server.environ))["status"] == 1


def test_the_users_own_command_runs_before_the_sites(server: Server) -> None:
    assert commands(server.environ) == []
    server.command("true")
    own = str(server.home / ".carme/before-end")
    site = json.dumps({"argv": ["/opt/save", "all"], "seconds": 7})
    assert commands({**server.environ, "CARME_BEFORE_END": site}) == [([own], 7.0), (["/opt/save", "all"], 7.0)]
    Path(own).chmod(0o600)
    assert commands(server.environ) == [], "it is not executable"
    assert commands({"CARME_BEFORE_END": "{"}) == []
