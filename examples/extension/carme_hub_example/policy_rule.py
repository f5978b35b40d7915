"""A policy rule: on working days from 9 to 18 h, a new session has at most 4 GPUs."""

from datetime import datetime
from zoneinfo import ZoneInfo

from carme_hub.domain.quotas.policy_rules import PolicyRequest
from carme_hub.errors import Refused


def small_by_day(request: PolicyRequest) -> None:
    start = datetime.fromtimestamp(request.start, ZoneInfo("Europe/Berlin"))
    working_hours = start.weekday() < 5 and 9 <= start.hour < 18
    if request.kind == "session" and not request.in_booking and working_hours and request.ask.gpus.count > 4:
        raise Refused("On working days from 9 to 18 h a session has at most 4 GPUs. Take fewer, or book them.")
