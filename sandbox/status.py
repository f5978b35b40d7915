"""The status of a sandbox: its processes, and its nodes as Slurm reports them. Read only, for any user."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.processes import State


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of the sandbox. ``pid`` is 0 when it does not run."""

    name: str
    state: State
    pid: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One virtual node with its state in Slurm; ``gpus`` are virtual GPUs, type and count."""

    name: str
    state: str
    gpus: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a sandbox at one moment.

    Attributes:
        up: at least one daemon was started and not stopped.
        crashed: names of processes that were started and have ended by themselves.
    """

    state_folder: str
    release: str
    rootless: bool
    processes: tuple[ProcessStatus, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    crashed: tuple[str, ...] = field(default=())

    @property
    def up(self) -> bool:
        return any(process.state != "not started" for process in self.processes)

    def document(self) -> dict[str, object]:
        """Return the status as a JSON document, for ``--json``."""
        return {
            "state_folder": self.state_folder,
            "slurm": self.release,
            "rootless": self.rootless,
            "up": self.up,
            "crashed": list(self.crashed),
            "processes": [
                {"name": p.name, "state": p.state, "pid": p.pid, "since": int(p.since)} for p in self.processes
            ],
            "nodes": [{"name": n.name, "state": n.state, "virtual_gpus": dict(n.gpus)} for n in self.nodes],
        }

    def text(self) -> str:
        """Return the status as text."""
        lines = [f"Sandbox in {self.state_folder}, Slurm {self.release or 'unknown'}"]
        if not self.up:
            return lines[0] + ": down\n"
        for process in self.processes:
            pid = str(process.pid) if process.pid else "-"
            lines.append(f"  {process.name:<16} {pid:>8}  {process.state}")
        for node in self.nodes:
            gpus = ", ".join(f"{count} × {kind}" for kind, count in node.gpus)
            lines.append(f"  {node.name:<16} {node.state:<10} {gpus} (virtual GPUs)")
        if self.crashed:
            again = Layout(Path(self.state_folder)).command("up")
            lines.append(f"Crashed: {', '.join(self.crashed)}. `{again}` starts them again.")
        return "\n".join(lines) + "\n"
