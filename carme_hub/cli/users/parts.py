"""The parts of an offboarding, one after the other: look, say what is about to end, end it, and look until it is gone.

Nothing is stored on the side: what there is says how far it has come. So the same command goes on after a crash, and
does nothing where nothing is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from carme_hub.domain.administration.offboarding import Found, Item, State, shown, step_words
from carme_hub.errors import CarmeError, Refused

#: Records what is about to be done, or what came of it: words, and why it is not done.
Record = Callable[[str, str], Awaitable[None]]


class Part:
    """One kind of thing that a user has.

    Attributes:
        name: of the part. effect: what becomes of its things, as a participle.
        needs: the names of parts that must be done before it ends anything.
    """

    name = ""
    effect = "ended"
    needs: tuple[str, ...] = ()

    async def look(self) -> Sequence[Item]:
        """Return what is there; raise ``CarmeError`` or ``OSError`` where that is not known."""
        raise NotImplementedError

    async def end(self, items: Sequence[Item]) -> None:
        """Ask for the end of these; what has ended already is no error.

        Raises:
            Refused: it will not end by being asked again. CarmeError, OSError: it may or may not end.
        """
        raise NotImplementedError


class Unreadable(Part):
    """A part of which nothing is known, since what would be asked cannot be opened."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self._error = name, error

    async def look(self) -> Sequence[Item]:
        """Raise the error."""
        raise self._error


async def looked_at(part: Part) -> Found:
    """Return what is there of a part; nothing is done."""
    try:
        items = tuple(await part.look())
    except (CarmeError, OSError) as error:
        return Found(part.name, part.effect, State.UNKNOWN, words=_words(error))
    return Found(part.name, part.effect, State.LEFT if any(not item.kept for item in items) else State.DONE, items)


class Offboarding:
    """Ends parts in their order.

    Args:
        record: writes to the audit log; nothing is ended that could not be recorded. say: prints a line.
        wait: seconds for the end of one part. every: seconds between two looks.
    """

    def __init__(self, record: Record, say: Callable[[str], None], *, wait: float, every: float) -> None:
        self._record, self._say = record, say
        self._wait, self._every = wait, every

    async def run(self, parts: Sequence[Part]) -> list[Found]:
        """End them; return how far each has come."""
        found: dict[str, Found] = {}
        for part in parts:
            found[part.name] = one = await self._part(part, found)
            if one.state is State.DONE and one.ended:
                self._say(f"{one.name}: {one.ended} {one.effect}")
            elif one.state is not State.DONE:
                self._say(f"{one.name}: {one.words or one.state.value}")
        return list(found.values())

    async def _part(self, part: Part, before: Mapping[str, Found]) -> Found:
        found = await looked_at(part)
        if found.state is not State.LEFT:
            return found
        missing = [name for name in part.needs if name in before and before[name].state is not State.DONE]
        if missing:
            return replace(found, state=State.WAITS, words=f"until this is done: {', '.join(missing)}")
        try:
            await self._record(step_words(found), "")
        except (CarmeError, OSError) as error:
            words = f"it cannot be recorded in the audit log, so nothing is done: {_words(error)}"
            return replace(found, state=State.UNKNOWN, words=words)
        done = await self._ended(part, found)
        why = "" if done.state is State.DONE else done.words or "it has not ended yet"
        try:
            await self._record(f"{done.name}: {done.ended} {done.effect}", why)
        except (CarmeError, OSError) as error:
            words = f"what came of it is not in the audit log: {_words(error)}"
            return replace(done, state=State.UNKNOWN, words=words)
        return done

    async def _ended(self, part: Part, found: Found) -> Found:
        """Ask for the end until it is seen, it is refused, or the time is over."""
        seen = {item.id for item in found.going}
        until = time.monotonic() + self._wait
        while True:
            refusal = problem = ""
            try:
                await part.end(found.going)
            except Refused as error:
                refusal = error.message
            except (CarmeError, OSError) as error:
                problem = _words(error)
            now = await looked_at(part)
            if now.state is not State.UNKNOWN:
                seen |= {item.id for item in now.going}
                found = replace(now, ended=len(seen) - len(now.going))
            if now.state is State.DONE:
                return found
            if refusal:
                return replace(found, words=refusal)
            if time.monotonic() >= until:
                if now.state is State.UNKNOWN or problem:
                    return replace(found, state=State.UNKNOWN, words=now.words or problem)
                return replace(found, words="it has not ended yet; the same command goes on")
            await asyncio.sleep(self._every)


def _words(error: Exception) -> str:
    text = error.message if isinstance(error, Refused) else str(error)
    return shown(text) or type(error).__name__
