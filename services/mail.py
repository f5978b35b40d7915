"""Mail by SMTP: with TLS if the server offers it, a login if the site has set one, and a time limit on each answer.

A password is sent over TLS only, unless the site has switched TLS off. It is never logged: the log has the kind of an
error and the server's code. ``services.notifications`` calls ``send``.
"""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from types import MappingProxyType

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.errors import CarmeError, ConfigError

#: The environment variable with the password, used if no file is named.
PASSWORD = "CARME_SMTP_PASSWORD"  # noqa: S105  its name, not its value
_PORT, _SUBMISSION, _IMPLICIT = 25, 587, 465
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
#: Reply code of a server that closes the connection (RFC 5321).
_SERVICE_CLOSING = 421


class NoTls(CarmeError):
    """The mail server offers no STARTTLS, and the site requires it; nothing was sent."""


def can_mail(settings: CarmeQuotas) -> bool:
    """Return whether the site sends mail."""
    return bool(settings.smtp_host and settings.mail_domain)


def _message(
    settings: CarmeQuotas, user: str, text: str, subject: str, headers: Mapping[str, str] = NO_HEADERS
) -> EmailMessage:
    # A long link must stay in one line of its header, or mail programs do not find it.
    mail = EmailMessage(policy=default.clone(max_line_length=998) if headers else default)
    mail["From"] = settings.mail_from or f"carme-hub@{settings.mail_domain}"
    mail["To"] = f"{user}@{settings.mail_domain}"
    mail["Subject"] = subject
    for name, value in headers.items():
        mail[name] = value
    mail.set_content(text)
    return mail


def send(
    settings: CarmeQuotas,
    messages: Iterable[tuple[str, str]],
    subject: str,
    headers: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> list[Exception | None]:
    """Send messages (user, text) with one subject over as few connections as the server allows; blocking.

    Args:
        headers: further ones of a user's messages.

    Returns:
        The error of each message, None if the server accepted it.

    Raises:
        CarmeError: the password cannot be read, or must not be sent without TLS. OSError, smtplib.SMTPException: the
            server cannot be reached, its certificate is not valid, or it refuses the login. Nothing was sent then.
    """
    every = list(messages)
    results: list[Exception | None] = []
    while rest := every[len(results) :]:
        try:
            answers, lost = _over_one_connection(settings, rest, subject, headers)
        except (CarmeError, OSError, smtplib.SMTPException) as error:
            if not results:
                raise
            answers, lost = [], error
        results += answers
        if not answers:  # a new connection sent nothing, so a further one would send nothing either
            return results + [lost] * len(rest)
    return results


def _over_one_connection(
    settings: CarmeQuotas,
    messages: Iterable[tuple[str, str]],
    subject: str,
    headers: Mapping[str, Mapping[str, str]],
) -> tuple[list[Exception | None], Exception | None]:
    """Return the result of each message until the server closed the connection, and the error that closed it.

    The message at which it closed is sent again: twice is better than never.
    """
    answers: list[Exception | None] = []
    with _connected(settings) as server:
        for user, text in messages:
            error = _sent(server, settings, user, text, subject, headers.get(user, NO_HEADERS))
            if error is not None and _ends_connection(error):
                server.close()
                return answers, error
            answers.append(error)
    return answers, None


def _sent(
    server: smtplib.SMTP, settings: CarmeQuotas, user: str, text: str, subject: str, headers: Mapping[str, str]
) -> Exception | None:
    try:
        server.send_message(_message(settings, user, text, subject, headers))
    except (smtplib.SMTPException, OSError, ValueError) as error:  # ValueError: the name is not a valid address
        return error
    return None


def _ends_connection(error: Exception) -> bool:
    """Return whether the error ends the connection, as with servers that limit the messages of a connection."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return any(code == _SERVICE_CLOSING for code, _ in error.recipients.values())
    return isinstance(error, smtplib.SMTPServerDisconnected) or getattr(error, "smtp_code", 0) == _SERVICE_CLOSING


def describe(error: Exception) -> str:
    """Return an error for the log: the message of a CarmeError, otherwise the kind of error and the server's code."""
    if isinstance(error, CarmeError):
        return str(error)
    code = getattr(error, "smtp_code", None)
    return f"{type(error).__name__} {code}" if code else type(error).__name__


@contextmanager
def _connected(settings: CarmeQuotas) -> Iterator[smtplib.SMTP]:
    password = _password(settings) if settings.smtp_user else ""
    host, timeout = settings.smtp_host, settings.smtp_timeout
    if settings.smtp_tls == "implicit":
        port = settings.smtp_port or _IMPLICIT
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=timeout, context=_context(settings))
    else:
        server = smtplib.SMTP(host, settings.smtp_port or (_SUBMISSION if password else _PORT), timeout=timeout)
    try:
        if settings.smtp_tls in ("auto", "require"):
            _start_tls(server, settings)
        if settings.smtp_user:
            server.login(settings.smtp_user, password)
        yield server
    finally:
        with suppress(smtplib.SMTPException, OSError):  # accepted messages stay accepted
            server.quit()
        server.close()


def _start_tls(server: smtplib.SMTP, settings: CarmeQuotas) -> None:
    wanted = settings.smtp_tls == "require" or bool(settings.smtp_user)
    server.ehlo_or_helo_if_needed()
    if server.has_extn("starttls"):
        server.starttls(context=_context(settings, checked=wanted))
    elif wanted:
        raise NoTls(f"{settings.smtp_host} offers no STARTTLS, so nothing is sent (CarmeQuotas.smtp_tls)")


def _context(settings: CarmeQuotas, *, checked: bool = True) -> ssl.SSLContext:
    """Return a TLS context. Without a check of the certificate it still protects against passive listeners."""
    context = ssl.create_default_context(cafile=settings.smtp_ca_file or None)
    if not checked:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _password(settings: CarmeQuotas) -> str:
    if settings.smtp_password_file:
        return read_secret(Path(settings.smtp_password_file))
    password = os.environ.get(PASSWORD, "")
    if not password:
        raise ConfigError(f"CarmeQuotas.smtp_user has no password: name a smtp_password_file, or set {PASSWORD}")
    return password


def read_secret(file: Path) -> str:
    """Return the content of a file that only its owner may read."""
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} can be read by others: chmod 600 {file}")
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {type(error).__name__}") from error
