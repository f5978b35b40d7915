"""Mail by SMTP: with TLS where it can be had, a login where the site has one, and a time limit on every answer.

A password travels in TLS only, unless the site has switched that off, and is in no log: errors are told by what kind
they are and the server's code.
"""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from pathlib import Path

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.errors import CarmeError, ConfigError

#: The environment variable with the password, where no file is named.
PASSWORD = "CARME_SMTP_PASSWORD"  # noqa: S105  its name, not its value
_PORT, _SUBMISSION, _IMPLICIT = 25, 587, 465
#: The code with which a server ends a connection.
_GOODBYE = 421


class NoTls(CarmeError):
    """The mail server offers no STARTTLS where the site wants it; nothing was sent."""


def can_mail(settings: CarmeQuotas) -> bool:
    """Return whether the site sends mail."""
    return bool(settings.smtp_host and settings.mail_domain)


def _letter(settings: CarmeQuotas, user: str, text: str, subject: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = settings.mail_from or f"carme-hub@{settings.mail_domain}"
    mail["To"] = f"{user}@{settings.mail_domain}"
    mail["Subject"] = subject
    mail.set_content(text)
    return mail


def send(settings: CarmeQuotas, letters: Iterable[tuple[str, str]], subject: str) -> list[Exception | None]:
    """Send letters (user, text) under one subject over as few connections as the server lets us; blocking.

    Returns:
        What went wrong with each, None where the server took it.

    Raises:
        CarmeError: the password cannot be read, or is not to be sent in the open. OSError, smtplib.SMTPException: the
            server cannot be reached, its certificate is not good, or it refuses the login. Nothing was sent then.
    """
    every = list(letters)
    told: list[Exception | None] = []
    while rest := every[len(told) :]:
        try:
            answers, lost = _over_one_connection(settings, rest, subject)
        except (CarmeError, OSError, smtplib.SMTPException) as error:
            if not told:
                raise
            answers, lost = [], error
        told += answers
        if not answers:  # a new connection was of no use, so the next one would be of none either
            return told + [lost] * len(rest)
    return told


def _over_one_connection(
    settings: CarmeQuotas, letters: Iterable[tuple[str, str]], subject: str
) -> tuple[list[Exception | None], Exception | None]:
    """Return what came of each letter until the server wanted no more, and with what it ended the connection.

    A letter at which it hangs up is sent again: twice is better than never.
    """
    answers: list[Exception | None] = []
    with _connected(settings) as server:
        for user, text in letters:
            error = _sent(server, settings, user, text, subject)
            if error is not None and _ends(error):
                server.close()
                return answers, error
            answers.append(error)
    return answers, None


def _sent(server: smtplib.SMTP, settings: CarmeQuotas, user: str, text: str, subject: str) -> Exception | None:
    try:
        server.send_message(_letter(settings, user, text, subject))
    except (smtplib.SMTPException, OSError, ValueError) as error:  # a name that is no address is a ValueError
        return error
    return None


def _ends(error: Exception) -> bool:
    """Return whether the connection is over, as with servers that take so many letters over each."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return any(code == _GOODBYE for code, _ in error.recipients.values())
    return isinstance(error, smtplib.SMTPServerDisconnected) or getattr(error, "smtp_code", 0) == _GOODBYE


def why(error: Exception) -> str:
    """Return what went wrong for the log: our own words, or the kind of error and the server's code."""
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
        with suppress(smtplib.SMTPException, OSError):  # what it took, it took, whatever it says to the end
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
    """Return the TLS of a connection; unchecked it keeps out who only listens, which is more than none would."""
    context = ssl.create_default_context(cafile=settings.smtp_ca_file or None)
    if not checked:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _password(settings: CarmeQuotas) -> str:
    if settings.smtp_password_file:
        return secret_line(Path(settings.smtp_password_file))
    password = os.environ.get(PASSWORD, "")
    if not password:
        raise ConfigError(f"CarmeQuotas.smtp_user has no password: name a smtp_password_file, or set {PASSWORD}")
    return password


def secret_line(file: Path) -> str:
    """Return the one line of a file that nobody else may read."""
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} can be read by others: chmod 600 {file}")
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {type(error).__name__}") from error
