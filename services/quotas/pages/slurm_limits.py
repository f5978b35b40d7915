"""The administrator's page on the second fence: what Slurm's limits are, and what the policy wants of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from carme_hub.errors import SlurmError
from carme_hub.services.quotas.application import slurm_limits, view
from carme_hub.services.quotas.pages.admin import AdminHandler

#: Lines of each table; the command prints all.
MOST = 200
_ENTITIES = {"qos": "QOS", "account": "account", "user": "user"}


class DriftHandler(AdminHandler):
    """Slurm's limits against the policy; opening it changes nothing."""

    async def get(self) -> None:
        """Ask Slurm, and show what differs."""
        try:
            found = await slurm_limits.look(self.service)
        except SlurmError as error:
            self.service.log.warning("The limits in Slurm are not known: %s", error)
            found = slurm_limits.Drift(unknown="Slurm’s accounting does not answer.")
        self.show(
            "drift.html",
            heading="Drift",
            found=found,
            at=view.clock(self.now, self.zone, seconds=True),
            tables=[
                # In the order in which the commands work: nothing can name a QOS that is not there.
                ("theirs", found.theirs, _rows(found.theirs)),
                ("ours", found.ours, _rows(found.ours)),
                ("by-hand", found.by_hand, _rows(found.by_hand)),
            ],
            same=_rows(found.same),
            most=MOST,
        )


def _rows(limits: Iterable[Any]) -> list[dict[str, str]]:
    return [
        {
            "who": f"{_ENTITIES[each.entity.value]} {each.name}",
            "limit": slurm_limits.limit_words(each.key),
            "have": slurm_limits.value_words(each.key, each.have),
            "want": slurm_limits.value_words(each.key, each.want),
        }
        for each in list(limits)[:MOST]
    ]


PAGES: list[tuple[str, type[AdminHandler]]] = [("administration/drift", DriftHandler)]
