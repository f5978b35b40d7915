"""The end of an idle session counts every click, and is stored once. What the hub knows of the session is forged."""

from __future__ import annotations

import logging

import pytest
from forged_idle import ID, START, Lab

from carme_hub.activity.idle.ending import EndSteps, OrderlyEnds
from carme_hub.domain.activity.idle import IdleState
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.store.idle import ENDED, ENDING, HERE, IdleEvent

RULE = IdleRule(Action.STOP, after=1800)
DUE = IdleState("due", float(START), START + 1800.0)


class Ends:
    """Ends of a session that is due by all that is known; the test ends it with the events that a look has read."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.cancelled = lab, []  # type: ignore[var-annotated]
        self.fails = False
        lab.now = START + 1800.0

    async def end(self, *events: IdleEvent) -> None:
        """End the session as a hub that has just started does."""

        async def cancel(id: str, reason: str) -> None:
            if self.fails:
                raise RuntimeError("killed")
            self.cancelled.append((id, reason))

        async def still_due(*_known: object) -> bool:
            return True

        put_in_order = self.lab._put_in_order
        steps = EndSteps(put_in_order, cancel, lambda: self.lab.now, lambda: "UTC", still_due)
        ends = OrderlyEnds(self.lab.events, steps, logging.getLogger("test"))
        await ends.begin(self.lab.session, RULE, DUE, events)
        await ends.wait()

    def stored(self) -> list[IdleEvent]:
        return self.lab.events.of([ID]).get(ID, [])


@pytest.fixture
def ends(lab: Lab) -> Ends:
    return Ends(lab)


async def test_a_click_between_the_look_and_the_begin_of_the_end_counts(ends: Ends) -> None:
    ends.lab.events.add(IdleEvent(ID, START + 60.0, HERE))
    known = ends.stored()
    ends.lab.events.add(IdleEvent(ID, ends.lab.now - 1, HERE))  # stored after the look has read the events
    await ends.end(*known)
    assert ends.cancelled == []
    assert [event.kind for event in ends.stored()] == [HERE, HERE, ENDING]


async def test_a_click_on_which_the_look_has_decided_does_not_count_again(ends: Ends) -> None:
    ends.lab.events.add(IdleEvent(ID, START + 60.0, HERE))
    await ends.end(*ends.stored())
    assert len(ends.cancelled) == 1
    assert ends.stored()[-1].kind == ENDED


async def test_a_hub_that_is_killed_before_the_stop_leaves_one_end_for_the_next(ends: Ends) -> None:
    ends.fails = True
    await ends.end()
    assert [event.kind for event in ends.stored()] == [ENDING, ENDED]
    ends.fails = False
    ends.lab.now += 360
    await ends.end(*ends.stored())
    assert [event.kind for event in ends.stored()] == [ENDING, ENDED]
    assert ends.cancelled == [(ID, ends.stored()[-1].reason)], "the reason is that of the event, word for word"


async def test_an_end_of_an_earlier_idle_time_is_not_this_one(ends: Ends) -> None:
    ends.lab.events.add(IdleEvent(ID, START - 60.0, ENDED, about={"reason": "It was idle then."}))
    await ends.end(*ends.stored())
    assert [event.kind for event in ends.stored()] == [ENDED, ENDING, ENDED]
    assert "30 min" in ends.cancelled[0][1]
