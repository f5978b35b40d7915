"""A run with a fixed number of ranks is one step: all end well, or the first that did not is named.

It is in the session's own job where that has room, and otherwise in one companion that has as many nodes as it needs.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from carme_hub.training.run import messages
from carme_hub.training.run.placement import Place, Room, place
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.sharing import who_shares
from carme_hub.training.session.step_broker import Allocation, Broker, Step

from .conductor import Conductor, Failed, error_of
from .step import StartedStep

if TYPE_CHECKING:
    from .companion import CompanionJob

#: Seconds between two looks at what ranks said, and for which Slurm is waited for to say who died first.
OFTEN, SAID = 0.1, 1.5
#: What is raised where another rank has gone: seldom the cause.
_FOLLOWS = re.compile(
    r"connection (closed|reset|refused)|broken pipe|HorovodInternalError|DistBackendError|DistNetworkError|"
    r"DistStoreError|socket (error|timeout)|timed out|NCCL|gloo",
    re.IGNORECASE,
)
#: What srun says where it cannot load the plugin, and what that means.
_NO_PMIX = re.compile(r"Invalid MPI type|mpi plugin for mpi/|can not load PMIx|plugin name for mpi/pmix")
NO_PMIX = (
    "Slurm has no PMIx here, by which it tells MPI who is who. The administrator installs Slurm's PMIx plugin and the "
    "PMIx library on all nodes (srun --mpi=list has to name pmix; Debian: libpmix-dev). Until then use --backend "
    "torchrun or horovod, which need none."
)


class FixedSizeRun(Conductor):
    """Conducts such a run."""

    def __init__(self, run: Run, broker: Broker) -> None:
        super().__init__(run, broker)
        self._job: CompanionJob | None = None
        self._handle: StartedStep | None = None

    def play(self) -> None:
        """Start all ranks and wait for all of them."""
        there = place(self.asked, Room(len(self.allocation.nodes), self.allocation.gpus))
        if there.companion:
            from .companion import CompanionJob  # most runs need none

            self._job = CompanionJob(self)
            self.allocation_of_ranks = self._job.open(there)
        else:
            self.allocation_of_ranks = self.allocation
        nodes = self.allocation_of_ranks.nodes[: there.nodes]
        whole = len(nodes) == len(self.allocation_of_ranks.nodes)
        self.tell(gpus_per_task=there.gpus_per_task)
        self.standing.ranks([nodes[there.node_of(rank)] for rank in range(there.ranks)])
        self.standing.update(state="running", nodes=list(nodes), message=self._beside(there))
        self.standing.update(own_gpus=0 if there.companion else there.gpus)
        self.standing.count_gpus(there.gpus)
        step = Step(
            run=self.run.id,
            ranks=there.ranks,
            argv=self.argv("0"),
            nodes=() if whole else nodes,
            companion=self._job.id if self._job else "",
            gpus_per_node=there.gpus_per_node,
            mpi="pmix" if self.asked.backend == "mpi" else "none",
        )
        # What was told at first does not hold where a companion was waited for: the limit counts from here.
        self.tell_end(self.ends_at(self.allocation_of_ranks))
        self._handle = self.start_step(step, rank_of_task=lambda task: task)
        try:
            self._watch(self._handle, there, nodes)
        except Failed as error:
            if self._job is not None and (said := self._job.lost()):
                for each in self.standing.get()["ranks"]:  # none is at fault
                    if each["state"] == "failed":
                        self.standing.rank(each["rank"], state="stopped")
                raise Failed(said, error_of(None, "", "GPUsTakenAway", said)) from error
            raise

    def finish(self) -> None:
        """Say how each rank ended, and give the companion back."""
        for rank, how in self._handle.bad if self._handle else ():
            if status := _status(how):
                self.standing.rank(rank, exit=status)
        if self._job is not None:
            self._job.give_back()

    def where(self) -> Allocation:
        """Return the job in which the ranks are."""
        return self.broker.allocation(self._job.id if self._job else "")

    def _beside(self, there: Place) -> str:
        """Return what is to be said where another run of this session is on the same GPUs."""
        if there.companion or not there.gpus:
            return ""
        return who_shares(self.run, there.gpus_per_node, self.allocation.gpus)

    def _watch(self, handle: StartedStep, there: Place, nodes: Sequence[str]) -> None:
        """Return when all ranks have ended well."""
        limit, all_here = time.monotonic() + self.told["start_limit"], False
        beats = 0.0
        while (status := handle.wait(OFTEN)) is None:
            self.check()
            self._look_for_error(handle)
            if time.monotonic() > beats:
                self.standing.beats(self.rendezvous)
                beats = time.monotonic() + 2 * OFTEN
            if not all_here:
                missing = self.rendezvous.missing(there.ranks, messages.HELLO)
                all_here = not missing
                if missing and time.monotonic() > limit:
                    raise self._missing(missing, [nodes[there.node_of(rank)] for rank in missing])
        self._look_for_error(handle)
        if status:
            said = handle.said[-1] if handle.said else f"srun ended with status {status}."
            if any(_NO_PMIX.search(each) for each in handle.said):
                said = NO_PMIX
            raise Failed(f"The ranks did not end well. {said}", error_of(None, "", "Step", "\n".join(handle.said)))
        if quiet := self.rendezvous.missing(there.ranks, messages.END):
            rank = quiet[0]
            raise self._silent(rank, "ended before its code had, without an error: os._exit() was called")

    def _missing(self, missing: Sequence[int], nodes: Sequence[str]) -> Failed:
        who = ", ".join(f"{rank} (on {node})" for rank, node in zip(missing[:8], nodes, strict=False))
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        came = "Rank" if len(missing) == 1 else "Ranks"
        message = (
            f"{came} {who}{more} did not come within {self.told['start_limit']:.0f} s. Is the node overloaded, or does "
            "its container not start? What it wrote is in its log."
        )
        return Failed(message, error_of(missing[0], nodes[0], "NotStarted", message, self.last_lines(missing[0])))

    # -- whose fault it is --------------------------------------------------------------------------------------------

    def _look_for_error(self, handle: StartedStep) -> None:
        """Raise the error of the rank that failed first, where one did."""
        errors = self._errors()
        if not errors and not handle.bad:
            return
        end = time.monotonic() + SAID
        # One that died without a word is known from Slurm only, a moment after the others lost their connection to it.
        while (errors := self._errors()) and all(map(follows, errors)) and not handle.bad and time.monotonic() < end:
            handle.wait(OFTEN / 2)
        cause = next((each for each in errors if not follows(each)), None)
        if cause is None and handle.bad:
            rank, how = handle.bad[0]
            if self._end_of_rank(rank) is None:
                raise self._silent(rank, _how(how))
        if cause is None and not errors:
            # Slurm was quicker than the rank's last word, or it ended well and its container did not.
            rank, how = handle.bad[0]
            raise self._silent(rank, _how(how))
        error = cause or errors[0]
        self.standing.rank(error["rank"], state="failed")
        where = f"rank {error['rank']}" + (f" on {error['node']}" if error["node"] else "")
        raise Failed(f"{error['type']} in {where}: {error['message']}"[:500], error)

    def _errors(self) -> list[State]:
        """Return the errors of ranks in the order in which they came."""
        ends = [self._end_of_rank(int(rank)) for rank in self.rendezvous.came(messages.END)]
        return [end["error"] for end in ends if end is not None and not end["ok"]]

    def _end_of_rank(self, rank: int) -> State | None:
        return messages.heard(self.rendezvous, messages.END, rank)

    def _silent(self, rank: int, how: str) -> Failed:
        node = next((each["node"] for each in self.standing.get()["ranks"] if each["rank"] == rank), "")
        self.standing.rank(rank, state="failed")
        message = f"Rank {rank} on {node} {how}."
        return Failed(message, error_of(rank, node, "Ended", message, self.last_lines(rank)))


def follows(error: State) -> bool:
    return bool(_FOLLOWS.search(f"{error['type']}: {error['message']}"))


def _status(said: str) -> int:
    match = re.fullmatch(r"Exited with exit code (\d+)", said)
    return int(match[1]) if match else 0


def _how(said: str) -> str:
    """Return how a rank ended in words, from Slurm's: ``Exited with exit code 137``."""
    status = _status(said)
    if status > 128:
        try:
            name = signal.Signals(status - 128).name
        except ValueError:
            name = f"signal {status - 128}"
        memory = "; often there was too little memory" if name == "SIGKILL" else ""
        return f"was killed by {name} and said nothing{memory}"
    return f"ended with exit status {status} and said nothing" if status else f"ended: {said}"
