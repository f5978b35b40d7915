"""The administrator's page that compares Slurm's own limits with the policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from carme_hub.errors import SlurmError
from carme_hub.services.quotas.application import slurm_limits, view
from carme_hub.services.quotas.pages.admin import AdminHandler

#: Rows of each table; the command prints all.
PAGE_SIZE = 200
_ENTITIES = {"qos": "QOS", "account": "account", "user": "user"}


class DriftHandler(AdminHandler):
    """Slurm's limits and the policy; the page changes nothing."""

    async def get(self) -> None:
        """Query Slurm, and show the differences."""
        try:
            found = await slurm_limits.compare_limits(self.service)
        except SlurmError as error:
            self.service.log.warning("The limits in Slurm cannot be read: %s", error)
            found = slurm_limits.Drift(unknown="Slurm’s accounting does not answer.")
        self.show(
            "drift.html",
            heading="Drift",
            found=found,
            at=view.clock(self.now, self.zone, seconds=True),
            tables=[
                # In the order of the commands: a limit of a QOS can be set only after the QOS exists.
                ("administrator", found.administrator_changes, _rows(found.administrator_changes)),
                ("operator", found.operator_changes, _rows(found.operator_changes)),
                ("by-hand", found.by_hand, _rows(found.by_hand)),
            ],
            same=_rows(found.same),
            most=PAGE_SIZE,
        )


def _rows(limits: Iterable[Any]) -> list[dict[str, str]]:
    return [
        {
            "who": f"{_ENTITIES[each.entity.value]} {each.name}",
            "limit": slurm_limits.limit_text(each.key),
            "have": slurm_limits.value_text(each.key, each.have),
            "want": slurm_limits.value_text(each.key, each.want),
        }
        for each in list(limits)[:PAGE_SIZE]
    ]


PAGES: list[tuple[str, type[AdminHandler]]] = [("administration/drift", DriftHandler)]
