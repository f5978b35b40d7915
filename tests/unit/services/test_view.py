"""How amounts of GPU time are written."""

from __future__ import annotations

import pytest

from carme_hub.domain.ledger import GPU_HOUR
from carme_hub.services.quotas import view


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
