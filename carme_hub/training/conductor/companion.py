"""The companion of a run whose session has too few GPUs: request it, wait for it, and give it back at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from carme_hub.training.run.description import gpu_kind, pluralize
from carme_hub.training.run.placement import Placement, companion_size
from carme_hub.training.session.companions import Companion, Hub, NoHub, Refused, live_companions, release_by_file
from carme_hub.training.session.step_broker import Allocation, NoBroker, NotReady

if TYPE_CHECKING:
    from .conductor import Conductor

#: Seconds between two checks whether it runs, between two attempts to give it back, until these stop, and until a
#: companion shows up whose request got no answer: the hub may still be opening it.
POLL_INTERVAL, RETRY_INTERVAL, GIVE_BACK_TIMEOUT, APPEAR_TIMEOUT = 1.0, 2.0, 60.0, 5.0
#: Seconds for a companion that was given back to end before another one is requested in its place.
REPLACE_TIMEOUT = 90.0
#: Minutes that it gets beyond the run's time limit, for its containers to start.
START_MINUTES = 2


class CompanionJob:
    """The companion of one run.

    Args:
        number: of the restart for which it is requested. replaces: id of the companion that was given back for it.

    Attributes:
        id: its session id, "" before ``open``.
    """

    def __init__(self, conductor: Conductor, number: int = 0, replaces: str = "") -> None:
        self.id, self._replaces = "", replaces
        # A request with the same key would get the companion that has ended.
        self._key = f"{conductor.request['key']}{f'-{number}' if number else ''}"
        self._conductor = conductor
        self._hub = Hub.from_environ()
        self._unanswered = False  # whether one may exist whose answer was lost

    def open(self, placement: Placement, exclude: Collection[str] = (), avoid: Collection[str] = ()) -> Allocation:
        """Request a companion, wait until it runs, and return its allocation. The run can be stopped meanwhile.

        Args:
            exclude: nodes that it must not get. avoid: further ones, which it gets where the hub has no others.

        Raises:
            conductor.Stopped: the run was stopped. conductor.Failed: the hub refused, or the companion ended.
        """
        from .conductor import Failed

        conductor, options = self._conductor, self._conductor.options
        conductor.state.update(state="waiting", message="Asking the hub for more GPUs.")
        self._wait_for_end_of_replaced()
        while not self.id:
            try:
                opened = self._hub.open(
                    **companion_size(options, placement),
                    exclude={*exclude, *avoid},
                    replaces=self._replaces,
                    stage=options.stage,
                    minutes=-(-options.seconds // 60) + START_MINUTES if options.seconds else 0,
                    name=conductor.run.id,
                    key=self._key,
                )
            except Refused as error:
                if self._replaces and error.reason == "400":  # an older hub does not know this
                    self._replaces = ""
                    continue
                if not avoid:
                    raise Failed(str(error)) from error
                avoid, self._key = (), f"{self._key}-any"  # another request has another key
            except NoHub as error:  # the answer may be lost; the same key gives the same companion
                self._unanswered = True
                conductor.state.update(message=str(error))
                conductor.stopping.wait(RETRY_INTERVAL)
                conductor.check()
            else:
                self.id = opened.id
        conductor.state.update(companions=[self.id], message=self._status_message(opened))
        while True:
            conductor.check()
            try:
                now = next((each for each in self._hub.list() if each.id == self.id), None)
            except NoHub:  # the hub restarts; the companion keeps waiting meanwhile
                conductor.stopping.wait(POLL_INTERVAL)
                continue
            if now is not None and now.state == "ending":
                raise Failed("The request for more GPUs was cancelled before it was granted. Run it again.")
            if now is None or now.state == "ended":
                text = f" {now.said}" if now is not None and now.said else ""
                raise Failed(f"The companion job ended before it started.{text} Run it again.")
            conductor.state.update(message=self._status_message(now))
            if now.state == "running":
                try:
                    return conductor.broker.allocation(self.id)
                except NotReady:
                    pass  # Slurm reports it a moment later
                except NoBroker as error:  # Slurm is busy: no reason to give up a companion after a long wait
                    conductor.state.update(message=str(error))
            conductor.stopping.wait(POLL_INTERVAL)

    def _wait_for_end_of_replaced(self) -> None:
        """Wait until the companion that this one replaces has ended, as far as limits on what runs at once go."""
        end = time.monotonic() + REPLACE_TIMEOUT
        while self._replaces and time.monotonic() < end:
            self._conductor.check()
            with contextlib.suppress(NoHub):
                if all(each.state == "ended" for each in self._hub.list() if each.id == self._replaces):
                    return
            self._conductor.stopping.wait(POLL_INTERVAL)

    def lost_message(self) -> str:
        """Return a message where the companion has ended while its ranks ran, "" otherwise."""
        try:
            self._conductor.broker.allocation(self.id)
        except NotReady:  # who ended it is unknown here
            return "The companion job of this run ended while its ranks ran: it was cancelled, preempted or given back."
        except NoBroker:
            pass  # unknown: the rank's own error stays
        return ""

    def give_back(self) -> None:
        """Give the companion back; retry while the hub is down."""
        began = time.monotonic()
        while self.id or self._unanswered:
            try:
                if self.id:
                    self._hub.close(self.id)
                    return
                for id in live_companions(self._hub, self._conductor.run.id):
                    with contextlib.suppress(Refused):  # it has ended meanwhile
                        self._hub.close(id)
                    self._unanswered = False
                if time.monotonic() > began + APPEAR_TIMEOUT:
                    return
            except NoHub:
                if time.monotonic() > began + GIVE_BACK_TIMEOUT:
                    if self.id:
                        release_by_file(self.id)
                    raise
            time.sleep(RETRY_INTERVAL)

    def _status_message(self, companion: Companion) -> str:
        kind = gpu_kind(self._conductor.state.get())
        if companion.state != "waiting":
            return ""
        text = companion.said
        if text.startswith("Waiting for ") and "; " in text:
            text = text.partition("; ")[2]  # drop the part that the sentence below repeats
        return f"Waiting for {pluralize(companion.gpus, f'more {kind}')}: {text[:1].lower()}{text[1:]}"
