"""A session with a notebook, as a user who trains uses it: tests run and interrupt cells, and inspect the result."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from .hang_report import hang_report
from .hub import Hub


@dataclass
class CellResult:
    """The result of a cell.

    Attributes:
        out: its output. errors: tracebacks, one string each. shown: MIME bundles of its displays, in their last state;
        ``updates``: how often one was updated. given_up: its kernel was ended, and no more output comes.
    """

    out: str = ""
    errors: list[str] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    updates: int = 0
    done: bool = False
    given_up: bool = False

    @property
    def error(self) -> str:
        """Return all tracebacks, "" where there is none."""
        return "\n".join(self.errors)

    def text(self, kind: str = "text/plain") -> str:
        """Return all displays of one MIME type, one line each."""
        return "\n".join(str(bundle.get(kind, "")) for bundle in self.shown)


class Lab:
    """One server of one user, with a kernel.

    Args:
        kernel: name of the kernel. options: user options of the session: ``profile``, ``image``, ``gpus``, ….
    """

    def __init__(
        self, hub: Hub, user: str = "alice", name: str = "", *, kernel: str = "python3", **options: Any
    ) -> None:
        self.hub, self.user, self.name, self._kernel_name = hub, user, name, kernel
        hub.start_server(user, name, **{"profile": "a100", "image": "training", "cpus": 4, **options})
        self.kernel = hub.new_kernel(user, name, kernel)
        self._background: list[CellResult] = []

    # -- cells --------------------------------------------------------------------------------------------------------

    def run(self, code: str, timeout: float = 60) -> CellResult:
        """Run one cell to its end; fail after ``timeout`` seconds, with what the user's processes do then."""
        result = CellResult()
        try:
            asyncio.run(asyncio.wait_for(self._run(code, result), timeout))
        except TimeoutError:
            report = hang_report(self.user)
            raise AssertionError(f"no end after {timeout} s: {code!r}\n{result}\n{report}") from None
        return result

    def begin(self, code: str, timeout: float = 120) -> tuple[CellResult, threading.Thread]:
        """Run one cell in the background; return its result so far, and the thread that reads it."""
        result = CellResult()
        self._background.append(result)

        def read() -> None:
            try:
                asyncio.run(asyncio.wait_for(self._run(code, result), timeout))
            except (AssertionError, TimeoutError):
                if not result.given_up:
                    raise

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return result, thread

    def check(self, code: str, timeout: float = 60) -> str:
        """Run one cell that must not fail, and return its output."""
        result = self.run(code, timeout)
        assert not result.errors, result.error
        return result.out

    def check_in_thread(self, code: str, timeout: float = 60) -> str:
        """Run one cell that must not fail, and return its output; in a thread, where Playwright has this one's loop."""
        result, thread = self.begin(code, timeout)
        thread.join(timeout + 10)
        assert result.done
        assert not result.errors, result.error
        return result.out

    def newest_run(self) -> dict[str, Any]:
        """Return the state of the newest run of this session; its user may have others elsewhere."""
        code = (
            "import json, os\nfrom carme_hub.training import distributed\n"
            "mine = [each for each in distributed.runs().states() if each['session'] == os.environ['CARME_SESSION']]\n"
            "print(json.dumps(mine[0]))"
        )
        return dict(json.loads(self.check(code).strip().splitlines()[-1]))

    def command(self, *argv: str, timeout: float = 120) -> tuple[int, str]:
        """Run a program in the session's container; return exit status and output, including stderr."""
        code = (
            "import json, subprocess\n"
            f"done = subprocess.run({list(argv)!r}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)\n"
            "print(json.dumps([done.returncode, done.stdout]))"
        )
        status, out = json.loads(self.check(code, timeout).strip().splitlines()[-1])
        return int(status), str(out)

    async def _run(self, code: str, result: CellResult) -> None:
        async with self.hub.channel(self.user, self.kernel, self.name) as socket:
            id = uuid.uuid4().hex
            header = {"msg_id": id, "msg_type": "execute_request", "username": "test", "session": id, "version": "5.3"}
            content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
            message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
            await socket.write_message(json.dumps(message))
            displays: dict[str, int] = {}
            while not result.done:
                raw = await socket.read_message()
                assert raw is not None, f"the kernel's connection closed; so far {result}"
                answer = json.loads(raw)
                if answer.get("parent_header", {}).get("msg_id") == id:
                    _add_message(result, displays, answer["msg_type"], answer["content"])

    # -- faults -------------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Interrupt the kernel, as the notebook's stop button does."""
        answer = self._kernel("POST", "/interrupt")
        assert answer.status == 204, answer

    def restart_kernel(self) -> None:
        """Restart the kernel."""
        answer = self._kernel("POST", "/restart")
        assert answer.status == 200, answer

    def end_kernel(self) -> None:
        """End the kernel, as closing a notebook does, and start another."""
        for result in self._background:
            result.given_up = True  # a kernel that is killed sends no last message
        answer = self._kernel("DELETE", "")
        assert answer.status == 204, answer
        self.kernel = self.hub.new_kernel(self.user, self.name, self._kernel_name)

    def _kernel(self, method: str, what: str) -> Any:
        return self.hub.server_api(method, self.user, self.name, f"/api/kernels/{self.kernel}{what}")

    # -- from outside -------------------------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """Return the session's UUID."""
        return self.check("import os; print(os.environ['CARME_SESSION'])").strip()

    def steps(self) -> list[str]:
        """Return the names of all steps of this user's jobs, except those that Slurm creates for every job."""
        result = self.hub.cluster.run("squeue", "--steps", "--noheader", "--user", self.user, "--format=%i %j").stdout
        return [line for line in result.splitlines() if line.strip() and ".batch" not in line and ".extern" not in line]

    def wait_no_step(self, limit: float = 10) -> float:
        """Wait until no step is left, and return the seconds."""
        began = time.monotonic()
        while left := self.steps():
            assert time.monotonic() < began + limit, f"steps are left: {left}"
            time.sleep(0.05)
        return time.monotonic() - began

    def stop(self) -> None:
        """End the session."""
        self.hub.stop_server(self.user, self.name)


def _add_message(result: CellResult, displays: dict[str, int], kind: str, content: dict[str, Any]) -> None:
    """Add one message of the kernel to the result of a cell."""
    if kind == "stream":
        result.out += content["text"]
    elif kind == "error":
        result.errors.append("\n".join(content["traceback"]))
    elif kind in ("display_data", "execute_result"):
        name = content.get("transient", {}).get("display_id")
        if name is not None:
            displays[name] = len(result.shown)
        result.shown.append(content["data"])
    elif kind == "update_display_data":
        place = displays.get(content["transient"]["display_id"])
        if place is not None:
            result.shown[place] = content["data"]
            result.updates += 1
    elif kind == "status" and content["execution_state"] == "idle":
        result.done = True
