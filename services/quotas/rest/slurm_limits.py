"""The REST operation that compares Slurm's own limits with the policy; it reads only."""

from __future__ import annotations

from carme_hub.services.quotas.application import slurm_limits
from carme_hub.services.quotas.rest import models_slurm_limits as models
from carme_hub.services.quotas.rest.base import Call


async def mirror(call: Call) -> models.DriftOut:
    """Return the differences; 503 if Slurm does not answer."""
    found = await slurm_limits.compare_limits(call.service)
    groups = ((found.by_hand, True), (found.operator_changes, False), (found.administrator_changes, False))
    return models.DriftOut(
        state=found.state,  # type: ignore[arg-type]
        unknown=found.unknown,
        limits=[
            models.LimitOut(
                entity=each.entity.value,
                name=each.name,
                limit=each.key,
                slurm=each.have,
                policy=each.want,
                takes=each.admin_level.value,
                by_hand=by_hand,
            )
            for changes, by_hand in groups
            for each in changes
        ],
        left_out=[models.LeftOutOut(quota=each.quota, why=each.reason) for each in found.left_out],
        same=len(found.same),
        commands=list(found.commands),
    )
