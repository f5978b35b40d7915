"""What a bundle has of the site: the doctor's findings, settings, the database in numbers, metrics, stories."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from traitlets.config import Config

from carme_hub.cli.doctor.command import DoctorApp
from carme_hub.cli.explain.command import story_json
from carme_hub.cli.explain.daemon_thread import in_daemon_thread
from carme_hub.cli.explain.reader import Logs, SessionReader
from carme_hub.cli.explain.subject import Subject
from carme_hub.cli.hub_config import hub_of
from carme_hub.domain.support.redaction import Redactor
from carme_hub.domain.support.settings import shown
from carme_hub.errors import CarmeError
from carme_hub.store.check import check, overview
from carme_hub.store.engine import CarmeStore

from .known import settings_of
from .parts import Part

#: Beginnings of the names of classes whose settings are understood here: ours and JupyterHub's.
KNOWN_CLASSES = (
    *("Carme", "SlurmContainerSpawner", "JupyterHub", "Spawner", "Authenticator", "ConfigurableHTTPProxy", "Proxy"),
    *("LocalAuthenticator", "PAMAuthenticator", "SimpleLocalProcessSpawner", "LocalProcessSpawner", "Application"),
)
_ANY_HOST = ("", "*", "0.0.0.0", "::")  # noqa: S104  where a hub listens, not where we do
_LONGEST = 20 << 20


def site_parts(config: Config, file: Path, redactor: Redactor, token: str) -> Iterator[Part]:
    """Yield the parts about the site; ``token``: for the hub's metrics, "" = none."""
    yield Part("doctor.json", f"carme-hub doctor --json --config {file}", partial(in_daemon_thread, _findings, file))
    yield Part("configuration.json", f"the settings in {file}, without secrets", partial(_settings, config, redactor))
    url = str(CarmeStore(config=config).url)
    yield Part("database.json", "schema, number of rows and checks of our own database", partial(_database, url))
    hub = hub_of(config)
    yield Part("metrics.txt", f"{hub.bind_url} hub/metrics", partial(in_daemon_thread, metrics, hub, token))


def session_parts(config: Config, subjects: Sequence[Subject], logs: Logs) -> Iterator[Part]:
    """Yield the stories of sessions."""
    for number, subject in enumerate(subjects, 1):

        async def story(subject: Subject = subject) -> dict[str, Any]:
            reader = SessionReader(config, logs)
            return story_json(await reader.read(subject), reader.zone)

        name = subject.id or (f"job-{subject.job}" if subject.job else f"session-{number}")
        yield Part(f"sessions/{name}.json", f"carme-hub explain --json {subject.word}", story)


def _findings(file: Path) -> list[dict[str, Any]]:
    return [finding.json() for finding in DoctorApp(config_path=str(file)).examine(file)]


async def _settings(config: Config, redactor: Redactor) -> dict[str, dict[str, Any]]:
    return {
        section: {
            name: shown(name, value, redactor, known=section.startswith(KNOWN_CLASSES))
            for name, value in sorted(values.items())
        }
        for section, values in sorted(settings_of(config).items())
    }


async def _database(url: str) -> dict[str, Any]:
    found = await in_daemon_thread(overview, url)
    document: dict[str, Any] = asdict(found)
    try:
        report = await in_daemon_thread(check, url)
    except CarmeError as error:
        return {**document, "checks": str(error)}
    return {**document, "checks": [{"name": r.name, "good": r.passed, "says": r.text} for r in report.results]}


def metrics(hub: Any, token: str) -> str:
    """Return the metrics of the hub that runs on this machine.

    The token is sent to a hub on this machine only: by its own certificate where it speaks TLS.

    Raises:
        CarmeError: the hub refused, or does not answer as a hub does.
    """
    where = urlsplit(str(hub.bind_url))
    host = "127.0.0.1" if (where.hostname or "") in _ANY_HOST else str(where.hostname)
    connection: http.client.HTTPConnection
    if hub.ssl_cert:
        context = ssl.create_default_context(cafile=str(hub.ssl_cert))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is what is trusted
        context.check_hostname = False  # it is for the name that browsers use
        connection = http.client.HTTPSConnection(host, where.port or 443, timeout=10.0, context=context)
    else:
        connection = http.client.HTTPConnection(host, where.port or 80, timeout=10.0)
    try:
        headers = {"Authorization": f"token {token}"} if token else {}
        connection.request("GET", f"{hub.base_url}hub/metrics", headers=headers)
        with connection.getresponse() as answer:
            text = answer.read(_LONGEST).decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise CarmeError(f"what answers at {host} is no hub: {error!r}") from error
    finally:
        connection.close()
    if answer.status == 403:
        raise CarmeError(
            "the hub shows its metrics to nobody without a token with the scope read:metrics: --token-file"
        )
    if answer.status != 200:
        raise CarmeError(f"the hub answered with status {answer.status}")
    return text
