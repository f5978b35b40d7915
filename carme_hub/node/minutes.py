# ruff: noqa: UP006, UP035, UP045
"""carme-minutes: the summary of a minute of a job's use, and how it is sent to the ``activity`` service.

carme-report loads it from the session folder. Everything that is unknown is left out of a summary, and is never 0.
Standard library only, Python 3.6 or later.
"""

import json

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

MINUTE = 60
#: Statuses by which the service says that minutes are wrong, whenever they are sent.
REFUSALS = (400, 401, 403, 409, 413, 415, 422)
#: What may be at work in a session, as its server says.
WORK = ("kernels", "terminals", "runs")


class Summary:
    """What is sent of one minute on one node.

    Attributes:
        at: its beginning, UTC epoch seconds. samples: how many it has.
    """

    def __init__(self, at: int, interval: float) -> None:
        self.at, self._interval, self.samples = at, interval, []  # type: int, float, Any

    def add(self, sample: "Dict[str, Any]") -> None:
        """Add a sample."""
        self.samples.append(sample)

    def values(self) -> "Dict[str, Any]":
        """Return the minute, without what is unknown.

        ``seconds`` that the samples stand for; ``cpu`` in percent of one CPU, on average; ``memory`` in MiB, the most;
        ``read`` and ``written`` in KiB; ``kernels``, ``terminals`` and ``runs`` that were at work; of each GPU
        ``utilisation`` on average and ``utilisation_most``, ``memory`` in MiB and ``temperature``, the most, ``power``
        in W on average, ``throttled`` in seconds, new ``ecc`` errors, and the numbers of ``xids``.
        """
        rows = self.samples
        found = {
            "at": self.at,
            "seconds": min(MINUTE, int(len(rows) * self._interval)),
            "cpu": mean(each["cpu"] for each in rows),
            "memory": most(each["memory"] for each in rows),
            "read": total(each["read"] for each in rows),
            "written": total(each["written"] for each in rows),
            **{name: at_work([each.get(name) for each in rows]) for name in WORK},
        }
        gpus = []
        for place in range(len(rows[0]["gpus"])):
            own = [each["gpus"][place] for each in rows]
            throttled = [each["throttled"] for each in own if each["throttled"] is not None]
            gpu = {
                "utilisation": mean(each["utilisation"] for each in own),
                "utilisation_most": most(each["utilisation"] for each in own),
                "memory": most(each["memory"] for each in own),
                "power": mean(each["power"] for each in own),
                "temperature": most(each["temperature"] for each in own),
                "throttled": int(sum(throttled) * self._interval) if throttled else None,
                "ecc": total(each["new_ecc"] for each in own),
                "xids": [xid for each in own for xid in each["xids"] or ()][:16] or None,
            }
            gpus.append(known(gpu))
        return {**known(found), "gpus": gpus}


def at_work(values: "Any") -> "Optional[int]":
    """Return the most that were at work; 0 only if none was at every moment, and None where that is not known."""
    found = [value for value in values if value is not None]
    most_of_all = max(found) if found else 0
    return most_of_all if most_of_all or len(found) == len(values) else None


def known(values: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return what is known of some values."""
    return {name: value for name, value in values.items() if value is not None}


def mean(values: "Any") -> "Optional[float]":
    """Return the mean of the known values, None where none is known."""
    found = [value for value in values if value is not None]
    return round(sum(found) / len(found), 1) if found else None


def most(values: "Any") -> "Optional[int]":
    """Return the largest known value."""
    return max((value for value in values if value is not None), default=None)


def total(values: "Any") -> "Optional[int]":
    """Return the sum of the known values."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


class Refused(Exception):
    """The service does not take these minutes, whenever they are sent."""


def send(address: "Dict[str, Any]", body: "Dict[str, Any]", limit: float) -> None:
    """Send minutes to the service.

    Args:
        address: ``url``, ``token``, and ``ca_file``, "" for the authorities of the node.

    Raises:
        OSError, ValueError: it did not answer, or not now.
        Refused: it answered that they are wrong.
    """
    import http.client  # imported here: the supervisor starts this program while the server starts
    import ssl
    from urllib.parse import urlsplit

    url = urlsplit(address["url"])
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=address.get("ca_file") or None)
        line = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=limit, context=context)  # type: Any
    else:
        line = http.client.HTTPConnection(url.hostname or "", url.port, timeout=limit)
    headers = {"Authorization": "carme-activity " + address["token"], "Content-Type": "application/json"}
    try:
        line.request("POST", url.path, json.dumps(body, separators=(",", ":")), headers)
        answer = line.getresponse()
        text = answer.read(4000).decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"no valid answer: {error}") from error
    finally:
        line.close()
    if answer.status in REFUSALS and is_of_service(text):
        raise Refused(f"{answer.status}: {text}")
    if answer.status >= 300:
        raise OSError(f"status {answer.status}")


def is_of_service(text: str) -> bool:
    """Return whether an answer is the service's own: where its route is missing, the hub or a proxy refuses as well."""
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return isinstance(answer, dict) and "error" in answer and "message" in answer
