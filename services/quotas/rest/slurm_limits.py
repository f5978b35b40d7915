"""REST that says whether Slurm's own limits are as the policy wants them; it only looks."""

from __future__ import annotations

from carme_hub.services.quotas.application import slurm_limits
from carme_hub.services.quotas.rest import models_slurm_limits as models
from carme_hub.services.quotas.rest.base import Call


async def mirror(call: Call) -> models.DriftOut:
    """Return what differs; while Slurm is silent it is a 503."""
    found = await slurm_limits.look(call.service)
    sets = ((found.by_hand, True), (found.ours, False), (found.theirs, False))
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
                takes=each.needs.value,
                by_hand=by_hand,
            )
            for changes, by_hand in sets
            for each in changes
        ],
        left_out=[models.LeftOutOut(quota=each.quota, why=each.why) for each in found.left_out],
        same=len(found.same),
        commands=list(found.commands),
    )
