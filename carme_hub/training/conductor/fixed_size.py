"""A run with a fixed number of ranks: one step, in which all ranks succeed or the first failed one is reported.

The step is in the session's own job where that has enough GPUs, and otherwise in one companion with all its nodes.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from carme_hub.training.run import messages
from carme_hub.training.run.placement import JobCapacity, Placement, place_ranks
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.sharing import sharing_message
from carme_hub.training.session.step_broker import Allocation, Broker, Step

from .conductor import Conductor, Failed, error_entry
from .mpi_start import MPIStart
from .step import StartedStep

if TYPE_CHECKING:
    from .companion import CompanionJob

#: Seconds between two checks of the ranks' reports, and for Slurm to report which task failed first.
POLL_INTERVAL, EXIT_REPORT_SECONDS = 0.1, 1.5
#: Errors that a rank raises because another rank is gone; seldom the cause.
_CONSEQUENCES = re.compile(
    r"connection (closed|reset|refused)|broken pipe|HorovodInternalError|DistBackendError|DistNetworkError|"
    r"DistStoreError|socket (error|timeout)|timed out|NCCL|gloo",
    re.IGNORECASE,
)
#: What srun prints where it cannot load the PMIx plugin, and the message for it.
_NO_PMIX = re.compile(r"Invalid MPI type|mpi plugin for mpi/|can not load PMIx|plugin name for mpi/pmix")
NO_PMIX = (
    "Slurm has no PMIx here, which MPI needs to number its ranks. An administrator installs Slurm's PMIx plugin and "
    "the PMIx library on all nodes (srun --mpi=list has to name pmix; Debian: libpmix-dev). Until then use --backend "
    "torchrun or horovod, which need none."
)
#: Advice for ranks that do not start, and the message where Slurm ends the step before any rank and calls it a success.
LATE_RANK = "Is the node overloaded, or does its container not start? Its output is in its log."
LATE_MPI = (
    "All ranks wait in MPI_Init. Run it again; if it repeats, the administrator finds what PMIx says in slurmd's log "
    "on these nodes."
)
NO_RANK = (
    "Slurm started no rank, and gives no reason. Run it again; if it repeats, the administrator finds the reason in "
    "slurmd's log on the nodes of the run."
)


class FixedSizeRun(Conductor):
    """Conducts a run with a fixed number of ranks."""

    def __init__(self, run: Run, broker: Broker) -> None:
        super().__init__(run, broker)
        self._job: CompanionJob | None = None
        self._handle: StartedStep | None = None

    def run_ranks(self) -> None:
        """Start all ranks and wait for them."""
        placement = place_ranks(self.options, JobCapacity(len(self.allocation.nodes), self.allocation.gpus))
        if placement.companion:
            from .companion import CompanionJob  # imported here: most runs need none

            self._job = CompanionJob(self)
            self.allocation_of_ranks = self._job.open(placement)
        else:
            self.allocation_of_ranks = self.allocation
        nodes = self.allocation_of_ranks.nodes[: placement.nodes]
        whole = len(nodes) == len(self.allocation_of_ranks.nodes)
        self.write_run_config(gpus_per_task=placement.gpus_per_task)
        self.state.set_ranks([nodes[placement.node_of(rank)] for rank in range(placement.ranks)])
        self.state.update(state="running", nodes=list(nodes), message=self._sharing_message(placement))
        self.state.update(own_gpus=0 if placement.companion else placement.gpus)
        self.state.set_gpus(placement.gpus)
        step = Step(
            run=self.run.id,
            ranks=placement.ranks,
            argv=self.argv("0"),
            nodes=() if whole else nodes,
            companion=self._job.id if self._job else "",
            gpus_per_node=placement.gpus_per_node,
            mpi="pmix" if self.options.backend == "mpi" else "none",
        )
        # Where a companion was waited for, the deadline that was published first is wrong: the limit counts from here.
        self.publish_deadline(self.deadline(self.allocation_of_ranks))
        self._handle = self.start_step(step, rank_of_task=lambda task: task)
        try:
            self._watch(self._handle, placement, nodes)
        except Failed as error:
            if self._job is not None and (text := self._job.lost_message()):
                for each in self.state.get()["ranks"]:  # no rank is at fault
                    if each["state"] == "failed":
                        self.state.update_rank(each["rank"], state="stopped")
                raise Failed(text, error_entry(None, "", "GPUsTakenAway", text)) from error
            raise

    def finish(self) -> None:
        """Record the exit status of each failed rank, and give the companion back."""
        for rank, how in self._handle.failed_tasks if self._handle else ():
            if status := _exit_status(how):
                self.state.update_rank(rank, exit=status)
        if self._job is not None:
            self._job.give_back()

    def ranks_allocation(self) -> Allocation:
        """Return the allocation of the job that has the ranks."""
        return self.broker.allocation(self._job.id if self._job else "")

    def _sharing_message(self, placement: Placement) -> str:
        """Return a message where another run of this session uses the same GPUs."""
        if placement.companion or not placement.gpus:
            return ""
        return sharing_message(self.run, placement.gpus_per_node, self.allocation.gpus)

    def _watch(self, handle: StartedStep, placement: Placement, nodes: Sequence[str]) -> None:
        """Return when all ranks have succeeded."""
        limit, all_here = time.monotonic() + self.request["start_limit"], False
        mpi = MPIStart(placement.ranks, self.request["start_limit"])
        beats = 0.0
        while (status := handle.wait(POLL_INTERVAL)) is None:
            self.check()
            self._look_for_error(handle)
            if time.monotonic() > beats:
                self.state.refresh_ranks(self.rendezvous)
                beats = time.monotonic() + 2 * POLL_INTERVAL
            if not all_here:
                missing = self.rendezvous.missing(placement.ranks, messages.HELLO)
                all_here = not missing
                if missing and time.monotonic() > limit:
                    raise self._late_ranks("did not come", LATE_RANK, missing, nodes, placement)
            elif late := mpi.overdue(self.rendezvous):
                raise self._late_ranks("did not start MPI", LATE_MPI, late, nodes, placement)
        self._look_for_error(handle)
        if status:
            text = handle.messages[-1] if handle.messages else f"srun ended with status {status}."
            if any(_NO_PMIX.search(each) for each in handle.messages):
                text = NO_PMIX
            raise Failed(f"The ranks failed. {text}", error_entry(None, "", "Step", "\n".join(handle.messages)))
        if len(self.rendezvous.missing(placement.ranks, messages.HELLO)) == placement.ranks:
            raise Failed(NO_RANK, error_entry(None, "", "NotStarted", NO_RANK))
        if quiet := self.rendezvous.missing(placement.ranks, messages.END):
            rank = quiet[0]
            raise self._silent_failure(rank, "ended before its code did, without an error: os._exit() was called")

    def _late_ranks(
        self, did: str, advice: str, ranks: Sequence[int], nodes: Sequence[str], placement: Placement
    ) -> Failed:
        where = [nodes[placement.node_of(rank)] for rank in ranks]
        who = ", ".join(f"{rank} (on {node})" for rank, node in zip(ranks[:8], where, strict=False))
        more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        noun = "Rank" if len(ranks) == 1 else "Ranks"
        message = f"{noun} {who}{more} {did} within {self.request['start_limit']:.0f} s. {advice}"
        return Failed(message, error_entry(ranks[0], where[0], "NotStarted", message, self.last_lines(ranks[0])))

    # -- the cause of a failure ---------------------------------------------------------------------------------------

    def _look_for_error(self, handle: StartedStep) -> None:
        """Raise the error of the rank that failed first, where one failed."""
        errors = self._errors()
        if not errors and not handle.failed_tasks:
            return
        end = time.monotonic() + EXIT_REPORT_SECONDS
        # Only Slurm reports a rank that died silently, a moment after the other ranks lost their connection to it.
        while (
            (errors := self._errors())
            and all(map(is_consequence, errors))
            and not handle.failed_tasks
            and time.monotonic() < end
        ):
            handle.wait(POLL_INTERVAL / 2)
        cause = next((each for each in errors if not is_consequence(each)), None)
        if cause is None and handle.failed_tasks:
            rank, how = handle.failed_tasks[0]
            if self._end_of_rank(rank) is None:
                raise self._silent_failure(rank, _exit_text(how))
        if cause is None and not errors:
            # Slurm was faster than the rank's report, or the rank succeeded and its container failed.
            rank, how = handle.failed_tasks[0]
            raise self._silent_failure(rank, _exit_text(how))
        error = cause or errors[0]
        self.state.update_rank(error["rank"], state="failed")
        where = f"rank {error['rank']}" + (f" on {error['node']}" if error["node"] else "")
        raise Failed(f"{error['type']} in {where}: {error['message']}"[:500], error)

    def _errors(self) -> list[State]:
        """Return the errors of the ranks in the order in which they were reported."""
        ends = [self._end_of_rank(int(rank)) for rank in self.rendezvous.arrivals(messages.END)]
        return [end["error"] for end in ends if end is not None and not end["ok"]]

    def _end_of_rank(self, rank: int) -> State | None:
        return messages.read_message(self.rendezvous, messages.END, rank)

    def _silent_failure(self, rank: int, how: str) -> Failed:
        node = next((each["node"] for each in self.state.get()["ranks"] if each["rank"] == rank), "")
        self.state.update_rank(rank, state="failed")
        message = f"Rank {rank} on {node} {how}."
        return Failed(message, error_entry(rank, node, "Ended", message, self.last_lines(rank)))


def is_consequence(error: State) -> bool:
    return bool(_CONSEQUENCES.search(f"{error['type']}: {error['message']}"))


def _exit_status(text: str) -> int:
    match = re.fullmatch(r"Exited with exit code (\d+)", text)
    return int(match[1]) if match else 0


def _exit_text(text: str) -> str:
    """Describe how a rank ended, from Slurm's line: ``Exited with exit code 137``."""
    status = _exit_status(text)
    if status > 128:
        try:
            name = signal.Signals(status - 128).name
        except ValueError:
            name = f"signal {status - 128}"
        memory = "; a frequent cause is too little memory" if name == "SIGKILL" else ""
        return f"was killed by {name} without an error message{memory}"
    return f"ended with exit status {status} without an error message" if status else f"ended: {text}"
