"""What an image must show before it is copied: a signature policy, and passwords for registries; read from files.

The policy is that of containers-policy.json(5). skopeo applies it; here is only said whether it asks for a signature,
so that nobody takes a policy that accepts everything, as Debian's does, for a check.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carme_hub.errors import ContainerError

from .manifest import MAX_BYTES, read_json
from .source import Source

#: Where a policy is looked for if none is named: the site's for images, then that of podman and skopeo.
POLICIES = (Path("/etc/carme-hub/image-policy.json"), Path("/etc/containers/policy.json"))
#: What a skopeo says that cannot check signatures of cosign: Debian's, and those before 1.9.
_CANNOT = ("sigstore disabled", "nknown policy requirement type", 'Unknown key "use-sigstore-attachments"')
#: If there is none: no signatures are checked; what is copied is what has the digest.
ANYTHING = b'{"default": [{"type": "insecureAcceptAnything"}]}'


@dataclass(frozen=True, slots=True)
class Trust:
    """What an image must show before it is copied.

    Attributes:
        policy: the text of the policy. file: where it is from; "" = there is none, and everything is accepted.
        auth: the text of the file with passwords for registries, as ``podman login --authfile`` writes it.
        signatures: folder of containers-registries.d(5), which says where signatures are; "" = the system's.
    """

    policy: bytes = ANYTHING
    file: str = ""
    auth: bytes = b"{}"
    signatures: str = ""

    def asks(self, source: Source) -> bool:
        """Return whether the policy asks for anything of a source, or refuses it; without a file it does not."""
        return _asks(self._of(source))

    def requirements(self, source: Source) -> list[dict[str, Any]]:
        """Return what the policy asks of a source, all of it; [] where it is not valid, so that skopeo refuses it."""
        found = self._of(source)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def _of(self, source: Source) -> object:
        value = read_json(self.policy, f"the policy {self.file}")
        scopes = (value.get("transports") or {}).get(source.kind) or {}
        for scope in (*_scopes(source), ""):
            if scope in scopes:
                return scopes[scope]
        return value.get("default")

    def only(self, requirements: list[dict[str, Any]]) -> Trust:
        """Return the same with a policy that asks this of each registry's image; nothing, where that is []."""
        asked = requirements or [{"type": "insecureAcceptAnything"}]
        policy = {"default": [{"type": "reject"}], "transports": {"docker": {"": asked}}}
        return replace(self, policy=json.dumps(policy).encode())

    def asks_anywhere(self) -> bool:
        """Return whether the policy asks for anything of any source, or refuses any."""
        value = read_json(self.policy, f"the policy {self.file}")
        transports = value.get("transports") or {}
        scopes = [each for of in transports.values() if isinstance(of, dict) for each in of.values()]
        return any(_asks(each) for each in (value.get("default"), *scopes))

    def hint(self, said: str) -> str:
        """Return what to do where skopeo refuses an image; "" where its own words say all.

        Args:
            said: by skopeo.
        """
        if b"sigstoreSigned" not in self.policy:
            return ""
        if any(words in said for words in _CANNOT):
            return (
                f"This skopeo cannot check signatures of cosign, which {self.file} asks for, and cosign is not"
                " installed here: install cosign 2 or later, or sign with GPG (signedBy)"
            )
        if "signature was required, but no signature exists" in said:
            where = self.signatures or "/etc/containers/registries.d"
            return (
                f"If cosign has signed it, a file in {where} must say use-sigstore-attachments: true for its registry "
                "(containers-registries.d(5)); one for several kinds of machines needs cosign sign --recursive"
            )
        return ""


def read_trust(policy: Path | None = None, authfile: Path | None = None, signatures: Path | None = None) -> Trust:
    """Return the policy and the passwords of these files; without a policy the first of ``POLICIES`` that exists.

    Raises:
        ContainerError: one cannot be read, or others can write the policy or read the passwords.
    """
    file = policy or next((each for each in POLICIES if each.is_file()), None)
    text = ANYTHING if file is None else read_protected(file, 0o022, "nobody else may write it")
    read_json(text, f"the policy {file}")
    auth = b"{}"
    if authfile is not None:
        auth = read_protected(authfile, 0o077, "it has passwords, so only you may read it (mode 0600)")
        read_json(auth, f"the passwords in {authfile}")
    return Trust(text, str(file or ""), auth, str(signatures or ""))


def read_protected(file: Path, forbidden: int, reason: str) -> bytes:
    """Return the content of a file of ours or root's.

    Args:
        forbidden: bits of its mode. reason: why, in words.

    Raises:
        ContainerError: it cannot be read, or others have these rights.
    """
    try:
        with file.open("rb") as opened:
            state = os.fstat(opened.fileno())
            if stat.S_IMODE(state.st_mode) & forbidden or state.st_uid not in (0, os.geteuid()):
                raise ContainerError(f"{file} must belong to you or root, and {reason}")
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ContainerError(f"{file} cannot be read: {error.strerror}") from error


def _scopes(source: Source) -> list[str]:
    """Return the scopes of a registry's image in a policy, the narrowest first."""
    if source.kind != "docker":
        return []
    first, _, rest = source.location.partition("/")
    if not rest or not ("." in first or ":" in first or first == "localhost"):
        first, rest = "docker.io", source.location if rest else f"library/{source.location}"
    parts = f"{first}/{rest}".split("/")
    found = [f"{first}/{rest}@{source.digest}" if source.digest else f"{first}/{rest}:{source.tag or 'latest'}"]
    found += ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    domains = first.split(":")[0].split(".")
    return [*found, *(f"*.{'.'.join(domains[at:])}" for at in range(1, len(domains)))]


def _asks(requirements: object) -> bool:
    if not isinstance(requirements, list) or not requirements:
        return True  # skopeo refuses such a policy
    kinds = {each.get("type") if isinstance(each, dict) else None for each in requirements}
    return kinds != {"insecureAcceptAnything"}
