"""The conductor of an elastic run: workers come and go while it trains, each in a Slurm step of its own.

The session's own job has slots for some workers. Each other worker has a companion of its own, which is requested when
ranks are added and given back when its worker has left; the training never waits for it. ``membership`` decides which
worker has which rank. Where a worker is killed or its companion ends, the others continue at once from their last
commit. An error of the code ends the run, as with a fixed number of ranks.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

from carme_hub.training.conductor.cause import is_consequence
from carme_hub.training.conductor.conductor import Conductor, Failed, error_entry
from carme_hub.training.conductor.step import start_in_thread
from carme_hub.training.run import messages
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.run_options import MAX_ELASTIC_RANKS
from carme_hub.training.run.run_state import COMPANION_ENDED, NEW_RANK, add_reason
from carme_hub.training.run.sharing import sharing_message
from carme_hub.training.session.step_broker import Allocation, Broker, NoBroker, NotReady, Step

from .rendezvous import ElasticRendezvous
from .resize import RunCompanions
from .worker import sharing_key, worker_name
from .workers import Worker, Workers, WorkerSlot, cpus_per_slot, session_slots, worker_nodes

#: Seconds between two checks of the workers, and of their reports.
POLL_INTERVAL, BEAT_INTERVAL = 0.1, 0.4
#: Seconds for a worker to leave; before the end of its companion, when it is told to leave; until a lost worker is
#: restarted, and one that Slurm did not start; and for which a worker may be silent while others wait for it.
LEAVE_TIMEOUT, LEAVE_BEFORE_END, RESTART_DELAY, SLURM_RETRY_DELAY, SILENCE_LIMIT = 15.0, 30.0, 3.0, 10.0, 60.0
#: Starts of a worker's number, and errors that follow from the loss of a worker before they count as failures.
MAX_STARTS, MAX_CONSEQUENCES = 4, 3


class ElasticRun(Conductor):
    """Conducts an elastic run."""

    program = "carme_hub.training.elastic.worker"

    def __init__(self, run: Run, broker: Broker) -> None:
        super().__init__(run, broker)
        self._workers, self._lock = Workers(), threading.RLock()
        self._all_requested, self._add_lock = False, threading.Lock()  # the lock is held while ranks are added
        self._done = False  # whether a worker has finished the training
        self._ranks: dict[int, int] = {}  # ranks of the workers that finished, by number
        self._failed_starts: dict[int, int] = {}  # starts that failed because of Slurm, by number
        self._consequences: list[State] = []  # errors that follow from a loss, since the last change
        self._ranked_names: list[str] = []  # workers of the newest generation
        self._last_state, self._message = State(), ""
        self._unexplained: dict[str, str] = {}  # messages about lost companions, until the hub explains them
        self._last_refresh = 0.0
        self._limits, self._minutes = self.options.elastic or (1, MAX_ELASTIC_RANKS), -(-self.options.seconds // 60)
        self._companions = RunCompanions(self._workers, self._lock, broker, run.id, self.request["key"])
        self.ops["resize"] = self._resize

    def run_ranks(self) -> None:
        """Start the workers and watch them until the training has ended."""
        options, own = self.options, self.allocation
        gpus = options.gpus_per_task if options.gpus_per_task is not None else int(own.gpus > 0)
        nodes = own.nodes[: options.nodes or len(own.nodes)]
        self._workers.slots = session_slots(nodes, own.gpus, gpus, options.ranks)
        with ElasticRendezvous(own.address, *self._limits) as meeting:
            self._gpus, self._membership = gpus, meeting.membership
            self.write_run_config(gpus_per_task=gpus, places={"address": meeting.address, "port": meeting.port})
            self._companions.gpus, self._companions.virtual = gpus, self.request.get("virtual", False)
            self._companions.cpus = cpus_per_slot(own.cpus, len(nodes), len(self._workers.slots))
            for slot in self._workers.slots[: options.ranks]:
                self._workers.to_start.append((0.0, self._workers.free_number(), slot))
            self._message = sharing_message(self.run, own.gpus, own.gpus) if gpus and self._workers.to_start else ""
            if more := options.ranks - len(self._workers.to_start):
                self._request_missing(more)
            self._all_requested = True
            self._watch()
            self._keep_results()

    def finish(self) -> None:
        """Give all companions back."""
        self._companions.close()

    # -- one round after another ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Return when all workers have ended and at least one has finished the training."""
        while True:
            self.check()
            self._read_results()
            self._start_due_workers()
            with self._lock:
                for member in list(self._workers.members.values()):
                    if member.handle.wait(0) is not None:
                        self._ended(member)
                self._end_late_workers()
                for id, why in self._companions.explained().items():
                    self._message = add_reason(self._message, self._unexplained.pop(id, self._message), why)
                for why in self._companions.ended_unused():
                    how = f": {why}" if why else ""
                    self._message = f"{self._message} A companion ended before it ran{how}.".strip()
                left, nobody = len(self._workers.members), not self._workers.numbers()
            if not left and self._done:
                return
            if not left and nobody:
                raise self._all_lost()
            self._update_state()
            self.stopping.wait(POLL_INTERVAL)

    def _read_results(self) -> None:
        """Process the reports of workers that finished; raise the error of one whose code failed."""
        for key in self.rendezvous.arrivals(messages.END):
            number = int(key)
            member = next((each for each in self._workers.members.values() if each.number == number), None)
            end = messages.read_message(self.rendezvous, messages.END, number)
            if end is None or member is None:
                continue
            if not end["ok"]:
                self._failed(member, end["error"])
            elif not member.leaving:
                self._ranks[number] = self._membership.ranks().get(member.name, -1)
                self._end_training()

    def _failed(self, member: Worker, error: State) -> None:
        """Raise an error, unless it only follows from the loss of another worker."""
        self._consequences.append(error)
        limit = MAX_CONSEQUENCES * (len(self._workers.members) + 1)
        if not is_consequence(error) or len(self._consequences) > limit:
            self.state.update_rank(member.number, state="failed")
            where = f"rank {self.state.rank_label(member.number)} on {member.slot.node}"
            raise Failed(f"{error['type']} in {where}: {error['message']}"[:500], error)
        self.rendezvous.delete(messages.END, str(member.number))
        (self.run.folder / f"error-{member.number}.json").unlink(missing_ok=True)
        self.state.update_rank(member.number, state="running")  # torch continues; with Horovod the process ends now

    def _end_training(self) -> None:
        """Admit no more workers: the others are finishing too."""
        if not self._done:
            self._done = True
            self._membership.end()
            with self._lock:
                self._workers.to_start.clear()

    def _ended(self, member: Worker) -> None:
        """Process the end of a worker's step."""
        self._read_results()  # its report may have arrived meanwhile
        del self._workers.members[member.name]
        end = messages.read_message(self.rendezvous, messages.END, member.number)
        well = member.handle.exit == 0 and (self._done or (end is not None and end["ok"]))
        self._membership.remove(member.name)
        if member.leaving or well:
            self.state.update_rank(member.number, state="done", exit=0)
            if member.leaving and not self._done:
                why = ": the time of its companion is nearly over" if member.out_of_time else ""
                self._message = f"{self._rank_on_node(member)} was given back{why}."
                self.state.update_rank(member.number, place=-1)
        else:
            self._lost(member)
        if member.slot.companion and self._workers.is_empty(member.slot.companion):
            self._companions.give_back(member.slot.companion)

    def _lost(self, member: Worker) -> None:
        failed, lines = member.handle.failed_tasks, member.handle.messages
        how = failed[0][1] if failed else lines[-1] if lines else "it ended"
        self._message = f"{self._rank_on_node(member)} was lost ({how}); the others continue."
        self.state.update_rank(member.number, state="failed", exit=member.handle.exit, place=-1)
        self._consequences.clear()
        starts = self._workers.starts[member.number] - self._failed_starts.get(member.number, 0)
        if not self._done and starts < MAX_STARTS:
            self._workers.to_start.append((time.monotonic() + RESTART_DELAY, member.number, member.slot))

    def _all_lost(self) -> Failed:
        message = f"No rank is left. {self._message}".strip()
        return Failed(message, [error_entry(None, "", "AllLost", message), *self._consequences][-1])

    def _rank_on_node(self, member: Worker) -> str:
        return f"Rank {self.state.rank_label(member.number)} on {member.slot.node}"

    # -- starting and ending workers -----------------------------------------------------------------------------------

    def _start_due_workers(self) -> None:
        with self._lock:
            for companion in list(self._workers.companions.values()):
                if companion.allocation is not None and companion.number >= 0:
                    slot = WorkerSlot(companion.allocation.nodes[0], 0, companion.id)
                    self._workers.to_start.append((0.0, companion.number, slot))
                    companion.number = -1  # it is in ``to_start`` now
            due = [each for each in self._workers.to_start if each[0] <= time.monotonic()]
        for entry in due:
            _, number, slot = entry
            member, problem = None, None
            try:  # without the lock, since Slurm may be slow; it stays in ``to_start``
                member = self._start(number, slot)
            except NoBroker as error:
                problem = error
            with self._lock:
                wanted = entry in self._workers.to_start
                if wanted:
                    self._workers.to_start.remove(entry)
                if member is not None:
                    self._workers.members[member.name] = member
                    if not wanted:  # it was withdrawn meanwhile
                        member.leaving = time.monotonic()
                        self._membership.leave(member.name)
                elif isinstance(problem, NotReady):  # time limit, preempted, or given back from outside
                    if slot.companion and self._workers.is_empty(slot.companion):
                        self._unexplained[slot.companion] = self._message
                        self._message = f"{self._message} {COMPANION_ENDED}.".strip()
                        self._companions.mark_lost(slot.companion)
                elif not self._workers.members:
                    raise Failed(str(problem)) from problem
                elif wanted:  # the others continue
                    self._message = f"Rank {number} could not be started ({problem}); retrying."
                    self._failed_starts[number] = self._failed_starts.get(number, 0) + 1
                    self._workers.to_start.append((time.monotonic() + SLURM_RETRY_DELAY, number, slot))

    def _start(self, number: int, slot: WorkerSlot) -> Worker:
        companion = self._workers.companions.get(slot.companion)
        other = companion.allocation if companion is not None else None
        allocation: Allocation | None = other if slot.companion else self.allocation
        if allocation is None:
            raise NotReady("its companion has ended.")
        life = self._workers.starts.get(number, 0)
        self._workers.starts[number] = life + 1
        for scope in (messages.HELLO, messages.BEAT, messages.END):
            self.rendezvous.delete(scope, str(number))
        name = worker_name(number, life, slot.local)
        self._membership.add(name, slot.node)
        step = Step(
            run=self.run.id,
            ranks=1,
            argv=self.argv(name),
            nodes=(slot.node,),
            companion=slot.companion,
            gpus_per_node=allocation.gpus if self._gpus else 0,  # overlapping steps share them; the worker selects
            slot=name,
        )
        try:
            shared = {"beside": self._workers.beside(slot)}
            self.rendezvous.put(messages.BROADCAST, sharing_key(number), json.dumps(shared).encode())
            handle = start_in_thread(lambda: self.start_step(step, rank_of_task=lambda _: number), self.check)
        except NoBroker:
            self._membership.remove(name)
            raise
        self.state.update_rank(number, **{**NEW_RANK, "node": slot.node})
        return Worker(name, number, slot, handle, time.monotonic())

    def _end_late_workers(self) -> None:
        """End workers that do not come within the start limit, do not leave, or are silent."""
        now = time.monotonic()
        starting = set(self._membership.starting())
        limit = self.request["start_limit"]
        late = [m for m in self._workers.members.values() if m.name in starting and now > m.started + limit]
        if late and not self._membership.generation:
            self._membership.form_without_late()
            if not self._membership.generation:
                who = ", ".join(f"{each.number} (on {each.slot.node})" for each in late)
                message = f"Rank {who} did not come within {limit:.0f} s. Its output is in its log."
                lines = self.last_lines(late[0].number)
                raise Failed(message, error_entry(late[0].number, late[0].slot.node, "NotStarted", message, lines))
        for member in self._workers.members.values():
            companion = self._workers.companions.get(member.slot.companion)
            ends = companion.allocation.ends if companion is not None and companion.allocation is not None else 0.0
            if ends and not member.leaving and time.time() > ends - LEAVE_BEFORE_END:
                member.leaving, member.out_of_time = now, True
                self._membership.leave(member.name)
        silent = set(self._membership.silent(SILENCE_LIMIT))
        for member in list(self._workers.members.values()):
            if member in late or member.name in silent or (member.leaving and now > member.leaving + LEAVE_TIMEOUT):
                member.handle.stop()
                self._ended(member)

    def _resize(self, request: State) -> State:
        """Handle a request for more or fewer ranks."""
        change, (fewest, most) = int(request["change"]), self._limits
        if not change:
            raise RequestRefused("0 changes nothing: give the number of ranks to add, like +2, or to remove, like -1.")
        if self._done or not self._all_requested:
            raise RequestRefused("The run is starting or ending.")
        # Two requests at once must not exceed the limit together.
        with self._add_lock if change > 0 else contextlib.nullcontext():
            with self._lock:
                now, free = len(self._workers.numbers()), len(self._workers.free_slots())
            if (change > 0 and now + change > most) or (change < 0 and now + change < fewest):
                counts = f"The run has {now} ranks, pending ones included"
                raise RequestRefused(f"{counts}; --elastic {fewest}:{most} does not allow {now + change}.")
            message = self._remove_ranks(-change) if change < 0 else self._add_with_price(change, max(0, change - free))
        return {"message": message, "ranks": len(self._workers.numbers())}

    def _request_missing(self, count: int) -> None:
        """Request companions for the ranks that have no slot in the session; fail where the run would be too small."""
        few = len(self._workers.to_start) < self._limits[0]
        self.state.update(state="waiting", message="Asking the hub for more GPUs.")
        try:
            message = self._add(count, self.check if few else None)
        except RequestRefused as error:
            if len(self._workers.to_start) < self._limits[0]:
                raise Failed(str(error)) from error
            message = str(error)
        self._message = f"{self._message} {message}".strip()

    def _add_with_price(self, count: int, companions: int) -> str:
        price, before = self._companions.price(companions, self._minutes), self._message
        if price:  # followers see it before anything is requested
            self._message = price
            self.state.update(message=price)
        try:
            return f"{price} {self._add(count)}".strip()
        except RequestRefused:
            self._message, self._last_state = before, {}  # so that the message is written again
            raise

    def _add(self, count: int, check: Callable[[], None] | None = None) -> str:
        with self._lock:
            free = self._workers.free_slots()[:count]
            for slot in free:
                number = self._workers.free_number()
                self._workers.starts.setdefault(number, 0)
                self._workers.to_start.append((0.0, number, slot))
        try:
            opened = self._companions.open(count - len(free), self._minutes, check)
        except RequestRefused as error:
            if not free:
                raise
            opened = f"No companions: {error}"
        own = f"{len(free)} in the session's own job. " if free else ""
        return f"{own}{opened}".strip()

    def _remove_ranks(self, count: int) -> str:
        with self._lock:
            waiting, leaving = self._workers.choose_leaving(count)
            for companion in waiting:
                self._companions.give_back(companion.id)
            withdrawn = len(waiting) + self._workers.withdraw(count - len(waiting))
            leaving = leaving[: count - withdrawn]
            for companion in [each for each in self._workers.companions.values() if each.number < 0]:
                if self._workers.is_empty(companion.id):  # its worker was about to be restarted
                    self._companions.give_back(companion.id)
            for member in leaving:
                member.leaving = time.monotonic()
                self._membership.leave(member.name)
        named = ", ".join(self.state.rank_label(each.number) for each in leaving)
        parts = [f"{withdrawn} withdrawn before their start."] if withdrawn else []
        parts += [f"Rank {named} leaves at the next commit."] if leaving else []
        if kept := sum(not each.slot.companion for each in leaving):
            parts.append(f"{kept} of them used the session's own GPUs, which stay in the session.")
        return " ".join(parts)

    # -- the state -----------------------------------------------------------------------------------------------------

    def _update_state(self) -> None:
        """Update the state of the run."""
        with self._lock:
            members = list(self._workers.members.values())
            waiting = [each for each in self._workers.companions.values() if each.allocation is None]
            companions = sorted(self._workers.companions)
        missing, begun = self._membership.missing, self._membership.generation > 0
        message = self._message
        if missing:
            more = "1 more rank" if missing == 1 else f"{missing} more ranks"
            message = f"{message} Waiting for {more}: the run continues with {self._membership.fewest}.".strip()
        if waiting:
            more = "1 more rank waits" if len(waiting) == 1 else f"{len(waiting)} more ranks wait"
            message = f"{message} {more} for GPUs. {waiting[0].message}".strip()
        state: State = {
            "state": "waiting" if missing and (begun or waiting) else "running",
            "message": message,
            "nodes": worker_nodes(members),
            **{"companions": companions, "generation": self._membership.generation},
        }
        if {**state, "members": len(members)} != self._last_state:
            self._last_state = {**state, "members": len(members)}
            self.state.update(**state, own_gpus=self._gpus * self._workers.count_in_session())
            self.state.set_gpus(self._gpus * len(members))
            ranks = self._membership.ranks()
            for member in members:
                self.state.update_rank(member.number, place=ranks.get(member.name, -1))
            together = sorted(name for name, rank in ranks.items() if rank >= 0)
            if together != self._ranked_names:
                self._ranked_names = together
                self._consequences.clear()
        if time.monotonic() > self._last_refresh + BEAT_INTERVAL:
            self._last_refresh = time.monotonic()
            self.state.refresh_ranks(self.rendezvous)

    def _keep_results(self) -> None:
        """Store the result of each worker under the rank that it had at the end."""
        found = {}
        for number, rank in self._ranks.items():
            path = self.run.folder / f"result-{number}.pkl"
            if self.request["kind"] == "call" and rank >= 0 and path.exists():
                found[rank] = path.rename(path.with_name(f".result-{rank}"))
        for rank, path in found.items():
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(f"result-{rank}.pkl"))
