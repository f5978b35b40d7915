"""Ranks of a run whose workers come and go: a generation begins when all of the old one are back, and not before."""

from __future__ import annotations

import threading
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carme_hub.training.elastic.membership import GROUPING_SECONDS, RELEASED, Assignment, Membership


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def membership(fewest: int = 2, most: int = 4, workers: str = "") -> Membership:
    """Return places with workers that are ready, each named by a letter; they are the first generation."""
    made = Membership(fewest, most, clock=Clock())
    for name in workers:
        made.add(name, f"host-{name}")
    for name in workers:
        made.wait_for_assignment(name, 0, 0)
    return made


def test_the_first_generation_has_all_that_were_started() -> None:
    made = membership()
    for name in "abc":
        made.add(name, f"host-{name}")
    assert made.wait_for_assignment("a", 0, 0) is None
    assert made.wait_for_assignment("b", 0, 0) is None
    assert made.starting() == ["c"]
    assert made.wait_for_assignment("c", 0, 0) == Assignment(1, 2, 3, "host-a")
    assert made.wait_for_assignment("a", 0, 0) == Assignment(1, 0, 3, "host-a")
    assert made.assignment_of("b") == Assignment(1, 1, 3, "host-a")


def test_the_ranks_of_the_first_generation_are_the_numbers_of_the_logs_whoever_is_ready_first() -> None:
    made = membership()
    for name in "abc":
        made.add(name)
    for name in "cba":
        made._clock.now += 1  # type: ignore[attr-defined]
        made.wait_for_assignment(name, 0, 0)
    assert made.ranks() == {"a": 0, "b": 1, "c": 2}


def test_one_that_does_not_come_is_not_waited_for_when_the_limit_is_over() -> None:
    made = membership()
    for name in "abc":
        made.add(name)
    made.wait_for_assignment("a", 0, 0), made.wait_for_assignment("c", 0, 0)
    made.form_without_late()
    assert made.ranks() == {"a": 0, "b": -1, "c": 1}


def test_too_few_are_no_generation() -> None:
    made = membership(fewest=3, workers="ab")
    assert made.generation == 0
    assert made.missing == 1
    made.form_without_late()
    assert made.generation == 0


def test_a_new_one_is_news_when_it_is_ready_and_not_when_it_starts() -> None:
    made = membership(workers="ab")
    made.add("c")
    assert made.next_generation("a") == 0
    assert made.wait_for_assignment("c", 0, 0) is None
    assert made.next_generation("a") == 2
    assert made.next_generation("c") == 0, "it has no place yet"
    assert made.wait_for_assignment("a", 1, 0) is None, "the other one still trains"
    assert made.generation == 1
    assert made.wait_for_assignment("b", 1, 0) == Assignment(2, 1, 3, "host-a")
    assert made.ranks() == {"a": 0, "b": 1, "c": 2}
    assert [made.next_generation(name) for name in "abc"] == [0, 0, 0]


def test_two_that_come_together_are_one_change() -> None:
    made = membership(workers="ab")
    made.add("c"), made.add("d")
    made.wait_for_assignment("c", 0, 0)
    assert made.next_generation("a") == 0, "another one is about to be ready"
    made._clock.now += GROUPING_SECONDS  # type: ignore[attr-defined]
    assert made.next_generation("a") == 2, "that takes too long"


def test_one_that_leaves_goes_at_once_and_the_others_when_all_are_back() -> None:
    made = membership(workers="abc")
    made.leave("a")
    assert [made.next_generation(name) for name in "abc"] == [2, 2, 2]
    assert made.wait_for_assignment("a", 1, 0) == RELEASED
    assert made.wait_for_assignment("b", 1, 0) is None
    assert made.wait_for_assignment("c", 1, 0) == Assignment(2, 1, 2, "host-b")
    assert made.ranks() == {"b": 0, "c": 1}


def test_one_that_is_lost_is_missed_and_its_successor_is_not_waited_for() -> None:
    made = membership(workers="abc")
    made.remove("a")
    made.add("e")
    assert made.next_generation("b") == 2, "torch's agents look for this while their worker hangs"
    assert made.wait_for_assignment("b", 1, 0) is None
    assert made.wait_for_assignment("c", 1, 0) == Assignment(2, 1, 2, "host-b")
    made.wait_for_assignment("e", 0, 0)
    made.wait_for_assignment("b", 2, 0), made.wait_for_assignment("c", 2, 0)
    assert made.ranks() == {"b": 0, "c": 1, "e": 2}, "rank 0 has the state of the training"


def test_one_that_comes_back_by_itself_is_not_left_waiting_for_those_that_go_on() -> None:
    made = membership(workers="abc")
    assert [made.next_generation(name) for name in "abc"] == [0, 0, 0]
    assert made.wait_for_assignment("b", 1, 0) is None  # its process died; torch's agent starts another
    assert [made.next_generation(name) for name in "ac"] == [2, 2]
    assert made.wait_for_assignment("a", 1, 0) is None
    assert made.wait_for_assignment("c", 1, 0) == Assignment(2, 2, 3, "host-a")
    assert [made.next_generation(name) for name in "abc"] == [0, 0, 0]


def test_one_that_was_ready_first_is_not_rank_0_before_those_who_have_trained() -> None:
    made = membership(workers="ab")
    made.add("c")
    for name, generation in (("c", 0), ("b", 1), ("a", 1)):
        made._clock.now += 1  # type: ignore[attr-defined]
        made.wait_for_assignment(name, generation, 0)
    assert made.ranks() == {"a": 0, "b": 1, "c": 2}


def test_below_the_fewest_they_wait_until_others_come() -> None:
    made = membership(workers="ab")
    made.remove("b")
    assert made.wait_for_assignment("a", 1, 0) is None
    assert made.missing == 1
    made.add("c")
    assert made.wait_for_assignment("c", 0, 0) == Assignment(2, 1, 2, "host-a")
    assert made.missing == 0


def test_no_more_than_the_most() -> None:
    made = membership(most=2, workers="ab")
    made.add("c")
    made.wait_for_assignment("c", 0, 0)
    assert made.next_generation("a") == 0
    made.remove("b")
    made.wait_for_assignment("a", 1, 0)
    assert made.ranks() == {"a": 0, "c": 1}


def test_nobody_has_a_place_when_the_training_is_over() -> None:
    made = membership(workers="ab")
    made.end()
    assert made.wait_for_assignment("a", 1, 5) == RELEASED
    assert made.next_generation("b") == 0


def test_an_unknown_worker_is_sent_away() -> None:
    assert membership(workers="ab").wait_for_assignment("x", 0, 5) == RELEASED


def test_who_is_silent_while_others_wait_is_named() -> None:
    made = membership(workers="abc")
    made._clock.now += 61  # type: ignore[attr-defined]
    assert made.silent(60) == [], "nobody waits for them"
    made.next_generation("b")
    made.wait_for_assignment("a", 1, 0)
    assert made.silent(60) == ["c"]


def test_who_waits_is_told_as_soon_as_there_is_a_place() -> None:
    made = Membership(2, 2)
    made.add("a"), made.add("b")
    told: list[Assignment | None] = []
    thread = threading.Thread(target=lambda: told.append(made.wait_for_assignment("a", 0, 10)))
    thread.start()
    began = time.monotonic()
    made.wait_for_assignment("b", 0, 0)
    thread.join(5)
    assert told == [Assignment(1, 0, 2, "")] or told == [Assignment(1, 1, 2, "")]
    assert time.monotonic() < began + 5


class Training(RuleBasedStateMachine):
    """Workers come, ask, leave and die in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.formed: list[tuple[int, int]] = []
        self.made = Membership(2, 4, lambda *said: self.formed.append(said), clock=Clock())
        self.count = 0
        self.alive: dict[str, int] = {}  # to the generation that each trains in; 0 = none yet
        self.waits: set[str] = set()

    @rule()
    def start(self) -> None:
        self.count += 1
        self.made.add(f"w{self.count}")
        self.alive[f"w{self.count}"] = 0

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        place = self.made.wait_for_assignment(name, self.alive[name], 0)
        self.waits.discard(name)
        if place is None:
            self.waits.add(name)
        elif place.rank < 0:
            del self.alive[name]
        else:
            assert place.generation > self.alive[name]
            self.alive[name] = place.generation

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), how=st.sampled_from(["remove", "leave"]))
    def lose(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        getattr(self.made, how)(name)
        if how == "remove":
            del self.alive[name]
            self.waits.discard(name)

    @invariant()
    def ranks_are_whole(self) -> None:
        held = sorted(rank for rank in self.made.ranks().values() if rank >= 0)
        assert len(held) == len(set(held))
        if self.formed:
            number, size = self.formed[-1]
            assert number == self.made.generation == len(self.formed)
            assert 2 <= size <= 4
            assert all(rank < size for rank in held)

    @invariant()
    def nobody_trains_in_an_old_generation(self) -> None:
        training = {number for name, number in self.alive.items() if number and name not in self.waits}
        assert training <= {self.made.generation}


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
