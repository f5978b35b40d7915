"""A run whose number of ranks changes while it trains: workers come and go, each of them a step of its own.

The session's own job has seats for some; each of the others is in a companion of its own, which is asked for when ranks
are added, waits without anybody waiting for it, and is given back when its worker has left. Who is which rank is said
by ``membership``. One that is killed, or whose companion ends, is missed by the others at once: they go on from
their last commit. An error of the code ends the run, as with a fixed number of ranks.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

from carme_hub.training.conductor.conductor import Conductor, Failed, error_of
from carme_hub.training.conductor.fixed_size import follows
from carme_hub.training.conductor.step import beside
from carme_hub.training.run import messages
from carme_hub.training.run.control import NotDone
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.run_options import MOST_ELASTIC
from carme_hub.training.run.run_state import MISSED, NOT_YET, explained
from carme_hub.training.run.sharing import who_shares
from carme_hub.training.session.step_broker import Allocation, Broker, NoBroker, NotReady, Step

from .rendezvous import ElasticRendezvous
from .resize import Resize
from .worker import beside_of, name_of
from .workers import Member, Seat, Workers, cpus_each, nodes_of, seats_of

#: Seconds between two looks at workers, and at what they say of themselves.
OFTEN, BEATS = 0.1, 0.4
#: Seconds for a worker to come back for a place after it was told to leave, before it is ended; before the end of its
#: companion, when it is told; until a lost one is started again, and one for which Slurm did not answer; and for which
#: one may be silent while others wait.
LEAVE, BEFORE, AGAIN, LATER, SILENT = 15.0, 30.0, 3.0, 10.0, 60.0
#: How often a number is started anew, and how many errors that only follow from a loss are taken without a loss.
LIVES, ECHOES = 4, 3


class ElasticRun(Conductor):
    """Conducts such a run."""

    program = "carme_hub.training.elastic.worker"

    def __init__(self, run: Run, broker: Broker) -> None:
        super().__init__(run, broker)
        self._crew, self._lock = Workers(), threading.RLock()
        self._begun_all, self._adding = False, threading.Lock()  # whether all were asked for; held while more are
        self._done = False  # whether a worker has come to the end of the training
        self._ranks: dict[int, int] = {}  # of those that have, by their numbers
        self._tries: dict[int, int] = {}  # lives of numbers that were none: Slurm did not start them
        self._echoes: list[State] = []  # errors that only follow, since somebody came or went
        self._together: list[str] = []  # who is in the newest generation
        self._said: State = {}
        self._news = ""
        self._unexplained: dict[str, str] = {}  # news of lost companions, until the hub says how they ended
        self._beat = 0.0
        self._limits, self._minutes = self.asked.elastic or (1, MOST_ELASTIC), -(-self.asked.seconds // 60)
        self._resizing = Resize(self._crew, self._lock, broker, run.id, self.told["key"])
        self.ops["resize"] = self._resize

    def play(self) -> None:
        """Start the workers and follow them until the training has ended."""
        asked, has = self.asked, self.allocation
        gpus = asked.gpus_per_task if asked.gpus_per_task is not None else int(has.gpus > 0)
        nodes = has.nodes[: asked.nodes or len(has.nodes)]
        self._crew.seats = seats_of(nodes, has.gpus, gpus, asked.ranks)
        meeting = ElasticRendezvous(has.address, *self._limits)
        with meeting:
            self._gpus, self._places = gpus, meeting.places
            self.tell(gpus_per_task=gpus, places={"address": meeting.address, "port": meeting.port})
            self._resizing.gpus, self._resizing.virtual = gpus, self.told.get("virtual", False)
            self._resizing.cpus = cpus_each(has.cpus, len(nodes), len(self._crew.seats))
            for seat in self._crew.seats[: asked.ranks]:
                self._crew.coming.append((0.0, self._crew.free_number(), seat))
            self._news = who_shares(self.run, has.gpus, has.gpus) if gpus and self._crew.coming else ""
            if more := asked.ranks - len(self._crew.coming):
                self._ask_for_more(more)
            self._begun_all = True
            self._watch()
            self._keep_results()

    def finish(self) -> None:
        """Give all companions back."""
        self._resizing.close()

    # -- one round after the other ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Return when all workers have ended and one of them had come to the end."""
        while True:
            self.check()
            self._hear()
            self._start_those_to_come()
            with self._lock:
                for member in list(self._crew.members.values()):
                    if member.handle.wait(0) is not None:
                        self._ended(member)
                self._end_the_late()
                for id, why in self._resizing.explained().items():
                    self._news = explained(self._news, self._unexplained.pop(id, self._news), why)
                for why in self._resizing.in_vain():
                    how = f": {why}" if why else ""
                    self._news = f"{self._news} A companion has ended before it ran{how}.".strip()
                left, nobody = len(self._crew.members), not self._crew.numbers()
            if not left and self._done:
                return
            if not left and nobody:
                raise self._all_lost()
            self._say()
            self.stopping.wait(OFTEN)

    def _hear(self) -> None:
        """Take notice of those who have come to the end, and raise the error of one whose code failed."""
        for key in self.rendezvous.came(messages.END):
            number = int(key)
            member = next((each for each in self._crew.members.values() if each.number == number), None)
            end = messages.heard(self.rendezvous, messages.END, number)
            if end is None or member is None:
                continue
            if not end["ok"]:
                self._failed(member, end["error"])
            elif not member.leaving:
                self._ranks[number] = self._places.ranks().get(member.name, -1)
                self._end_training()

    def _failed(self, member: Member, error: State) -> None:
        """Raise an error, but for one that only says that another worker is gone."""
        self._echoes.append(error)
        if not follows(error) or len(self._echoes) > ECHOES * (len(self._crew.members) + 1):
            self.standing.rank(member.number, state="failed")
            where = f"rank {self.standing.called(member.number)} on {member.seat.node}"
            raise Failed(f"{error['type']} in {where}: {error['message']}"[:500], error)
        self.rendezvous.delete(messages.END, str(member.number))
        (self.run.folder / f"error-{member.number}.json").unlink(missing_ok=True)
        self.standing.rank(member.number, state="running")  # with torch; with Horovod it ends now

    def _end_training(self) -> None:
        """Let nobody in any more: the others come to the end too."""
        if not self._done:
            self._done = True
            self._places.end()
            with self._lock:
                self._crew.coming.clear()

    def _ended(self, member: Member) -> None:
        """Take notice of the end of a worker's step."""
        self._hear()  # its last word may have come since
        del self._crew.members[member.name]
        end = messages.heard(self.rendezvous, messages.END, member.number)
        well = member.handle.exit == 0 and (self._done or (end is not None and end["ok"]))
        self._places.gone(member.name)
        if member.leaving or well:
            self.standing.rank(member.number, state="done", exit=0)
            if member.leaving and not self._done:
                why = ": the time of its companion is nearly over" if member.out_of_time else ""
                self._news = f"Rank {self.standing.called(member.number)} on {member.seat.node} was given back{why}."
                self.standing.rank(member.number, place=-1)
        else:
            self._lost(member)
        if member.seat.companion and self._crew.alone_in(member.seat.companion):
            self._resizing.give_back(member.seat.companion)

    def _lost(self, member: Member) -> None:
        how = member.handle.bad[0][1] if member.handle.bad else next(iter(member.handle.said[-1:]), "it ended")
        who = f"Rank {self.standing.called(member.number)} on {member.seat.node}"
        self._news = f"{who} was lost ({how}); the others go on."
        self.standing.rank(member.number, state="failed", exit=member.handle.exit, place=-1)
        self._echoes.clear()
        if not self._done and self._crew.lives[member.number] - self._tries.get(member.number, 0) < LIVES:
            self._crew.coming.append((time.monotonic() + AGAIN, member.number, member.seat))

    def _all_lost(self) -> Failed:
        said = f"No rank is left. {self._news}".strip()
        return Failed(said, self._echoes[-1] if self._echoes else error_of(None, "", "AllLost", said))

    # -- coming and going ---------------------------------------------------------------------------------------------

    def _start_those_to_come(self) -> None:
        with self._lock:
            for share in list(self._crew.shares.values()):
                if share.allocation is not None and share.number >= 0:
                    self._crew.coming.append((0.0, share.number, Seat(share.allocation.nodes[0], 0, share.id)))
                    share.number = -1  # it is in ``coming`` now
            due = [each for each in self._crew.coming if each[0] <= time.monotonic()]
        for entry in due:
            _, number, seat = entry
            member, said = None, None
            try:  # without the lock, for Slurm may take its time; it is in ``coming`` meanwhile
                member = self._start(number, seat)
            except NoBroker as error:
                said = error
            with self._lock:
                wanted = entry in self._crew.coming
                if wanted:
                    self._crew.coming.remove(entry)
                if member is not None:
                    self._crew.members[member.name] = member
                    if not wanted:  # somebody has done without it meanwhile
                        member.leaving = time.monotonic()
                        self._places.leave(member.name)
                elif isinstance(said, NotReady):  # time limit, preempted, or given back from outside
                    if seat.companion and self._crew.alone_in(seat.companion):
                        self._unexplained[seat.companion] = self._news
                        self._news = f"{self._news} {MISSED}.".strip()
                        self._resizing.lost(seat.companion)
                elif not self._crew.members:
                    raise Failed(str(said)) from said
                elif wanted:  # the others train on
                    self._news = f"Rank {number} could not be started ({said}); it is tried again."
                    self._tries[number] = self._tries.get(number, 0) + 1
                    self._crew.coming.append((time.monotonic() + LATER, number, seat))

    def _start(self, number: int, seat: Seat) -> Member:
        share = self._crew.shares.get(seat.companion)
        has: Allocation | None = self.allocation if not seat.companion else share.allocation if share else None
        if has is None:
            raise NotReady("its companion has ended.")
        life = self._crew.lives.get(number, 0)
        self._crew.lives[number] = life + 1
        for scope in (messages.HELLO, messages.BEAT, messages.END):
            self.rendezvous.delete(scope, str(number))
        name = name_of(number, life, seat.local)
        self._places.add(name, seat.node)
        step = Step(
            run=self.run.id,
            ranks=1,
            argv=self.argv(name),
            nodes=(seat.node,),
            companion=seat.companion,
            gpus_per_node=has.gpus if self._gpus else 0,  # of which it takes its own: steps that overlap share them
            slot=name,
        )
        try:
            shared = {"beside": self._crew.beside(seat)}
            self.rendezvous.put(messages.TOLD, beside_of(number), json.dumps(shared).encode())
            handle = beside(lambda: self.start_step(step, rank_of_task=lambda _: number), self.check)
        except NoBroker:
            self._places.gone(name)
            raise
        self.standing.rank(number, **{**NOT_YET, "node": seat.node})
        return Member(name, number, seat, handle, time.monotonic())

    def _end_the_late(self) -> None:
        """End who does not come within the start limit, does not leave, or is not heard of any more."""
        now = time.monotonic()
        starting = set(self._places.starting())
        late = [
            each
            for each in self._crew.members.values()
            if each.name in starting and now > each.started + self.told["start_limit"]
        ]
        if late and not self._places.generation:
            self._places.go_without_the_late()
            if not self._places.generation:
                who = ", ".join(f"{each.number} (on {each.seat.node})" for each in late)
                message = (
                    f"Rank {who} did not come within {self.told['start_limit']:.0f} s. What it wrote is in its log."
                )
                lines = self.last_lines(late[0].number)
                raise Failed(message, error_of(late[0].number, late[0].seat.node, "NotStarted", message, lines))
        for member in self._crew.members.values():
            share = self._crew.shares.get(member.seat.companion)
            ends = share.allocation.ends if share is not None and share.allocation is not None else 0.0
            if ends and not member.leaving and time.time() > ends - BEFORE:
                member.leaving, member.out_of_time = now, True
                self._places.leave(member.name)
        silent = set(self._places.silent(SILENT))
        for member in list(self._crew.members.values()):
            if member in late or member.name in silent or (member.leaving and now > member.leaving + LEAVE):
                member.handle.stop()
                self._ended(member)

    def _resize(self, said: State) -> State:
        """Answer somebody who wants more ranks, or fewer."""
        change, (fewest, most) = int(said["change"]), self._limits
        if not change:
            raise NotDone("0 changes nothing: say how many ranks more, like +2, or fewer, like -1.")
        if self._done or not self._begun_all:
            raise NotDone("The run is about to begin, or to end.")
        with self._adding if change > 0 else contextlib.nullcontext():  # two at once must not both be the last
            with self._lock:
                now, free = len(self._crew.numbers()), len(self._crew.free_seats())
            if (change > 0 and now + change > most) or (change < 0 and now + change < fewest):
                raise NotDone(f"There are {now} ranks, or will be; --elastic {fewest}:{most} allows no {now + change}.")
            message = self._take_away(-change) if change < 0 else self._add_at_a_price(change, max(0, change - free))
        return {"message": message, "ranks": len(self._crew.numbers())}

    def _ask_for_more(self, count: int) -> None:
        """Ask for the ranks that the session has no seats for; a hub that says no ends a run that is too small then."""
        few = len(self._crew.coming) < self._limits[0]
        self.standing.update(state="waiting", message="The hub is asked for more GPUs.")
        try:
            said = self._add(count, self.check if few else None)
        except NotDone as error:
            if len(self._crew.coming) < self._limits[0]:
                raise Failed(str(error)) from error
            said = str(error)
        self._news = f"{self._news} {said}".strip()

    def _add_at_a_price(self, count: int, companions: int) -> str:
        price, before = self._resizing.price(companions, self._minutes), self._news
        if price:  # whoever looks on reads it before anything is asked for
            self._news = price
            self.standing.update(message=price)
        try:
            return f"{price} {self._add(count)}".strip()
        except NotDone:
            self._news, self._said = before, {}  # so that it is said again
            raise

    def _add(self, count: int, check: Callable[[], None] | None = None) -> str:
        with self._lock:
            free = self._crew.free_seats()[:count]
            for seat in free:
                number = self._crew.free_number()
                self._crew.lives.setdefault(number, 0)
                self._crew.coming.append((0.0, number, seat))
        try:
            opened = self._resizing.open(count - len(free), self._minutes, check)
        except NotDone as error:
            if not free:
                raise
            opened = f"No more: {error}"
        own = f"{len(free)} in the session's own job. " if free else ""
        return f"{own}{opened}".strip()

    def _take_away(self, count: int) -> str:
        with self._lock:
            waiting, leaving = self._crew.to_leave(count)
            for share in waiting:
                self._resizing.give_back(share.id)
            withdrawn = len(waiting) + self._crew.withdraw(count - len(waiting))
            leaving = leaving[: count - withdrawn]
            for share in [each for each in self._crew.shares.values() if each.number < 0]:
                if self._crew.alone_in(share.id):  # its worker was to be started again
                    self._resizing.give_back(share.id)
            for member in leaving:
                member.leaving = time.monotonic()
                self._places.leave(member.name)
        named = ", ".join(self.standing.called(each.number) for each in leaving)
        parts = [f"{withdrawn} that had not begun: withdrawn."] if withdrawn else []
        parts += [f"Rank {named}: leaves at the next commit."] if leaving else []
        if kept := sum(not each.seat.companion for each in leaving):
            parts.append(f"{kept} of them had GPUs of the session itself, which stay its own.")
        return " ".join(parts)

    # -- what is said -------------------------------------------------------------------------------------------------

    def _say(self) -> None:
        """Bring the state up to date."""
        with self._lock:
            members = list(self._crew.members.values())
            waiting = [each for each in self._crew.shares.values() if each.allocation is None]
            companions = sorted(self._crew.shares)
        missing, begun = self._places.missing, self._places.generation > 0
        message = self._news
        if missing:
            more = "1 more rank" if missing == 1 else f"{missing} more ranks"
            message = f"{message} Waiting for {more}: it goes on with {self._places.fewest}.".strip()
        if waiting:
            more = "1 more rank waits" if len(waiting) == 1 else f"{len(waiting)} more ranks wait"
            message = f"{message} {more} for GPUs. {waiting[0].said}".strip()
        said: State = {
            "state": "waiting" if missing and (begun or waiting) else "running",
            "message": message,
            "nodes": nodes_of(members),
            "companions": companions,
            "generation": self._places.generation,
        }
        if {**said, "members": len(members)} != self._said:
            self._said = {**said, "members": len(members)}
            self.standing.update(**said, own_gpus=self._gpus * self._crew.own())
            self.standing.count_gpus(self._gpus * len(members))
            ranks = self._places.ranks()
            for member in members:
                self.standing.rank(member.number, place=ranks.get(member.name, -1))
            together = sorted(name for name, rank in ranks.items() if rank >= 0)
            if together != self._together:
                self._together = together
                self._echoes.clear()
        if time.monotonic() > self._beat + BEATS:
            self._beat = time.monotonic()
            self.standing.beats(self.rendezvous)

    def _keep_results(self) -> None:
        """Have the result of each worker under its rank at the end."""
        found = {}
        for number, rank in self._ranks.items():
            path = self.run.folder / f"result-{number}.pkl"
            if self.told["kind"] == "call" and rank >= 0 and path.exists():
                found[rank] = path.rename(path.with_name(f".result-{rank}"))
        for rank, path in found.items():
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(f"result-{rank}.pkl"))
