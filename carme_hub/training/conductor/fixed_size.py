"""A run with a fixed number of ranks: all of them succeed, or the first failed one is reported.

They are a step in the session's own job where that has enough GPUs, or one in a companion, or both: then the first
ranks are in the session's own job, and the numbers of all are as if they were one step (``rank.numbering``).
"""

from __future__ import annotations

import contextlib
import operator
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from carme_hub.training.run import messages, results
from carme_hub.training.run.output import TaskEnd
from carme_hub.training.run.placement import JobCapacity, Placement, place_ranks
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.session.step_broker import Allocation, Broker, Step

from .cause import (
    OUT_OF_MEMORY,
    SilentEnd,
    assertion_text,
    echoes,
    end_text,
    exit_status,
    is_consequence,
    is_fault_of_node,
    last_words,
    out_of_memory_text,
    says_out_of_memory,
    silent_ends,
)
from .conductor import Conductor, Failed, error_entry
from .mpi_start import MPIStart
from .sharing import sharing_message
from .step import StartedStep, StartedSteps

if TYPE_CHECKING:
    from .companion import CompanionJob

#: Seconds between two checks of the ranks' reports, and for a rank that ended without a report to become known after
#: others have lost their connection to it: the container of a killed rank takes a moment to end.
POLL_INTERVAL, SILENT_END_SECONDS = 0.1, 3.0
#: Seconds for the others to report that they have lost a rank that ended without a report; then they are ended.
ECHO_SECONDS = 1.0
#: Type of the error of a run whose companion has ended.
GPUS_TAKEN_AWAY = "GPUsTakenAway"
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
        self._handle: StartedStep | StartedSteps | None = None
        self._placement: Placement
        self._restarts: list[State] = []
        self._bad_nodes: set[str] = set()
        self._replaced = ""  # the companion that was given back for a restart

    def run_ranks(self) -> None:
        """Start all ranks and wait for them; start them again after a failure, as often as was asked."""
        own = self.allocation
        self._placement = place_ranks(self.options, JobCapacity(len(own.nodes), own.gpus, own.cpus))
        while True:
            try:
                return self._run_once(self._placement)
            except Failed as error:
                if not self._may_restart(error):
                    raise
                self._prepare_restart(error)

    def _run_once(self, placement: Placement) -> None:
        if placement.companion and self._job is None:
            from .companion import CompanionJob  # imported here: most runs need none

            self._job = CompanionJob(self, len(self._restarts), self._replaced)
            exclude = self.allocation.nodes if self.options.other_nodes else ()
            self.allocation_of_ranks = self._both(placement, self._job.open(placement, exclude, self._bad_nodes))
        elif not placement.companion:
            self.allocation_of_ranks = self.allocation
        nodes_of_parts = [self._choose_nodes(part) for part in placement.parts]
        nodes = [node for each in nodes_of_parts for node in each]
        restarts = len(self._restarts)
        self.write_run_config(
            gpus_per_task=placement.gpus_per_task,
            restarts=restarts,
            max_restarts=self.options.max_restarts,
            parts=[part.tasks() for part in placement.parts] if placement.own else [],
        )
        self.state.set_ranks([nodes[placement.node_of(rank)] for rank in range(placement.size)])
        self.state.update(state="running", nodes=list(dict.fromkeys(nodes)), message=self._sharing_message(placement))
        self.state.update(own_gpus=sum(part.gpus for part in placement.parts if not part.companion))
        self.state.set_gpus(sum(part.gpus for part in placement.parts))
        # Where a companion was waited for, the deadline that was published first is wrong: the limit counts from here.
        self.started = self.started or time.monotonic()  # so that what is published first stays true
        self.publish_deadline(self.deadline(self.allocation_of_ranks))
        steps, first = [], 0
        for part, of_part in zip(placement.parts, nodes_of_parts, strict=True):
            step = self._step_of(part, of_part, f"r{first}" if placement.own else "")
            steps.append(self.start_step(step, rank_of_task=partial(operator.add, first)))
            first += part.ranks
        handle = self._handle = steps[0] if len(steps) == 1 else StartedSteps(steps)
        try:
            self._watch(handle, placement, nodes)
        except Failed as error:
            if self._job is not None and (text := self._job.lost_message()):
                for each in self.state.get()["ranks"]:  # no rank is at fault
                    if each["state"] == "failed":
                        self.state.update_rank(each["rank"], state="stopped")
                raise Failed(text, error_entry(None, "", GPUS_TAKEN_AWAY, text)) from error
            raise

    def _step_of(self, part: Placement, nodes: tuple[str, ...], slot: str) -> Step:
        """Return the step of a part of the ranks."""
        whole = len(nodes) == len((self.allocation_of_ranks if part.companion else self.allocation).nodes)
        return Step(
            run=self.run.id,
            ranks=part.ranks,
            argv=self.argv(str(len(self._restarts))),
            nodes=() if whole else nodes,
            companion=self._job.id if self._job and part.companion else "",
            gpus_per_node=part.gpus_per_node,
            mpi="pmix" if self.options.backend == "mpi" else "none",
            slot=slot,
            # The conductor ends the others as soon as it knows the cause. Slurm would kill them at the first bad exit,
            # which is often that of a rank that only lost another one.
            kill_on_bad_exit=False,
            report_ends=True,
        )

    def _choose_nodes(self, part: Placement) -> tuple[str, ...]:
        """Return the nodes of a part: without those on which ranks did not start, where others are enough."""
        every = (self.allocation_of_ranks if part.companion else self.allocation).nodes
        good = tuple(node for node in every if node not in self._bad_nodes)
        return (good if len(good) >= part.nodes else every)[: part.nodes]

    def _both(self, placement: Placement, companion: Allocation) -> Allocation:
        """Return a companion's allocation; where ranks are in the session too, it ends with that at the latest."""
        known = [each for each in (companion.ends, self.allocation.ends) if each]
        return replace(companion, ends=min(known, default=0.0)) if placement.own else companion

    # -- restarts -----------------------------------------------------------------------------------------------------

    def _may_restart(self, failed: Failed) -> bool:
        """Return whether the ranks are started again: a rank failed, or its GPUs were taken away."""
        error = failed.error or {}
        at_fault = error.get("rank") is not None or error.get("type") == GPUS_TAKEN_AWAY
        return at_fault and len(self._restarts) < self.options.max_restarts and not self.stopping.is_set()

    def _prepare_restart(self, failed: Failed) -> None:
        """End what is left of the ranks, record the reason, and forget what they have said."""
        error, number = dict(failed.error or {}), len(self._restarts) + 1
        self._restarts.append({**error, "traceback": "", "at": time.time()})
        before = len(self._bad_nodes)
        if error.get("node") and is_fault_of_node(error):
            self._bad_nodes.add(str(error["node"]))
        elsewhere = len(self._bad_nodes) > before and self._needs_other_nodes()
        where = f", without {', '.join(sorted(self._bad_nodes))}" if elsewhere else ""
        text = f"Restart {number} of {self.options.max_restarts}{where}: {failed}"
        self.state.update(restarts=list(self._restarts), message=text)
        if self._handle is not None:
            self._handle.stop()
        for each in self.state.get()["ranks"]:
            self.output.write(each["rank"], f"[carme] {text}".encode())
            results.forget(self.run.folder, each["rank"])
            with contextlib.suppress(OSError):  # the reason of the restart is kept in the state
                file = self.run.folder / f"error-{each['rank']}.json"
                file.rename(file.with_suffix(f".{number}.json"))
        if (elsewhere or error.get("type") == GPUS_TAKEN_AWAY) and self._job is not None:
            from carme_hub.training.session.companions import NoHub

            self.state.set_gpus(0)  # until another companion has come
            with contextlib.suppress(NoHub):  # it is given back by a file, which the hub reads when it is there again
                self._job.give_back()
            self._replaced, self._job = self._job.id, None
        ends = self.rendezvous.get(messages.BROADCAST, "ends")
        self.forget_shells()
        self.rendezvous.renew()  # a rank that outlives its end reports nothing about the next attempt
        self.rendezvous.put(messages.BROADCAST, "ends", ends or b'{"at": 0}')
        self.check()

    def _needs_other_nodes(self) -> bool:
        """Return whether the companion has too few nodes without the bad ones."""
        nodes = self.allocation_of_ranks.nodes
        good = [node for node in nodes if node not in self._bad_nodes]
        return self._job is not None and len(good) < min(len(nodes), self._placement.nodes)

    def record_ends(self, end: State) -> None:
        """Record the exit status of each rank, and which ones only lost another."""
        if self._handle is not None:
            for rank, how in self._handle.failed_tasks:
                if status := exit_status(how):
                    self.state.update_rank(rank, exit=status)
            for each in self._handle.task_ends:
                self.state.update_rank(each.task, exit=each.status)
        if error := end.get("error"):
            self._add_echoes(end, error)

    def finish(self) -> None:
        """Give the companion back."""
        if self._job is not None:
            self._job.give_back()

    def _add_echoes(self, end: State, error: State) -> None:
        """Add to an error what is known only when all ranks have ended."""
        lines = self._handle.messages if self._handle else ()
        if error["type"] == "Ended" and "SIGKILL" in error["message"] and says_out_of_memory(lines):
            node = f" on {error['node']}" if error["node"] else ""
            error |= {"type": OUT_OF_MEMORY, "message": f"Rank {error['rank']}{node} {out_of_memory_text(0)}."}
            end["message"] = error["message"]
        if self._handle is not None and error["type"] != OUT_OF_MEMORY:
            for ended in self._handle.task_ends:  # a command, or a process below the rank, was killed
                if ended.task == error["rank"] and ended.out_of_memory:
                    error["message"] = f"{error['message']} (the memory of its job was used up)"
        if found := echoes(self._errors(), error["rank"]):
            error["echoes"] = found
        for each in found:
            self.state.update_rank(each["rank"], state="stopped")

    def ranks_allocation(self) -> Allocation:
        """Return the allocation of the job that has the ranks, or most of them."""
        if self._job is None:
            return self.broker.allocation()
        companion = self.broker.allocation(self._job.id)
        if self._placement.own:
            self.allocation = self.broker.allocation()  # its end may have changed
        return self._both(self._placement, companion)

    def _sharing_message(self, placement: Placement) -> str:
        """Return a message where another run of this session uses the same GPUs."""
        own = placement.own or placement
        if own.companion or not own.gpus:
            return ""
        return sharing_message(self.run, own.gpus_per_node, self.allocation)

    def _watch(self, handle: StartedStep | StartedSteps, placement: Placement, nodes: Sequence[str]) -> None:
        """Return when all ranks have succeeded."""
        limit, all_here = time.monotonic() + self.request["start_limit"], False
        mpi = MPIStart(placement.size, self.request["start_limit"])
        beats = 0.0
        while (status := handle.wait(POLL_INTERVAL)) is None:
            self.check()
            self._look_for_error(handle)
            if time.monotonic() > beats:
                self.state.refresh_ranks(self.rendezvous)
                beats = time.monotonic() + 2 * POLL_INTERVAL
            if not all_here:
                missing = self.rendezvous.missing(placement.size, messages.HELLO)
                all_here = not missing
                if missing and time.monotonic() > limit:
                    raise self._late_ranks("did not come", LATE_RANK, missing, nodes, placement)
            elif late := mpi.overdue(self.rendezvous):
                raise self._late_ranks("did not start MPI", LATE_MPI, late, nodes, placement)
        # One of two steps has failed: the cause may be in the other, which is known a moment later.
        limit = time.monotonic() + SILENT_END_SECONDS
        while not handle.complete and time.monotonic() < limit:
            self._look_for_error(handle)
            handle.wait(POLL_INTERVAL)
        self._look_for_error(handle)
        if status:
            text = handle.messages[-1] if handle.messages else f"srun ended with status {status}."
            if any(_NO_PMIX.search(each) for each in handle.messages):
                text = NO_PMIX
            raise Failed(f"The ranks failed. {text}", error_entry(None, "", "Step", "\n".join(handle.messages)))
        if len(self.rendezvous.missing(placement.size, messages.HELLO)) == placement.size:
            raise Failed(NO_RANK, error_entry(None, "", "NotStarted", NO_RANK))
        if quiet := self.rendezvous.missing(placement.size, messages.END):
            raise self._silent_failure(SilentEnd(quiet[0], end_text(TaskEnd(quiet[0], 0))))

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

    def _look_for_error(self, handle: StartedStep | StartedSteps) -> None:
        """Raise the error of the rank that failed first, where one failed."""
        limit = time.monotonic() + SILENT_END_SECONDS
        while True:
            complete = handle.complete  # before the others: then they know all ends
            silent, errors = self._silent_ends(handle), self._errors()
            cause = next((each for each in errors if not is_consequence(each)), None)
            if not errors or cause or silent or complete or time.monotonic() > limit:
                break
            self.check()
            handle.wait(POLL_INTERVAL / 2)
        if cause is None and silent:
            self._wait_for_echoes(handle, len(silent))
            raise self._silent_failure(silent[0])
        if errors:
            error = cause or errors[0]
            self.state.update_rank(error["rank"], state="failed")
            where = f"rank {error['rank']}" + (f" on {error['node']}" if error["node"] else "")
            said = _with_cuda_and_watchdog(error, self.output.tail(error["rank"]))
            if cause is None and (before := self._stalled_text()):
                said = f"{said.rstrip('.')}. {before}"
            raise Failed(f"{error['type']} in {where}: {said}", error | {"message": said})

    def _wait_for_echoes(self, handle: StartedStep | StartedSteps, silent: int) -> None:
        limit = time.monotonic() + ECHO_SECONDS
        while not handle.complete and time.monotonic() < limit:
            if len(self.rendezvous.arrivals(messages.END)) + silent >= self._placement.size:
                break
            self.check()
            handle.wait(POLL_INTERVAL / 2)

    def _stalled_text(self) -> str:
        """Return which rank was where when the ranks did not go on; "" where they did."""
        stalled = str(self.state.get().get("stalled") or "")
        return f"Before: {stalled}" if stalled else ""

    def _silent_ends(self, handle: StartedStep | StartedSteps) -> list[SilentEnd]:
        # Read in this order: a rank reports before it ends.
        task_ends, failed_tasks = handle.task_ends, list(handle.failed_tasks)
        ends = {int(rank): self._end_of_rank(int(rank)) for rank in self.rendezvous.arrivals(messages.END)}
        reported = {rank for rank, end in ends.items() if end is not None and not end["ok"]}
        return silent_ends(task_ends, failed_tasks, reported, ends.keys() - reported)

    def _errors(self) -> list[State]:
        """Return the errors of the ranks in the order in which they were reported."""
        ends = [self._end_of_rank(int(rank)) for rank in self.rendezvous.arrivals(messages.END)]
        return [end["error"] for end in ends if end is not None and not end["ok"]]

    def _end_of_rank(self, rank: int) -> State | None:
        return messages.read_message(self.rendezvous, messages.END, rank)

    def _silent_failure(self, end: SilentEnd) -> Failed:
        node = next((each["node"] for each in self.state.get()["ranks"] if each["rank"] == end.rank), "")
        self.state.update_rank(end.rank, state="failed")
        message = f"Rank {end.rank} on {node} {end.how}."
        if "SIGABRT" in end.how and (words := last_words(self.output.tail(end.rank))):
            how = end.how.removesuffix(" without an error message")
            message = f"Rank {end.rank} on {node} {how}. {words}. {self._stalled_text()}".strip()
        return Failed(message, error_entry(end.rank, node, end.type, message, self.last_lines(end.rank)))


def _with_cuda_and_watchdog(error: State, lines: Sequence[str]) -> str:
    """Return the message of an error, with what a kernel of CUDA or torch's watchdog has said before."""
    message = str(error["message"])
    if more := assertion_text(error, lines):
        return f"{message.partition(chr(10))[0]}. {more}."
    if "SIGABRT" in message and (words := last_words(lines)):  # of a command
        return f"{message.rstrip('.')}. {words}."
    return message
