"""Whether the directory of users knows somebody: a silent one never says no."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.images import accounts
from carme_hub.images.accounts import account_exists


def test_one_who_is_there_is_known_and_one_who_is_not_beside_others_who_are() -> None:
    assert account_exists("root") is True
    assert account_exists("nobody-of-this-name", ["root"]) is False
    assert account_exists("nobody-of-this-name", []) is None, "a directory that knows nobody is silent"
    assert account_exists("nobody-of-this-name", ["nobody-of-this-name", "nor-this"]) is None


def test_a_directory_with_an_error_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class LibraryOfASilentDirectory:
        def getpwnam_r(self, *_args: Any) -> int:
            return 5

    monkeypatch.setattr(accounts.ctypes, "CDLL", lambda *_args, **_more: LibraryOfASilentDirectory())
    assert account_exists("alice", ["root"]) is None
