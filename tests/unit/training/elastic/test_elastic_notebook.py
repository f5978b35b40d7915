"""Rank 0 of an elastic run stands in front, whichever worker it is; each worker keeps its log."""

from __future__ import annotations

from test_elastic_run import place as place
from test_elastic_run import running

from carme_hub.training.run.description import View, as_text, rank_cells
from carme_hub.training.run.run_folder import State


def test_who_is_rank_0_now_stands_in_front_by_the_log_it_had() -> None:
    def membership(state: State) -> dict[int, int]:
        return {each["rank"]: each.get("place", -1) for each in state["ranks"]}

    def called(place: int, number: int) -> str:
        return str(place) if place == number else f"{place} (log {number})"

    with running() as story:
        story.of_size(2)
        state = story.until(lambda state: sorted(membership(state).values()) == [0, 1])
        first = View(state, 0).front  # whichever worker came first
        second = 1 - first
        assert membership(state) == {first: 0, second: 1}
        for number in (first, second):
            (step,) = [step for name, step in story.broker.steps.items() if name.startswith(f"w{number}-0-")]
            lost = f"Rank {called(0, number)} on n{number + 1} was lost"
            step.signal("KILL")
            story.until(lambda state: state["message"].startswith(lost))  # noqa: B023  called at once
            if number == second:
                break
            state = story.until(lambda state: membership(state) == {first: 1, second: 0})
            view = View(state, 0, {first: ["of the first life"], second: ["epoch 2"]})
            assert view.front == second
            assert {rank["rank"]: rank_cells(rank)[0] for rank in view.ranks} == {
                first: called(1, first),
                second: called(0, second),
            }
            assert as_text(view).splitlines()[-1] == "epoch 2"
