"""Take secrets out of texts. Pure.

Two ways together: values that are known to be secret (the hub's own) are removed wherever they stand, in the forms in
which programs write them; and what looks like a secret is removed by its form, or by the name before it. The second way
cannot be complete, since free text has no form. It errs on the side of removing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

REMOVED = "[removed]"
#: Shorter values are not looked for in texts, since too many words are equal to them.
SHORTEST = 6

#: Parts of names of settings, variables and fields whose values are secret.
_SECRET_WORDS = (
    *("secret", "token", "passwd", "password", "passphrase", "pwd", "nonce", "credential", "cookie", "jwt", "salt"),
    *("api_?key", "auth_?key", "access_?key", "private_?key", "crypt_?key", "signing", "signature", "webhook", "dsn"),
    *("authorization", "hmac", "munge_?key", "license_?key", "xsrf"),
)
#: Last words of names that alone make one secret.
_SECRET_ENDINGS = ("key", "keys", "pass", "auth", "hash", "pin", "otp")
_SECRET_NAME = re.compile(
    rf"({'|'.join(_SECRET_WORDS)})|(^|[_\-.]|(?-i:(?<=[a-z])(?=[A-Z])))({'|'.join(_SECRET_ENDINGS)})$", re.IGNORECASE
)
#: Names that contain such a part, and whose values are paths, numbers or switches that a reader needs.
_HARMLESS = re.compile(
    r"(_file|_files|_path|_commands?|_location|_expires_in|_max_age(_days)?|_lifetime|_interval|_timeout|_size|_age"
    r"|_url_name|_scopes|_strict|_count|_tries|(^|_)ssl_key)$"
    r"|(?-i:^(?:OLD)?PWD$)|^(enable_|allow_|auth_refresh|AuthType|AuthInfo|AuthAlt|CryptoType|JobCredential|idempotency)",
    re.IGNORECASE,
)

_WORD = r"[^\s\"'<>,;&|)\]}]"
_HEADERS = r"(?:proxy-)?authorization|(?:set-)?cookie|x-slurm-user-token|x-auth-token|x-xsrftoken"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Whole blocks first: a key, a certificate's key among them.
    (re.compile(r"-----BEGIN [A-Z0-9 ]*KEY[A-Z0-9 ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL), REMOVED),
    # JSON Web Tokens, Slurm's among them.
    (re.compile(r"\beyJ[\w-]{4,}\.[\w-]{4,}(?:\.[\w-]*)?"), REMOVED),
    # A value that tornado signed, as JupyterHub's cookies are.
    (re.compile(r"\b2(?:\||%7C)\d+(?::|%3A)\d*(?:\||%7C)\d+(?::|%3A)[^\s\"']+", re.IGNORECASE), REMOVED),
    # scheme://user:password@host
    (re.compile(r"(?<=://)([^\s/:@\"']*):([^\s/?#\"']+)@"), rf"\1:{REMOVED}@"),
    (re.compile(r"(?<=://)[^\s/:@\"']{20,}@"), f"{REMOVED}@"),
    # Headers.
    (re.compile(rf"(?i)\b({_HEADERS})(['\"]?\s*[:=]\s*)[^\r\n]+"), rf"\1\2{REMOVED}"),
    (re.compile(rf"(?i)\b(bearer|token|basic|carme-nonce|digest)(\s+)(?={_WORD}*\d){_WORD}{{16,}}"), rf"\1\2{REMOVED}"),
    # A password may have blanks: where nothing closes it, the rest of the line goes.
    (
        re.compile(r"(?i)\b(pass(?:words?|phrase|wd))(\s*[:=]\s*)(?=\S)(?![\"'(\[]|none\b|null\b)[^\r\n]+"),
        rf"\1\2{REMOVED}",
    ),
    # Tokens that say by their beginning whose they are.
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|sk-|pypi-|AKIA|ASIA|hvs\.)[\w-]{8,}"), REMOVED),
)
_NAMED = re.compile(
    r"(?<![\w.\-])(?P<head>(?P<name>[A-Za-z_][\w.\-]*)(?P<quote>\\?[\"']?)(?P<equals>\s*(?:=>|:=|[:=])\s*))"
    r"(?P<value>\[removed\]|\(null\)|b?\\?\"(?:[^\"\\\n]|\\.)*\"?|b?\\?'(?:[^'\\\n]|\\.)*'?|[^\s,;&}\])]+)"
)
_OPTION = re.compile(r"(?P<head>--?(?P<name>[A-Za-z][\w\-]*)[ =])(?P<value>\"[^\"]*\"|'[^']*'|[^\s-]\S*)")
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{32,}(?![0-9A-Za-z])")
_MIXED = re.compile(r"[A-Za-z0-9_\-+/]{40,}={0,2}")


def is_secret_name(name: str) -> bool:
    """Return whether a setting, variable or field of this name has a secret value."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS.search(name)


class Redactor:
    """Takes secrets out of texts.

    Args:
        known: values that are secret, as text or bytes; short and common ones are ignored (``SHORTEST``).
    """

    def __init__(self, known: Iterable[str | bytes] = ()) -> None:
        self._values = tuple(known)
        forms = {form for value in self._values for form in _forms(value) if len(form) >= SHORTEST}
        # The longest first: a secret may contain another.
        self._known = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    def with_known(self, more: Iterable[str | bytes]) -> Redactor:
        """Return one that knows further secrets."""
        return Redactor([*self._values, *more])

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for form in self._known:
            text = text.replace(form, REMOVED)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        text = _NAMED.sub(_without_value, text)
        text = _OPTION.sub(_without_value, text)
        text = _HEX.sub(REMOVED, text)
        return _MIXED.sub(_unless_word, text)

    def document(self, value: Any, name: str = "") -> Any:
        """Return a JSON document without secrets: in texts, and under names that are secret."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.document(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(each, name) for each in value]
        if isinstance(value, str):
            return REMOVED if value and is_secret_name(name) else self.text(value)
        return value

    def finds(self, text: str) -> bool:
        """Return whether a known secret is in a text."""
        return any(form in text for form in self._known)


def _forms(value: str | bytes) -> Iterable[str]:
    """Yield how programs write a value: as it is, in JSON, in a URL, in base64 and in hexadecimal digits."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if len(raw.strip()) < SHORTEST:
        return
    for each in {raw, raw.strip()}:
        text = each.decode("utf-8", "replace")
        yield text
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield repr(text)[1:-1]
        yield quote(text, safe="")
        yield each.hex()
        yield each.hex().upper()
        for encoded in (base64.b64encode(each).decode(), base64.urlsafe_b64encode(each).decode()):
            yield encoded.rstrip("=")


def _without_value(found: re.Match[str]) -> str:
    value = found["value"].strip("b\\\"'")
    if not is_secret_name(found["name"]) or value.lower() in _NO_SECRETS or re.fullmatch(r"\d{0,5}", value):
        return found[0]
    return f"{found['head']}{REMOVED}"


#: Values that say that there is none, or that it has been removed.
_NO_SECRETS = frozenset({"none", "null", "(null)", "true", "false", "yes", "no", "n/a", "removed", REMOVED})


def _unless_word(found: re.Match[str]) -> str:
    """Return a long word unchanged unless it looks random; of a path each part is looked at."""
    text = found[0]
    for part in text.split("/") if "+" not in text else [text]:
        if len(part) >= 24 and _is_mixed(part):
            return REMOVED
    return text


def _is_mixed(part: str) -> bool:
    """Return whether a word looks random: digits, capitals and small letters."""
    classes = (r"\d", r"[a-z]", r"[A-Z]")
    return all(re.search(each, part) for each in classes) and not re.fullmatch(r"[\w]{8}-(?:\w{4}-){3}\w{12}.*", part)
