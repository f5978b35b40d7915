"""A claim on a key stands while somebody works on it, and is free again once they are gone, whatever the clock did."""

from __future__ import annotations

import pytest

from carme_hub.store.ledger.idempotency import Claim
from carme_hub.store.ledger.writes import LedgerStore

NOW, LEASE, KEEP = 1_000_000.0, 60.0, 3600.0


def claim(store: LedgerStore, token: str, at: float) -> Claim:
    with store.transaction("lab") as writes:
        return writes.claim(Claim("k" * 64, "d" * 64, token, at), lease=LEASE, keep=KEEP)


@pytest.mark.parametrize("since", [-LEASE - 1, LEASE + 1, 365 * 86400.0])
def test_a_claim_whose_worker_is_gone_is_free_also_where_the_clock_was_ahead(store: LedgerStore, since: float) -> None:
    claim(store, "killed", NOW + since)
    assert claim(store, "next", NOW).token == "next"


@pytest.mark.parametrize("since", [-LEASE + 1, 0, LEASE - 1])
def test_a_claim_stands_while_its_worker_may_be_at_it(store: LedgerStore, since: float) -> None:
    ours = claim(store, "ours", NOW + since)
    assert claim(store, "next", NOW) == ours


def test_an_answer_from_when_the_clock_was_ahead_is_still_the_answer(store: LedgerStore) -> None:
    ours = claim(store, "ours", NOW + 365 * 86400)
    with store.transaction("lab") as writes:
        writes.answer_claim(ours, "{}")
    assert claim(store, "next", NOW).answer == "{}"
