"""The kinds of values in bodies: GPU-hours, names, times."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from carme_hub.domain.ledger import GPU_HOUR

_DECIMAL = re.compile(r"(?=.*[1-9])[0-9]{1,7}(\.[0-9]{1,3})?", re.ASCII)


def _whole(value: object) -> object:
    """Take 5.0 for 5, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _exact(value: object) -> Decimal:
    """Take whole numbers and text; a fraction that went through binary numbers is not what was meant."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError('write fractions as text, such as "2.5", so that they are exact')
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Decimal(int(value))
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    raise ValueError('write GPU-hours like 4 or "2.5", with at most three decimals')


Whole = BeforeValidator(_whole)
#: GPU-hours as a person writes them: exact, since 0.001 h is a whole number of milli-GPU-seconds.
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
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$")]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"[^\s\x85]")]
Seconds = Annotated[int, Field(ge=0, le=253_402_300_799, description="UTC epoch seconds"), Whole]
#: From 2001, before which there was no Slurm, to 2100.
Moment = Annotated[int, Field(ge=978_307_200, le=4_102_444_800, description="UTC epoch seconds"), Whole]


def amount(hours: Decimal) -> int:
    """Return milli-GPU-seconds."""
    return int(hours * GPU_HOUR)
