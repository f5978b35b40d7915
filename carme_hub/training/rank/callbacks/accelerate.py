"""accelerate's tracker: what code logs by ``Accelerator.log`` becomes scalars of the run.

accelerate has no list of trackers that others may add to, so the code names it::

    from carme_hub.training.rank.callbacks.accelerate import CarmeTracker

    accelerator = Accelerator(log_with=[CarmeTracker()])
    accelerator.init_trackers("name", config={"lr": 0.1})
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from carme_hub.training.rank.output.parameters import log_params

from .report import report


class CarmeTracker(GeneralTracker):  # type: ignore[misc]
    """Keeps what is logged as scalars of the run, and the configuration as its parameters."""

    name = "carme"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self._step = 0

    @property
    def tracker(self) -> CarmeTracker:
        """Return itself: there is nothing else to use."""
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the configuration, as ``here.log_params``."""
        log_params(**values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record values of a step; without a number it is the next one."""
        self._step = self._step + 1 if step is None else step
        report(self._step, None, 0, values)
