"""The type of GPU-hours in request bodies."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from carme_hub.domain.ledger.entries import GPU_HOUR

_DECIMAL = re.compile(r"(?=.*[1-9])[0-9]{1,7}(\.[0-9]{1,3})?", re.ASCII)


def _exact(value: object) -> Decimal:
    """Accept whole numbers and text; a binary fraction such as 0.1 is not exact."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError('write fractions as text, such as "2.5", so that they are exact')
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Decimal(int(value))
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    raise ValueError('write GPU-hours like 4 or "2.5", with at most three decimals')


#: GPU-hours with at most three decimals; exact, since 0.001 h is a whole number of milli-GPU-seconds.
Hours = Annotated[
    Decimal,
    BeforeValidator(_exact),
    Field(gt=0, le=10_000_000, decimal_places=3),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 10_000_000},
                {"type": "string", "pattern": f"^{_DECIMAL.pattern}$"},
            ],
            "description": "GPU-hours: whole ones, or text with at most three decimals",
        }
    ),
]


def amount(hours: Decimal) -> int:
    """Return milli-GPU-seconds."""
    return int(hours * GPU_HOUR)
