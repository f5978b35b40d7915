# ruff: noqa: UP006, UP035, PTH123
"""carme-image-service: asks the images service what a node needs soon, and says what it has (carme-node-images).

The token is in a file that only root can read (``token_file``). A service that does not answer is no reason to fetch or
to remove anything.
"""

import json
import os
import stat

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, List

SECONDS, LARGEST = 10.0, 1 << 20
DRIVER = "/sys/module/nvidia/version"


class Service:
    """The service, for one node; without an address it wants nothing and is told nothing."""

    def __init__(self, settings: "Dict[str, str]", node: str) -> None:
        self._settings, self._node = settings, node

    def wanted(self) -> "List[str]":
        """Return the images that the node needs soon: digests, with ``.sqfs`` for those that are one file."""
        if not self._settings["url"]:
            return []
        answer = self._ask("GET", f"api/v1/nodes/{self._node}/wanted", None)
        found = answer.get("images") if isinstance(answer, dict) else None
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def report(self, images: "List[Dict[str, Any]]", problems: "Dict[str, str]", free: int) -> None:
        """Say what the node has, what it could not fetch, and its GPU driver."""
        if not self._settings["url"]:
            return
        held = {each["digest"]: each for each in images}
        said = [
            {"digest": digest, "at": each["at"], "seconds": each["seconds"], "size": int(each["size"]), "problem": ""}
            for digest, each in sorted(held.items())
        ]
        said += [
            {"digest": digest, "at": 0.0, "seconds": 0.0, "size": 0, "problem": problem[:500]}
            for digest, problem in sorted(problems.items())
            if digest not in held
        ]
        self._ask("POST", f"api/v1/nodes/{self._node}/images", {"driver": driver(), "free": free, "images": said})

    def _ask(self, method: str, path: str, body: "Any") -> "Any":
        import http.client
        import ssl
        from urllib.parse import urlsplit

        url = urlsplit(self._settings["url"])
        port, host = url.port, url.hostname or ""
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self._settings["ca_file"] or None)
            line = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)  # type: Any
        else:
            line = http.client.HTTPConnection(host, port, timeout=SECONDS)
        headers = {"Authorization": "token " + self._token(), "Content-Type": "application/json"}
        try:
            text = json.dumps(body) if body is not None else None
            line.request(method, url.path.rstrip("/") + "/" + path, text, headers)
            answer = line.getresponse()
            said = answer.read(LARGEST)
        except http.client.HTTPException as error:
            raise OSError(f"the images service gave no valid answer: {error}") from error
        finally:
            line.close()
        if answer.status >= 300:
            raise OSError(
                "the images service answered {}: {}".format(answer.status, said[:300].decode(errors="replace"))
            )
        try:
            return json.loads(said.decode()) if said else {}
        except ValueError as error:
            raise OSError("the images service gave no valid answer") from error

    def _token(self) -> str:
        path = self._settings["token_file"]
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise OSError(f"others can read {path}: chmod 600 {path}")
            return file.read().strip()


def driver() -> str:
    """Return the version of the node's GPU driver; "" where there is none."""
    try:
        with open(DRIVER, encoding="utf-8") as file:
            return file.read().strip()[:40]
    except OSError:
        return ""
