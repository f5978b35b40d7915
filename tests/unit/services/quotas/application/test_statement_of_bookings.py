"""A statement says what was held and charged for a booking in the words of its entries."""

from __future__ import annotations

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind, charge_key, slot_charge_key, slot_key
from carme_hub.services.quotas.application import view


def shown(kind: Kind, key: str, reason: str, start: float = 3600, **more: int) -> tuple[str, tuple[str, ...]]:
    entry = Entry(key, kind, "slot", "physics", -GPU_HOUR, 0, "ada", "r1", start=start, end=7200, reason=reason, **more)
    [row] = view.rows([entry.replace(gpus=(Gpus("a100", 4),))], "UTC")
    return row.text, row.facts


def test_holds_and_charges_of_a_booking_are_not_told_as_a_sessions() -> None:
    said, about = shown(Kind.HOLD, slot_key("r1"), "held for the booking “Deep”")
    assert said == "Held for the booking “Deep”."
    assert about[0] == "4 × a100 for 1 h"
    assert shown(Kind.HOLD, slot_key("r1", 1, "s1"), "taken over by session s1")[0] == "Taken over by session s1."
    words = "booked and not used: 3.5 of 8 GPU-hours of “Deep”"
    assert shown(Kind.CHARGE, slot_charge_key("r1"), words, 7200) == (f"B{words[1:]}.", ())


def test_a_job_of_a_cluster_with_that_name_is_told_as_a_job() -> None:
    job = shown(Kind.CHARGE, charge_key("slot", 7, 1), "job 7: completed", job_id=7, submitted=1)
    assert job[0] == "Used by job 7, which completed."
