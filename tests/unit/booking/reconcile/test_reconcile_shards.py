"""A node whose GPUs have shards is booked whole, and that is said before anything is booked."""

from __future__ import annotations

from forged_reservations import node

from carme_hub.booking import messages
from carme_hub.booking.calendar import Supply
from carme_hub.domain.calendar.bookable_nodes import inventory_of
from carme_hub.domain.calendar.capacity import Capacity, Need
from carme_hub.domain.calendar.periods import Period


def test_what_a_node_with_shards_costs_is_said() -> None:
    supply, need = Supply(inventory_of([node("n3", shards=16), node("n2")])), Need("a100", 1, 6)
    assert messages.not_exact(supply) == (
        "Nodes with shards of GPUs are reserved whole, because Slurm lets shards run on reserved GPUs: n3. "
        "No memory is reserved with single GPUs: if jobs of others use nearly all memory of a node, a session that is "
        "booked there waits for it."
    )
    assert "memory" not in messages.not_exact(Supply(inventory_of([node("n3", shards=16)]))), (
        "a whole node has all of it"
    )
    assert "memory" not in messages.not_exact(Supply(supply.inventory, by_node=True))
    places = Capacity(supply.inventory, ()).place(need, Period(0, 60))
    assert places is not None
    (said,) = messages.notes(supply, need, places)
    assert said == "Nodes with shards of GPUs are reserved whole: 2 × a100 take n3 with all its 4 GPUs.", "n2 is not"


def test_where_no_node_has_shards_nothing_is_said_of_them() -> None:
    supply, need = Supply(inventory_of([node("n1")])), Need("a100", 1)
    places = Capacity(supply.inventory, ()).place(need, Period(0, 60))
    assert places is not None
    assert (messages.not_exact(supply), messages.notes(supply, need, places)) == (messages.NO_MEMORY, ())
