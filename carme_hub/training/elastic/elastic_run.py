"""The conductor of an elastic run: workers come and go while it trains, each in a Slurm step of its own.

The session's own job has slots for some workers. Each other worker has a companion of its own, which is requested when
ranks are added and given back when its worker has left; the training never waits for it. ``membership`` decides which
worker has which rank. Where a worker is killed or its companion ends, the others continue at once from their last
commit. An error of the code ends the run, as with a fixed number of ranks.
"""

from __future__ import annotations

import json
import threading
import time

from carme_hub.training.conductor.conductor import Conductor, Failed, error_entry
from carme_hub.training.conductor.sharing import sharing_message
from carme_hub.training.conductor.step import start_in_thread
from carme_hub.training.run import messages, results
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.run_options import MAX_ELASTIC_RANKS
from carme_hub.training.run.run_state import NEW_RANK
from carme_hub.training.session.step_broker import Broker, NoBroker, NotReady, Step

from .losses import Losses, how_step_ended
from .notices import Notices
from .rank_changes import RankChanges
from .rendezvous import ElasticRendezvous
from .resize import RunCompanions
from .worker import sharing_key, worker_name
from .workers import Worker, Workers, WorkerSlot, cpus_per_slot, session_slots, worker_nodes

#: Seconds between two checks of the workers, and of their reports.
POLL_INTERVAL, BEAT_INTERVAL = 0.1, 0.4
#: Seconds for a worker to leave; before the end of its companion, when it is told to leave; until a lost worker is
#: restarted, and one that Slurm did not start; and for which a worker may be silent while others wait for it.
LEAVE_TIMEOUT, LEAVE_BEFORE_END, RESTART_DELAY, SLURM_RETRY_DELAY, SILENCE_LIMIT = 15.0, 30.0, 3.0, 10.0, 60.0
#: Starts of a worker's number.
MAX_STARTS = 4
#: Seconds for which the message about a rank that was given back is shown, between two checks of who shares the GPUs,
#: and for which a run with too few ranks waits for somebody to add some.
GIVEN_BACK_SECONDS, SHARING_INTERVAL, TOO_FEW_LIMIT = 60.0, 30.0, 600.0


class ElasticRun(Conductor):
    """Conducts an elastic run."""

    program = "carme_hub.training.elastic.worker"

    def __init__(self, run: Run, broker: Broker) -> None:
        super().__init__(run, broker)
        self._workers, self._lock = Workers(), threading.RLock()
        self._all_requested = False
        self._done = False  # whether a worker has finished the training
        self._ranks: dict[int, int] = {}  # ranks of the workers that finished, by number
        self._failed_starts: dict[int, int] = {}  # starts that failed because of Slurm, by number
        self._losses = Losses()
        self._ranked_names: list[str] = []  # workers of the newest generation
        self._last_state, self._notices = State(), Notices()
        self._last_refresh, self._last_sharing, self._generation_seen = 0.0, 0.0, 0
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
            self._gpus, self._membership, self._meeting = gpus, meeting.membership, meeting
            self.write_run_config(gpus_per_task=gpus, places={"address": meeting.address, "port": meeting.port})
            found, virtual = self._companions, self.request.get("virtual", False)
            found.gpus, found.virtual, found.stage = gpus, virtual, options.stage
            self._companions.cpus = cpus_per_slot(own.cpus, len(nodes), len(self._workers.slots))
            self._changes = RankChanges(
                self._workers,
                self._membership,
                self._companions,
                self._notices,
                self.state,
                self._lock,
                self._limits,
                self._minutes,
            )
            for slot in self._workers.slots[: options.ranks]:
                self._workers.to_start.append((0.0, self._workers.free_number(), slot))
            self._say_sharing()
            if more := options.ranks - len(self._workers.to_start):
                self._request_missing(more)
            self._all_requested = True
            self._watch()
            if self.request["kind"] == "call":
                results.number_by_rank(self.run.folder, self._ranks)

    def finish(self) -> None:
        """Give all companions back."""
        self._companions.close()

    # -- one round after another ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Return when all workers have ended and at least one has finished the training."""
        while True:
            self.check()
            self._read_results()
            self._read_deaths()
            self._start_due_workers()
            with self._lock:
                for member in list(self._workers.members.values()):
                    if member.handle.wait(0) is not None:
                        self._ended(member)
                self._end_late_workers()
                for id, why in self._companions.explained().items():
                    self._notices.explain_companion(id, why)
                for why in self._companions.ended_unused():
                    how = f": {why}" if why else ""
                    self._notices.say("unused", f"A companion ended before it ran{how}.")
                left, nobody = len(self._workers.members), not self._workers.numbers()
            if not left and self._done:
                return
            if not left and nobody:
                raise self._all_lost()
            self._check_too_few()
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
        if not self._losses.follows(error, member.number, len(self._workers.members)):
            self.state.update_rank(member.number, state="failed")
            where = f"rank {self.state.rank_label(member.number)} on {member.slot.node}"
            raise Failed(f"{error['type']} in {where}: {error['message']}", error)
        self.rendezvous.delete(messages.END, str(member.number))
        (self.run.folder / f"error-{member.number}.json").unlink(missing_ok=True)
        self.state.update_rank(member.number, state="running")  # torch continues; with Horovod the process ends now

    def _read_deaths(self) -> None:
        """Process what torch's agents report of a process below them that ended without a report of its own."""
        for name, generation, how in self._losses.deaths(self._meeting, self._read_results):
            member = self._workers.members.get(name)
            if member is None or member.leaving or self._done:
                continue
            if self._losses.count_death(member.number, generation) < MAX_STARTS:  # its agent starts it again
                self._lose(member, how, again=True)
                continue
            with self._lock:
                starts = MAX_STARTS + self._failed_starts.get(member.number, 0)
                self._workers.starts[member.number] = max(starts, self._workers.starts[member.number])
                self._losses.forget(member.number)
                member.handle.stop()
                self._ended(member, how)

    def _end_training(self) -> None:
        """Admit no more workers: the others are finishing too."""
        if not self._done:
            self._done = True
            self._membership.end()
            with self._lock:
                self._workers.to_start.clear()

    def _ended(self, member: Worker, how: str = "") -> None:
        """Process the end of a worker's step.

        Args:
            how: it ended, where that is known.
        """
        self._read_results()  # its report may have arrived meanwhile
        del self._workers.members[member.name]
        end = messages.read_message(self.rendezvous, messages.END, member.number)
        well = member.handle.exit == 0 and (self._done or (end is not None and end["ok"]))
        self._membership.remove(member.name)
        if member.leaving or well:
            self.state.update_rank(member.number, state="done", exit=0)
            if member.leaving and not self._done:
                why = ": the time of its companion is nearly over" if member.out_of_time else ""
                text = f"{self._rank_on_node(member)} was given back{why}."
                self._notices.say(("rank", member.number), text, GIVEN_BACK_SECONDS)
                self.state.update_rank(member.number, place=-1)
        else:
            self._lost(member, how)
        if member.slot.companion and self._workers.is_empty(member.slot.companion):
            self._companions.give_back(member.slot.companion)

    def _lost(self, member: Worker, how: str) -> None:
        starts = self._workers.starts[member.number] - self._failed_starts.get(member.number, 0)
        again = not self._done and starts < MAX_STARTS
        self._lose(member, how or how_step_ended(member.handle), again=again)
        self.state.update_rank(member.number, state="failed", exit=member.handle.exit, place=-1)
        if again:
            self._workers.to_start.append((time.monotonic() + RESTART_DELAY, member.number, member.slot))

    def _lose(self, member: Worker, how: str, *, again: bool) -> None:
        """Announce that a rank was lost, and how it ended, until it trains again."""
        who = self._rank_on_node(member)
        self._losses.record(member.number, member.slot.node, f"{who} {how}.")
        self._notices.lost(member.number, f"{who} was lost: it {how}", again, 0 if self._done else MAX_STARTS)

    def _all_lost(self) -> Failed:
        message = f"No rank is left. {self._notices.text()}".strip()
        return Failed(message, [error_entry(None, "", "AllLost", message), *self._losses.consequences][-1])

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
                        self._notices.companion_ended(slot.companion, self.state.rank_label(number))
                        self._companions.mark_lost(slot.companion)
                elif not self._workers.members:
                    raise Failed(str(problem)) from problem
                elif wanted:  # the others continue
                    self._notices.say(("rank", number), f"Rank {number} could not be started ({problem}); retrying.")
                    self._failed_starts[number] = self._failed_starts.get(number, 0) + 1
                    self._workers.to_start.append((time.monotonic() + SLURM_RETRY_DELAY, number, slot))

    def _start(self, number: int, slot: WorkerSlot) -> Worker:
        companion = self._workers.companions.get(slot.companion)
        allocation = self.allocation if not slot.companion else companion.allocation if companion else None
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
            report_ends=True,
        )
        try:
            shared = json.dumps({"beside": self._workers.beside(slot)}).encode()
            self.rendezvous.put(messages.BROADCAST, sharing_key(number), shared)
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
        if self._done or not self._all_requested:
            raise RequestRefused("The run is starting or ending.")
        try:
            message = self._changes.change(int(request["change"]))
        except RequestRefused:
            self._last_state = {}  # so that the message is written again
            raise
        return {"message": message, "ranks": len(self._workers.numbers())}

    def _request_missing(self, count: int) -> None:
        """Request companions for the ranks that have no slot in the session; fail where the run would be too small."""
        few = len(self._workers.to_start) < self._limits[0]
        self.state.update(state="waiting", message="Asking the hub for more GPUs.")
        try:
            message = self._changes.add(count, self.check if few else None)
        except RequestRefused as error:
            if len(self._workers.to_start) < self._limits[0]:
                raise Failed(str(error)) from error
            message = str(error)
        self._notices.say("request", message)

    # -- the state -----------------------------------------------------------------------------------------------------

    def _update_state(self) -> None:
        """Update the state of the run."""
        with self._lock:
            members = list(self._workers.members.values())
            waiting = [each for each in self._workers.companions.values() if each.allocation is None]
            companions = sorted(self._workers.companions)
            self._drop_old_notices(bool(waiting))
        missing, begun = self._membership.missing, self._membership.generation > 0
        message = self._notices.text()
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
                self._losses.consequences.clear()
        if time.monotonic() > self._last_refresh + BEAT_INTERVAL:
            self._last_refresh = time.monotonic()
            self.state.refresh_ranks(self.rendezvous)

    def _drop_old_notices(self, waiting: bool) -> None:
        """Take away what is not true any more; the lock is held."""
        if not waiting:
            self._notices.drop("request")
        if self._membership.generation != self._generation_seen:
            self._generation_seen, ranks = self._membership.generation, self._membership.ranks()
            for member in self._workers.members.values():
                if ranks.get(member.name, -1) >= 0 and not member.leaving:
                    self._notices.drop(("rank", member.number))
        if time.monotonic() > self._last_sharing + SHARING_INTERVAL:
            self._say_sharing()

    def _say_sharing(self) -> None:
        """Say which other runs of the session use the same GPUs."""
        self._last_sharing, own = time.monotonic(), self.allocation
        used = self._gpus and (self._workers.to_start or self._workers.count_in_session())
        self._notices.say("sharing", sharing_message(self.run, own.gpus, own) if used else "")

    def _check_too_few(self) -> None:
        """Fail where too few ranks are left, nothing more is to come, and nobody adds some."""
        fewest, minutes = self._limits[0], TOO_FEW_LIMIT / 60
        with self._lock:
            few = len(self._workers.numbers()) < fewest and self._membership.missing > 0
        if loss := self._losses.too_few(few, TOO_FEW_LIMIT):
            text = f"{loss.text} Fewer than {fewest} ranks were left, and nobody added any for {minutes:.0f} minutes."
            raise Failed(text, error_entry(loss.number, loss.node, "Ended", text, self.last_lines(loss.number)))
