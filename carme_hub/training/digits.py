"""Generated pictures of digits: the training data of the templates, without a download.

Each picture is an 8 × 8 drawing of a digit at a random place and strength, with noise. A seed gives the same pictures.
"""

from __future__ import annotations

from typing import Any

SIDE = 8
CLASSES = 10
#: Five by seven dots for each digit, row by row.
_DRAWN = (
    *("01110100011001110101110011000101110", "00100011000010000100001000010001110"),
    *("01110100010000100010001000100011111", "11111000100010000010000011000101110"),
    *("00010001100101010010111110001000010", "11111100001111000001000011000101110"),
    *("00110010001000011110100011000101110", "11111000010001000100010000100001000"),
    *("01110100011000101110100011000101110", "01110100011000101111000010001001100"),
)


def digits(samples: int = 1024, seed: int = 0, noise: float = 0.25) -> tuple[Any, Any]:
    """Return pictures (a float tensor of samples × 1 × 8 × 8 in torch's default type) and the digit of each."""
    import torch

    made = torch.Generator().manual_seed(seed)
    drawn = torch.tensor([[int(dot) for dot in each] for each in _DRAWN], dtype=torch.float64).view(CLASSES, 7, 5)
    labels = torch.randint(CLASSES, (samples,), generator=made)
    right = torch.randint(SIDE - 5 + 1, (samples,), generator=made)
    down = torch.randint(SIDE - 7 + 1, (samples,), generator=made)
    bold = 0.5 + torch.rand((samples,), generator=made, dtype=torch.float64) / 2
    pictures = torch.zeros(samples, SIDE, SIDE, dtype=torch.float64)
    for index in range(samples):
        x, y = int(right[index]), int(down[index])
        pictures[index, y : y + 7, x : x + 5] = drawn[labels[index]] * bold[index]
    pictures += noise * torch.randn(pictures.shape, generator=made, dtype=torch.float64)
    return pictures.unsqueeze(1).to(torch.get_default_dtype()), labels
