"""How amounts of GPU time are written."""

from __future__ import annotations

import pytest

from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.services.quotas.application import view


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (GPU_HOUR * 5 // 4, "+1.25 h"),
        (-GPU_HOUR, "−1 h"),
        (0, "0 h"),
        (-10_000, "−10 s"),
        (1_500, "+1.5 s"),
    ],
)
def test_no_amount_is_so_small_that_it_is_not_told(amount: int, words: str) -> None:
    assert view.signed(amount).replace("\u00a0", " ") == words


def test_what_comes_back_of_a_hold_before_its_end_says_why() -> None:
    back = Entry("hold:s1:1", Kind.HOLD, "lab", "physics", 1000, 0.0, reason="another session goes on in its place")
    assert view.sentence(back, "UTC") == "A part of the hold was released: another session goes on in its place."
    assert view.sentence(back.replace(amount=-1000), "UTC").startswith("Held for a longer time limit")
