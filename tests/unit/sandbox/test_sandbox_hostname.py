"""What a sandbox starts is on a machine named localhost; nobody else is."""

from __future__ import annotations

import socket
import subprocess
import threading

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm import hostname

may_not = subprocess.run(["/usr/bin/unshare", "--uts", "true"], capture_output=True, check=False).returncode != 0


@pytest.mark.skipif(may_not, reason="this user can give no name to what it starts")
def test_what_is_started_meanwhile_has_the_name_and_nobody_else() -> None:
    own, elsewhere = socket.gethostname(), []
    with hostname.as_localhost():
        other = threading.Thread(target=lambda: elsewhere.append(socket.gethostname()))
        said = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    other.start()
    other.join()
    assert said == "localhost\n"
    assert (socket.gethostname(), elsewhere) == (own, [own])


@pytest.mark.skipif(may_not, reason="this user can give no name to what it starts")
def test_other_threads_keep_the_name() -> None:
    own, elsewhere = socket.gethostname(), []
    asked, answered = threading.Event(), threading.Event()

    def other() -> None:
        asked.wait(10)
        elsewhere.append(socket.gethostname())
        answered.set()

    threading.Thread(target=other).start()
    with hostname.as_localhost():
        asked.set()
        assert answered.wait(10)
    assert elsewhere == [own]


@pytest.mark.parametrize("leads_to", ["127.0.1.1", "192.0.2.7", "no address"])
def test_a_name_that_leads_elsewhere_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, leads_to: str) -> None:
    def found(name: str) -> str:
        if leads_to == "no address":
            raise socket.gaierror(-2, "Name or service not known")
        return leads_to

    monkeypatch.setattr(socket, "gethostbyname", found)
    with pytest.raises(SandboxError, match=rf"resolves to {leads_to}\. Add a line to /etc/hosts.*: 127\.0\.0\.1 "):
        hostname.check()
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.0.1")
    hostname.check()
