"""A signature policy: an image that the site has signed is taken, and no other, by GPG keys of the test's own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rig.foreign_images import SYSTEM, Registry, layer, registry, write_layout

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.recipe import about
from carme_hub.containers.store.source import parse_source
from carme_hub.containers.store.trust import Trust, read_trust
from carme_hub.errors import ContainerError


class Signer:
    """Keys of GPG, and a registry whose images may be signed with them."""

    def __init__(self, home: Path, loopback: Registry, folder: Path) -> None:
        self._environ = {**os.environ, "GNUPGHOME": str(home)}
        self.registry, self.folder = loopback, folder
        self.signatures = folder / "registries.d"
        self.signatures.mkdir()
        where = f"file://{folder}/signatures"
        said = {"docker": {loopback.address: {"sigstore": where, "sigstore-staging": where}}}
        (self.signatures / "test.yaml").write_text(json.dumps(said))

    def key(self, name: str) -> str:
        """Make a key and return its public part in base64."""
        self._gpg("--passphrase", "", "--quick-gen-key", name, "ed25519", "sign", "never")
        return base64.b64encode(self._gpg("--export", name)).decode()

    def push(self, layout: Path, name: str, signer: str = "") -> None:
        """Push an image, signed if a signer is named."""
        sign = ["--sign-by", self._fingerprint(signer)] if signer else []
        argv = ["skopeo", "--insecure-policy", "--registries.d", str(self.signatures), "copy", "--quiet", *sign]
        argv += ["--dest-tls-verify=false", f"oci:{layout}:image", f"docker://{self.registry.address}/{name}"]
        subprocess.run(argv, env=self._environ, check=True, capture_output=True, timeout=60)

    def policy(self, key: str) -> Path:
        """Write a policy that takes what this key has signed, and nothing else."""
        signed = {"type": "signedBy", "keyType": "GPGKeys", "keyData": key}
        signed |= {"signedIdentity": {"type": "matchRepository"}}
        file = self.folder / "policy.json"
        transports = {"docker": {self.registry.address: [signed]}}
        file.write_text(json.dumps({"default": [{"type": "reject"}], "transports": transports}))
        return file

    def _fingerprint(self, name: str) -> str:
        lines = self._gpg("--with-colons", "--list-keys", name).decode().splitlines()
        return next(line.split(":")[9] for line in lines if line.startswith("fpr"))

    def _gpg(self, *words: str) -> bytes:
        argv = ["gpg", "--batch", "--quiet", *words]
        return subprocess.run(argv, env=self._environ, check=True, capture_output=True, timeout=60).stdout

    def end(self) -> None:
        """End the agent that GPG has started."""
        subprocess.run(["gpgconf", "--kill", "all"], env=self._environ, check=False, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def signer() -> Iterator[Signer]:
    with TemporaryDirectory(prefix="c") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "keys").mkdir(mode=0o700)  # its agent listens there, so the path is short
        with registry(folder) as running:
            found = Signer(folder / "keys", running, folder)
            yield found
            found.end()


SIGNED, ANY = [{"type": "sigstoreSigned"}], [{"type": "insecureAcceptAnything"}]


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("docker://registry.example.org/site/lab:1", True),
        ("docker://registry.example.org/open/lab:1", False),
        ("docker://registry.example.org/open/closed:1", True),
        ("docker://registry.example.org/open/closed:free", False),
        ("docker://other.example.org/lab:1", True),
        ("docker://ubuntu", False),
        ("docker://quay.io/a/b", True),
        ("oci:/srv/layout", False),
        ("docker-archive:/srv/x.tar", True),
    ],
)
def test_a_policy_that_asks_for_nothing_is_not_taken_for_a_check(source: str, asks: bool) -> None:
    docker = {"registry.example.org": SIGNED, "registry.example.org/open": ANY, "*.example.org": SIGNED}
    docker |= {"registry.example.org/open/closed": [{"type": "reject"}], "docker.io/library": ANY}
    docker |= {"registry.example.org/open/closed:free": ANY}
    policy = {"default": SIGNED, "transports": {"docker": docker, "oci": {"": ANY}}}
    assert Trust(json.dumps(policy).encode(), "policy.json").asks(parse_source(source)) == asks
    assert not Trust().asks(parse_source(source))


def test_only_what_the_site_has_signed_is_taken(signer: Signer, open_path: Path, tmp_path: Path) -> None:
    site, other = signer.key("site@example.org"), signer.key("other@example.org")
    store = open_path / "store"
    store.mkdir(mode=0o755)
    write_layout(tmp_path / "layout", layer(SYSTEM))
    signer.push(tmp_path / "layout", "site/lab:signed", "site@example.org")
    write_layout(tmp_path / "layout", layer(SYSTEM), layer(SYSTEM[:1]))
    signer.push(tmp_path / "layout", "site/lab:unsigned")
    trust = read_trust(signer.policy(site), signatures=signer.signatures)
    source = f"docker://{signer.registry.address}/site/lab"
    image = add_image(f"{source}:signed", store, "lab", options=AddOptions(trust=trust))
    assert about(image)["policy"] == str(signer.folder / "policy.json")
    with pytest.raises(ContainerError, match="signature was required"):
        add_image(f"{source}:unsigned", store, "other", options=AddOptions(trust=trust))
    trust = read_trust(signer.policy(other), signatures=signer.signatures)
    with pytest.raises(ContainerError, match=r"[Ss]ignature"):
        add_image(f"{source}:signed", store, "again", options=AddOptions(trust=trust))
    assert len(list(store.glob(".digests/*"))) == 1
    assert add_image(f"{source}:unsigned", store, "free", options=AddOptions(trust=Trust())).exists()
