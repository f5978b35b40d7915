"""What is taken out of texts and settings, and what stays."""

from __future__ import annotations

import base64
import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.support.pseudonyms import Pseudonyms, names_in
from carme_hub.domain.support.redaction import REMOVED, Redactor, is_secret_name
from carme_hub.domain.support.settings import environment, secret_values, shown

TOKEN = "0123456789abcdef0123456789abcdef"
RANDOM = "Zq3_vT9xK1-pLw8sYb7NcD2eFg5hJ6kM0aRiUoVtXyW"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: token {TOKEN}",
        "Authorization: Basic YWxpY2U6aHVudGVyMg==",
        "Cookie: jupyterhub-session-id=hunter2hunter2; a=b",
        "password=hunter2hunter2",
        "'db_password': 'hunter2 hunter2'",
        "password: correct hunter2 hunter2",
        '{"client_secret": "hunter2hunter2"}',
        "OAUTH_CLIENT_SECRET=hunter2hunter2",
        "carme --token hunter2hunter2 --x",
        "postgresql://hub:hunter2@hunter2@db.example.org/hub",
        "?token=hunter2hunter2&x=1",
        f"a new token {TOKEN} was made",
        f"nonce {RANDOM}",
        "eyJhbGciOiJIUzI1NiJ9.hunter2hunter2.hunter2hunter2",
        "2|1:0|10:1795168800|5:alice|hunter2=|hunter2",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
        "ghp_hunter2hunter2hunter2",
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str) -> None:
    found = Redactor().text(text)
    assert REMOVED in found
    for secret in ("hunter2", TOKEN, RANDOM, "YWxpY2U6"):
        assert secret not in found
    assert Redactor().text(found) == found, "twice is as once"


@pytest.mark.parametrize(
    "text",
    [
        "Session 1b2c3d4e-0000-4000-8000-0000000000aa of alice (job 4711) ended: The time limit was reached.",
        "The token of session 1b2c3d4e-0000-4000-8000-0000000000aa is revoked, but not yet on disk",
        "[I 2026-11-27 08:22:49.123 JupyterHub auth:123] 200 GET /user/alice/lab",
        "AuthType = auth/munge",
        "AccountingStoragePass = (null)",
        "PrivateData = jobs,usage,users",
        "c.JupyterHub.cookie_secret_file = /var/lib/carme-hub/jupyterhub_cookie_secret",
        "/opt/carme-hub/lib/python3.11/site-packages/carme_hub/spawners/slurm/spawner.py",
        "PWD=/var/lib/carme-hub",
        "cryptography: 42.0",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "name", ["token", "API_KEY", "dbPass", "client-secret", "cookieSecret", "nonce_hash", "ssl.key"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["monkey", "compass", "tokens_file", "cookie_secret_file", "ssl_key", "login_tries"])
def test_names_of_other_values_are_known(name: str) -> None:
    assert not is_secret_name(name)


@given(st.text(min_size=6).filter(lambda text: len(text.encode("utf-8", "surrogatepass").strip()) >= 6))
def test_a_known_secret_is_removed_in_each_form_in_which_programs_write_it(secret: str) -> None:
    raw = secret.encode("utf-8", "surrogateescape" if _decodes(secret) else "replace")
    redactor = Redactor([secret if _decodes(secret) else raw])
    for text in (raw.decode("utf-8", "replace"), raw.hex(), base64.b64encode(raw).decode()):
        assert REMOVED in redactor.text(f"it was {text} here")
    document = redactor.document({"a": [raw.decode("utf-8", "replace")]})
    assert raw.decode("utf-8", "replace") not in json.dumps(document)


def _decodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def test_a_document_stays_a_document() -> None:
    found = Redactor(["hunter2hunter2"]).document({"token": "x", "n": 3, "of": {"a": ["say hunter2hunter2", None]}})
    assert found == {"token": REMOVED, "n": 3, "of": {"a": [f"say {REMOVED}", None]}}


def test_long_texts_take_no_time_that_grows_with_their_square() -> None:
    began = time.monotonic()
    for part in ("a" * 300_000, "a.b-" * 75_000, "://a:" * 60_000, "x=" * 150_000, "-----BEGIN KEY-----" * 10_000):
        Redactor().text(part)
    assert time.monotonic() - began < 20


def test_settings_are_shown_without_secrets_and_foreign_texts_not_at_all() -> None:
    redactor = Redactor()
    value = {
        "command": ["cull", "--password", "hunter2", "--every", "5"],
        "api_token": "x",
        "env": {"A": "b", "TZ": "UTC"},
    }
    assert shown("services", [value], redactor) == [
        {
            "command": ["cull", "--password", REMOVED, "--every", "5"],
            "api_token": REMOVED,
            "env": {"A": "[text of 1 characters]", "TZ": "UTC"},
        }
    ]
    assert shown("phrase", "hello", redactor, known=False) == "[text of 5 characters]"
    assert shown("limit", 5, redactor, known=False) == 5
    assert shown("hook", lambda: None, redactor).startswith("[")
    assert sorted(map(str, secret_values("services", [value]))) == ["b", "hunter2", "x"]
    assert environment({"X": "secret", "LANG": "C"}, redactor) == {"LANG": "C", "X": "[text of 6 characters]"}


def test_a_name_has_the_same_pseudonym_in_every_text_and_parts_of_words_stay() -> None:
    words = (f"{number:06x}" for number in itertools.count(1))
    people = Pseudonyms(["ann", "annabel", "root", "carme"], lambda: next(words))
    [ann] = [word for word, name in people.who_is_who.items() if name == "ann"]
    assert people.text("ann in /home/ann, Ann@example.org, %3Aann and job_of_ann") == (
        f"{ann} in /home/{ann}, {ann}@example.org, %3A{ann} and job_of_{ann}"
    )
    assert "annual" in people.text("annual")
    assert people.text("root of carme-hub") == "root of carme-hub"
    assert "ann" not in people.text("annabel")


def test_names_are_found_where_programs_write_them() -> None:
    text = "GET /hub/api/users/bob /user/carol.d/lab /home/dave/x UserId=erin(1001) user: 'frank'"
    assert names_in(text) == {"bob", "carol.d", "dave", "erin", "frank"}
