"""Whether an image's CUDA fits GPUs and their drivers; what is not known is never said to fit."""

from __future__ import annotations

import pytest

from carme_hub.domain.images.gpu_fit import Fit, fit_of, needed_driver


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [("12.4", "525.60.13"), ("12", "525.60.13"), ("11.0", "450.80.02"), ("10.2.89", "440.33"), ("13.0", "580.65.06")],
)
def test_the_oldest_driver_for_a_cuda_is_known(cuda: str, driver: str) -> None:
    assert needed_driver(cuda) == driver


@pytest.mark.parametrize(
    ("cuda", "types", "drivers", "fits", "why"),
    [
        ("", (), {}, True, ""),
        ("", ("a100",), {"a100": "550.54.15"}, None, "No CUDA was found"),
        ("12.4", ("a100",), {"a100": "550.54.15"}, True, ""),
        ("12.4", ("a100",), {"a100": "470.1"}, False, "needs driver 525.60.13 or later; a100 has 470.1."),
        ("12.4", ("a100",), {}, None, "that of a100 is not known"),
        ("11.4", ("h100",), {"h100": "550.54.15"}, False, "too old for h100, which needs 11.8 or later"),
        ("11.8", ("nvidia_h100_80gb_hbm3",), {"nvidia_h100_80gb_hbm3": "550.1"}, True, ""),
        ("13.0", ("v100",), {"v100": "580.65.06"}, False, "does not support v100 any more; the last that does is 12."),
        ("12.4", ("b200",), {"b200": "580.65.06"}, False, "needs 12.8 or later"),
        ("99.1", ("a100",), {"a100": "999.1"}, None, "Which driver CUDA 99.1 needs is not known."),
        ("12.4", ("a100", "v100"), {"a100": "550.1", "v100": "450.1"}, None, "v100 has 450.1"),
        ("12.4", ("1g.10gb",), {"1g.10gb": "550.1"}, True, ""),
    ],
)
def test_fit(cuda: str, types: tuple[str, ...], drivers: dict[str, str], fits: bool | None, why: str) -> None:
    found = fit_of(cuda, types, drivers)
    assert found.fits is fits
    assert why in found.why
    assert fits is not True or found == Fit(True)


def test_an_a100_is_not_taken_for_an_a10() -> None:
    assert fit_of("11.0", ("a100",), {"a100": "450.80.02"}).fits is True
    assert fit_of("11.0", ("a10",), {"a10": "450.80.02"}).fits is False
