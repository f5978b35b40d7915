"""Signatures of cosign, verified by cosign where it is installed, by the keys that the policy names.

Some skopeos can check them, but not Debian's, in which that is disabled, and none those that cosign 3 makes. So where
cosign is there it is asked about each requirement ``sigstoreSigned`` with keys of the policy, for exactly the digest
that is copied then, and the copy gets the policy without what is satisfied. Without cosign, and for identities of
Fulcio, skopeo decides alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from carme_hub.errors import ContainerError

from .process import ENVIRON, Steps, through_proxy
from .source import Source
from .trust import Trust, read_protected

#: Fields of a requirement that cosign can decide here.
_KEYS = ("keyPath", "keyPaths", "keyData", "keyDatas")
_KNOWN = {"type", "signedIdentity", *_KEYS}
#: Kinds of signedIdentity: what is signed must be of the same repository. A digest is not a tag, so none is stricter.
_SAME_REPOSITORY = ("matchRepoDigestOrExact", "matchRepository", "matchExact")


def verified(source: Source, digests: Sequence[str], trust: Trust, steps: Steps) -> tuple[Trust, list[str]]:
    """Return the policy by which skopeo copies a registry's image, and what cosign has said, a line for each key.

    Args:
        digests: of the image for this machine, and of the index that names it; a signature of one is enough.

    Raises:
        ContainerError: there is no signature by such a key.
    """
    wanted = [each for each in trust.requirements(source) if _is_ours(each)]
    if not wanted or shutil.which("cosign", path=ENVIRON["PATH"]) is None:
        return trust, []
    lines = [_satisfied(each, source, digests, trust, steps) for each in wanted]
    return trust.only([each for each in trust.requirements(source) if not _is_ours(each)]), lines


def _is_ours(requirement: Mapping[str, Any]) -> bool:
    return requirement.get("type") == "sigstoreSigned" and requirement.keys() <= _KNOWN


def _satisfied(
    requirement: Mapping[str, Any], source: Source, digests: Sequence[str], trust: Trust, steps: Steps
) -> str:
    """Return which key has signed one of the digests."""
    why: list[str] = []
    for name, key in _keys(requirement, trust.file):
        for digest in dict.fromkeys(digests):
            try:
                said = _cosign(source, digest, key, trust, steps)
            except ContainerError as error:
                why.append(f"{name}: {error}")
                continue
            if any(_identity_fits(each, source, digest, requirement) for each in said):
                return f"cosign: {name} has signed {digest}"
            why.append(f"{name} has signed this image for another place")
    raise ContainerError(f"{source} has no signature that {trust.file} asks for. {'; '.join(why)}")


def _keys(requirement: Mapping[str, Any], policy: str) -> list[tuple[str, bytes]]:
    """Return the public keys of a requirement with their names, each of which is enough."""
    paths = [requirement[name] for name in ("keyPath",) if name in requirement] + list(requirement.get("keyPaths", ()))
    datas = [requirement[name] for name in ("keyData",) if name in requirement] + list(requirement.get("keyDatas", ()))
    found = [(str(path), read_protected(Path(str(path)), 0o022, "nobody else may write it")) for path in paths]
    for data in datas:
        try:
            found.append((f"the key in {policy}", base64.b64decode(str(data), validate=True)))
        except binascii.Error as error:
            raise ContainerError(f"a key in {policy} is not written in base64") from error
    if not found:
        raise ContainerError(f"{policy} asks for a signature (sigstoreSigned) and names no key")
    return found


def _cosign(source: Source, digest: str, key: bytes, trust: Trust, steps: Steps) -> list[Any]:
    """Return the claims that cosign has verified.

    Raises:
        ContainerError: there is no signature of this digest by this key, or cosign failed.
    """
    folder = steps.work / "cosign"  # where cosign looks for passwords; the file itself is in memory
    folder.mkdir(mode=0o755)
    try:
        with ExitStack() as stack:
            public, public_fd = stack.enter_context(steps.readable(key))
            auth, auth_fd = stack.enter_context(steps.readable(trust.auth))
            (folder / "config.json").symlink_to(auth)
            # As skopeo, which looks at no transparency log unless the policy names the log's key.
            argv = ["cosign", "verify", "--key", public, "--insecure-ignore-tlog=true", "--output", "json"]
            argv += ["--allow-http-registry"] if source.is_loopback else []
            said = steps.run(
                [*argv, f"{source.location}@{digest}"],
                confine=False,
                pass_fds=(public_fd, auth_fd),
                environ={**through_proxy(), "DOCKER_CONFIG": str(folder), "HOME": str(folder)},
            )
    finally:
        shutil.rmtree(folder)
    try:
        found = json.loads(said)
    except ValueError as error:
        raise ContainerError("cosign gave no valid answer") from error
    return found if isinstance(found, list) else []


def _identity_fits(claim: object, source: Source, digest: str, requirement: Mapping[str, Any]) -> bool:
    """Return whether a claim is of this digest, and of the repository that the policy asks for."""
    critical = claim.get("critical") if isinstance(claim, dict) else None
    if not isinstance(critical, dict):
        return False
    try:
        signed, place = critical["image"]["docker-manifest-digest"], str(critical["identity"]["docker-reference"])
    except (KeyError, TypeError):
        return False
    identity = requirement.get("signedIdentity") or {"type": "matchRepoDigestOrExact"}
    kind = identity.get("type") if isinstance(identity, dict) else None
    if kind == "exactRepository":
        wanted = str(identity.get("dockerRepository"))
    elif kind in _SAME_REPOSITORY:
        wanted = source.location
    else:
        raise ContainerError(f"the signedIdentity {kind!r} of the policy is not known here")
    return signed == digest and _repository(place) == _repository(wanted)


def _repository(reference: str) -> str:
    """Return a reference without tag and digest."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
