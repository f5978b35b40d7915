"""A forged hub and Slurm for rolling updates: nodes with jobs that end, acts that are kept, chosen outages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from carme_hub.cli.hub_client import HubRefused, HubUnreachable
from carme_hub.cli.nodes.hub_nodes import NodeNow
from carme_hub.cli.nodes.progress_file import ProgressFolder
from carme_hub.cli.nodes.rolling import RollingUpdate
from carme_hub.domain.nodes import progress as steps
from carme_hub.domain.nodes.plan import Plan, parse_plan
from carme_hub.domain.nodes.progress import Progress


class HubThatKeepsActs:
    """The hub: nodes as Slurm shows them, and what it was asked. ``silent``: so many requests are not answered."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: NodeNow(name, ("idle",), False, "", 0, 0) for name in names}
        self.users: dict[str, list[str]] = {}
        self.acts: list[tuple[str, ...]] = []
        self.messages: dict[str, tuple[str, str]] = {}
        self.silent = 0
        self.refuses: dict[str, HubRefused] = {}
        self.most_drained = 0
        self.looks: dict[str, int] = {}
        self.busy_for: dict[str, int] = {}

    def _act(self, *words: str) -> None:
        if self.silent:
            self.silent -= 1
            raise HubUnreachable("the hub does not answer: Connection refused")
        if words[0] in self.refuses:
            raise self.refuses[words[0]]
        self.acts.append(words)

    def done(self, what: str) -> list[tuple[str, ...]]:
        return [act[1:] for act in self.acts if act[0] == what]

    async def node(self, name: str) -> NodeNow | None:
        if self.silent:
            self.silent -= 1
            raise HubUnreachable("the hub does not answer: Connection refused")
        self.looks[name] = self.looks.get(name, 0) + 1
        found = self.nodes.get(name)
        if found is not None and found.jobs and self.looks[name] > self.busy_for.get(name, 10**9):
            found = self.nodes[name] = replace(found, jobs=0, cpus_used=0, state=("idle", "drain"))
        return found

    async def users_on(self, name: str) -> tuple[int, Sequence[str]]:
        return self.nodes[name].jobs, self.users.get(name, [])

    async def drain(self, name: str, reason: str) -> None:
        self._act("drain", name, reason)
        words = reason.replace("carme-update failed: ", "Update failed: ").replace("carme-update: ", "Update: ")
        before = self.nodes[name]
        state = (before.state[0], *({"drain"} | set(before.state[1:])))
        self.nodes[name] = replace(before, drained=True, why=f"{words} (ada)", state=state)
        out = [each for each in self.nodes.values() if each.drained and not each.why.startswith("Update failed")]
        self.most_drained = max(self.most_drained, len(out))

    async def resume(self, name: str, reason: str) -> None:
        self._act("resume", name, reason)
        self.nodes[name] = replace(self.nodes[name], drained=False, why="", state=("idle",))

    async def tell(self, name: str, text: str, reason: str, ends: float, *, mail: bool) -> str:
        self._act("tell", name, text)
        if not self.nodes[name].jobs:
            return ""
        self.messages[f"m-{name}-{len(self.messages)}"] = (name, text)
        return list(self.messages)[-1]

    async def told(self, name: str, text: str, since: float) -> str:
        return next((id for id, found in self.messages.items() if found == (name, text)), "")

    async def withdraw(self, message: str, reason: str) -> None:
        self._act("withdraw", message)

    async def stop_sessions(self, name: str, reason: str) -> int:
        self._act("stop", name, reason)
        self.nodes[name] = replace(self.nodes[name], jobs=0, cpus_used=0, state=("idle", "drain"))
        return 1

    async def note(self, name: str, reason: str, did: str, outcome: str) -> None:
        self._act("note", name, did, outcome)

    async def reserve(self, name: str, start: float, seconds: int, title: str, key: str) -> str:
        self._act("reserve", name, str(seconds))
        return f"r-{name}"

    async def unreserve(self, id: str, reason: str, key: str) -> None:
        self._act("unreserve", id)

    def occupy(self, name: str, *users: str, until_look: int = 10**9) -> None:
        """Have jobs of these users on a node, until it has been looked at so many times."""
        self.nodes[name] = replace(self.nodes[name], state=("mixed",), jobs=len(users), cpus_used=1)
        self.users[name], self.busy_for[name] = list(users), until_look


class Site:
    """One update of a forged site; the command appends the node to a file, and fails on nodes that have a mark."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.hub, self.said = folder, HubThatKeepsActs(*names), list[str]()
        self.updated, self.marks = folder / "updated", folder / "marks"
        self.marks.mkdir()
        self.store = ProgressFolder(folder / "plan.yaml.update")

    def plan(self, **changes: object) -> Plan:
        code = (
            f"import sys, pathlib; node = sys.argv[1]; open({str(self.updated)!r}, 'a').write(node + '\\n'); "
            f"print('updating', node); sys.exit(pathlib.Path({str(self.marks)!r}, node).exists() and 3)"
        )
        data = {
            "title": "Kernel",
            "wait": "8h",
            "command": {"argv": [sys.executable, "-c", code, "{node}"], "limit": "30 s"},
            "groups": [{"nodes": list(self.hub.nodes)}],
            **changes,
        }
        return parse_plan(data, "UTC")

    def check(self, code: str, within: str = "20 s") -> dict[str, object]:
        return {"argv": [sys.executable, "-c", code, "{node}"], "limit": "20 s", "within": within}

    def update(self, plan: Plan, progress: Progress | None = None, clock: object = None) -> RollingUpdate:
        """Return the update, which goes on from what is stored."""
        self.store.path.mkdir(exist_ok=True)
        earlier = progress or self.store.read()
        found = steps.continued(plan, earlier) if earlier is not None else steps.begin(plan, 1_000.0)
        more = {"clock": clock} if clock is not None else {}
        return RollingUpdate(plan, self.hub, self.store, found, self.said.append, every=0.02, **more)  # type: ignore[arg-type]

    async def run(self, plan: Plan, progress: Progress | None = None, clock: object = None) -> dict[str, str]:
        """Run it to its end, and return the stage of each node."""
        found = await self.update(plan, progress, clock).run()
        return {name: one.stage.value for name, one in found.nodes.items()}

    @property
    def ran(self) -> list[str]:
        return self.updated.read_text().split() if self.updated.exists() else []
