"""The exception tree of Carme Hub. Every module raises its errors from here.

::

    CarmeError
    ├── Refused                 shown to the user: ``reason`` (a slug) and ``message`` (a sentence)
    │   ├── ProfileNotAllowed   the choice is outside what an administrator offers
    │   ├── QuotaExceeded       a rule on GPU time or on sessions does not allow it
    │   ├── NoAccount           no Slurm account may be charged for this
    │   └── SessionBusy         the server's last session has not ended yet
    ├── SlurmError
    │   ├── SlurmUnreachable    no answer, or one that cannot be parsed: proves nothing
    │   └── SlurmRejected       Slurm answered, and the answer is no
    ├── EngineError             the communication with a Docker engine failed
    │   ├── EngineUnreachable   no answer, or one that cannot be parsed: proves nothing
    │   └── EngineRejected      the engine answered, and the answer is no
    ├── StoreError
    │   ├── SchemaMismatch      the database is not of this release
    │   └── NotActive           another hub holds the lease, so this one changes nothing
    ├── ContainerError          an image or a runtime cannot be used
    │   └── ContainerUnavailable   what the work on an image needs is silent, busy or full: proves nothing
    ├── SandboxError            the one-machine cluster could not do what was requested
    └── ConfigError             a setting is wrong; the message names it
"""

from __future__ import annotations


class CarmeError(Exception):
    """Base of all errors of Carme Hub."""


class Refused(CarmeError):
    """A request that a rule does not allow; its message is shown to the user as it is.

    Args:
        message: one or two plain sentences: what was refused, the limit, what to do.
        reason: a slug for metrics, JSON answers and tests; the class has a default.
    """

    reason = "refused"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason


class ProfileNotAllowed(Refused):
    """The profile is not offered to this user, or a value is outside its limits."""

    reason = "profile-not-allowed"


class QuotaExceeded(Refused):
    """A quota does not allow the request.

    The message names the rule, when the same request is possible, and which smaller request is possible now.
    """

    reason = "quota-exceeded"


class NoAccount(Refused):
    """The user has no Slurm account that may be charged for the request."""

    reason = "no-account"


class SessionBusy(Refused):
    """The last session of this server has not ended yet."""

    reason = "session-busy"


class SlurmError(CarmeError):
    """The communication with Slurm failed."""


class SlurmUnreachable(SlurmError):
    """Slurm gave no answer, or one that cannot be parsed. It proves nothing about any job."""


class SlurmRejected(SlurmError):
    """Slurm answered, and refused.

    Args:
        message: Slurm's own text.
        code: Slurm's error number or the command's exit status, where there is one.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class EngineError(CarmeError):
    """The communication with a Docker engine failed."""


class EngineUnreachable(EngineError):
    """The engine gave no answer, or one that cannot be parsed. It proves nothing about any container."""


class EngineRejected(EngineError):
    """The engine answered, and refused.

    Args:
        message: the engine's own text.
        code: the HTTP status of its answer.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class StoreError(CarmeError):
    """The database could not be used."""


class SchemaMismatch(StoreError):
    """The database has another schema than this release needs."""


class NotActive(StoreError):
    """Another hub has taken the lease over (docs/explanation/two-hubs.md); nothing was changed."""


class ContainerError(CarmeError):
    """An image or a container runtime cannot be used as requested."""


class ContainerUnavailable(ContainerError):
    """What the work on an image needs does not answer, is busy or full. It proves nothing about the image."""


class SandboxError(CarmeError):
    """The sandbox could not do what was requested; the message says what to do."""


class ConfigError(CarmeError):
    """A setting is wrong; the message names it and says what it should be."""
