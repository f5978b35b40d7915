"""Signatures as cosign makes them, by a key of the test's own, verified by cosign, or by a stand-in where it is not."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from rig.foreign_images import ARCHITECTURE, OCI, SYSTEM, Registry, layer, registry, write_layout

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.process import ENVIRON
from carme_hub.containers.store.recipe import about
from carme_hub.containers.store.trust import Trust, read_trust
from carme_hub.errors import ContainerError


class Cosigner:
    """What ``cosign sign`` pushes: a small image, tagged by the digest that it signs (cosign's SIGNATURE_SPEC)."""

    def __init__(self, loopback: Registry, folder: Path) -> None:
        self.registry, self.folder = loopback, folder
        self.change_key()

    def change_key(self) -> None:
        """Sign with a new key from now on, which the policy names."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public = self._key.public_key().public_bytes(serialization.Encoding.PEM, form)
        (self.folder / "cosign.pub").write_bytes(public)

    def sign(self, name: str, digest: str, of: str = "") -> None:
        """Sign a digest; ``of``: the repository that the signature is for, where it is another."""
        identity = {"docker-reference": f"{self.registry.address}/{of or name}"}
        critical = {"identity": identity, "image": {"docker-manifest-digest": digest}}
        said = {"critical": {**critical, "type": "cosign container image signature"}, "optional": None}
        payload = json.dumps(said).encode()
        signature = base64.b64encode(self._key.sign(payload, ec.ECDSA(hashes.SHA256()))).decode()
        config = json.dumps({"architecture": "", "os": "", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}})
        signed = {"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", **self._blob(name, payload)}
        signed["annotations"] = {"dev.cosignproject.cosign/signature": signature}
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": {"mediaType": f"{OCI}.config.v1+json", **self._blob(name, config.encode())},
            "layers": [signed],
        }
        self.put_manifest(name, f"{digest.replace(':', '-')}.sig", manifest)

    def put_manifest(self, name: str, tag: str, manifest: dict[str, Any]) -> str:
        """Put a manifest, and return its digest."""
        content = json.dumps(manifest).encode()
        self._ask("PUT", f"/v2/{name}/manifests/{tag}", content, manifest["mediaType"])
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def _blob(self, name: str, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = self._ask("POST", f"/v2/{name}/blobs/uploads/", b"")
        self._ask("PUT", f"{place}&digest={digest}", content, "application/octet-stream")
        return {"digest": digest, "size": len(content)}

    def _ask(self, method: str, path: str, body: bytes, kind: str = "") -> str:
        url = path if path.startswith("http") else f"http://{self.registry.address}{path}"
        auth = json.loads(Path(self.registry.authfile).read_text())["auths"][self.registry.address]["auth"]
        headers = {"Authorization": f"Basic {auth}", **({"Content-Type": kind} if kind else {})}
        request = urllib.request.Request(url, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.headers.get("Location", ""))

    def trust(self, **more: Any) -> Trust:
        """Return a policy that takes what this key has signed, and nothing else."""
        signed = {"type": "sigstoreSigned", "keyPath": str(self.folder / "cosign.pub"), **more}
        transports = {"docker": {self.registry.address: [signed]}}
        file = self.folder / "policy.json"
        file.write_text(json.dumps({"default": [{"type": "reject"}], "transports": transports}))
        return read_trust(file, Path(self.registry.authfile))


@pytest.fixture(scope="module")
def cosigner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cosigner]:
    folder = tmp_path_factory.mktemp("cosign")
    with registry(folder, "a-password") as running:
        yield Cosigner(running, folder)


#: Verifies as cosign does what it takes of its arguments: the signature of this digest, by this key.
STAND_IN = """#!/usr/bin/python3 -IS
import base64, json, os, subprocess, sys, tempfile, urllib.request
assert sys.argv[1:3] == ["verify", "--key"] and "--allow-http-registry" in sys.argv, sys.argv
auths = json.load(open(os.environ["DOCKER_CONFIG"] + "/config.json"))["auths"]
assert not os.stat(os.environ["DOCKER_CONFIG"] + "/config.json").st_mode & 0o077
place, _, digest = sys.argv[-1].partition("@")
address, _, name = place.partition("/")
def read(path):
    request = urllib.request.Request(f"http://{address}/v2/{name}/{path}")
    request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
    request.add_header("Authorization", "Basic " + auths[address]["auth"])
    return urllib.request.urlopen(request, timeout=10).read()
try:
    manifest = json.loads(read("manifests/" + digest.replace(":", "-") + ".sig"))
except urllib.error.HTTPError:
    sys.exit("Error: no signatures found")
[layer] = manifest["layers"]
payload = read("blobs/" + layer["digest"])
with tempfile.NamedTemporaryFile() as said, tempfile.NamedTemporaryFile() as signature:
    said.write(payload), said.flush()
    signature.write(base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])), signature.flush()
    argv = ["openssl", "dgst", "-sha256", "-verify", sys.argv[3], "-signature", signature.name, said.name]
    if subprocess.run(argv, stdout=subprocess.DEVNULL, close_fds=False).returncode:
        sys.exit("Error: no matching signatures: invalid signature when validating ASN.1 encoded signature")
assert json.loads(payload)["critical"]["image"]["docker-manifest-digest"] == digest
print(json.dumps([json.loads(payload)]))
"""


@pytest.fixture
def cosign(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cosign be installed: the real one where the machine has it."""
    path = open_path / "bin/cosign"
    path.parent.mkdir()
    if real := shutil.which("cosign"):
        path.symlink_to(real)
    else:
        path.write_text(STAND_IN)
        path.chmod(0o755)
    monkeypatch.setitem(ENVIRON, "PATH", f"{path.parent}:{ENVIRON['PATH']}")


def push(cosigner: Cosigner, folder: Path, name: str, extra: int) -> str:
    """Push an image, another for each number, and return its digest."""
    digest = write_layout(folder / str(extra), layer(SYSTEM), layer(SYSTEM[:extra]))
    cosigner.registry.push(folder / str(extra), name)
    return digest


@pytest.mark.usefixtures("cosign")
def test_what_cosign_has_signed_is_taken_and_nothing_else(cosigner: Cosigner, store: Path, tmp_path: Path) -> None:
    digests = [push(cosigner, tmp_path, f"site/lab:{extra}", extra) for extra in (1, 2, 3)]
    cosigner.sign("site/lab", digests[0])
    cosigner.sign("site/lab", digests[1], of="site/trial")
    trust, source = cosigner.trust(), f"docker://{cosigner.registry.address}/site/lab"
    lines: list[str] = []
    image = add_image(f"{source}:1", store, "lab", progress=lines.append, options=AddOptions(trust=trust))
    assert (about(image)["digest"], about(image)["policy"]) == (digests[0], trust.file)
    assert any(line.startswith("cosign: ") and digests[0] in line for line in lines), lines
    with pytest.raises(ContainerError, match="signed this image for another place"):
        add_image(f"{source}:2", store, "trial", options=AddOptions(trust=trust))
    place = {"type": "exactRepository", "dockerRepository": f"{cosigner.registry.address}/site/trial"}
    trial = add_image(f"{source}:2", store, "trial", options=AddOptions(trust=cosigner.trust(signedIdentity=place)))
    assert about(trial)["digest"] == digests[1]
    with pytest.raises(ContainerError, match="no signatures found"):
        add_image(f"{source}:3", store, "other", options=AddOptions(trust=trust))
    cosigner.change_key()
    with pytest.raises(ContainerError, match="invalid signature"):
        add_image(f"{source}:1", store, "other", options=AddOptions(trust=cosigner.trust()))
    assert sorted(each.name for each in store.iterdir() if not each.name.startswith(".")) == ["lab", "trial"]


@pytest.mark.usefixtures("cosign")
def test_a_signature_of_the_index_is_one_of_its_images(cosigner: Cosigner, store: Path, tmp_path: Path) -> None:
    digest = push(cosigner, tmp_path, "site/many:one", 3)
    size = (tmp_path / "3/blobs/sha256" / digest.removeprefix("sha256:")).stat().st_size
    entry: dict[str, Any] = {"mediaType": f"{OCI}.manifest.v1+json", "digest": digest, "size": size}
    entry["platform"] = {"os": "linux", "architecture": ARCHITECTURE}
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]}
    signed = cosigner.put_manifest("site/many", "1", index)
    cosigner.sign("site/many", signed)
    source = f"docker://{cosigner.registry.address}/site/many:1"
    assert about(add_image(source, store, "lab", options=AddOptions(trust=cosigner.trust())))["digest"] == signed


def test_without_cosign_it_is_said_what_is_missing(cosigner: Cosigner, store: Path, tmp_path: Path) -> None:
    if shutil.which("cosign", path=ENVIRON["PATH"]):
        pytest.skip("cosign is installed")
    cosigner.sign("site/bare", push(cosigner, tmp_path, "site/bare:1", 4))
    source = f"docker://{cosigner.registry.address}/site/bare:1"
    # Debian's skopeo cannot check it; another can, and says where the signatures would have to be named.
    with pytest.raises(ContainerError, match=r"install cosign 2 or later|use-sigstore-attachments: true"):
        add_image(source, store, "lab", options=AddOptions(trust=cosigner.trust()))
    unknown = cosigner.trust(fulcio={"oidcIssuer": "https://example.org", "subjectEmail": "a@example.org"})
    with pytest.raises(ContainerError):
        add_image(source, store, "lab", options=AddOptions(trust=unknown))
    assert not (store / "lab").exists()
