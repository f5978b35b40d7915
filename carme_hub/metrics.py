"""The metrics that the hub's own process counts, beside JupyterHub's, in its registry: ``/hub/metrics`` has them.

Names are here alone; whoever does the work counts. ``spawners.monitoring.collector`` adds what is read at each scrape,
``spawners.hub.refusal_metrics`` the refusals of admission, and each service has metrics of its own. No label has a
user, a session or a job in it. docs/reference/metrics.md has the promise and the alert of each.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from carme_hub.domain.cluster.reasons import LAUNCH_CODES
from carme_hub.domain.sessions.end_cause import EndCause

#: The phases of a start, in their order: the policy's check and its hold; the row, the job's files and sbatch; Slurm's
#: queue; the container and the server in it, until its callback; the hub's check that the server answers.
PHASES = ("admission", "submission", "queue", "container", "server")
#: How a start ended: the server answered; a rule did not allow it; it failed.
STARTED, REFUSED, FAILED = "started", "refused", "failed"
#: The usual reasons of failures; besides them there are names of exceptions.
REASONS = ("slurm-rejected", "timeout", "settings", "session-ended", *(f"exit-{code}" for code in LAUNCH_CODES))

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)

START_PHASE = Histogram(
    "carme_start_phase_seconds", "Time that starts of servers spent in each phase", ("phase",), buckets=_SECONDS
)
STARTS = Counter("carme_starts", "Starts of servers that are over, by how they ended and why", ("outcome", "reason"))
SESSIONS_ENDED = Counter(
    "carme_sessions_ended", "Sessions with a server that had started and ended, by why", ("cause",)
)
CALLBACKS_REFUSED = Counter("carme_callbacks_refused", "Callbacks of jobs that the hub refused")
WRONG_CERTIFICATES = Counter(
    "carme_wrong_certificates", "Programs that answered on a session's port with another certificate than its own"
)
ACCOUNTS_CHECKED = Gauge(
    "carme_accounts_checked_timestamp_seconds",
    "When it was last checked that users with a server may still log in, or checking began; 0 = it is not checked",
)
ACCOUNTS_ENDED = Counter("carme_accounts_ended", "Users whose servers, tokens and logins were ended by that check")
PROXY_ANSWERED = Gauge("carme_proxy_answered_timestamp_seconds", "When the proxy last answered with its routes")
ROUTES_RESTORED = Counter("carme_routes_restored", "Times that the proxy had lost its routes, and got them again")

# The series exist before the first event, so that an alert sees the first one.
for _phase in PHASES:
    START_PHASE.labels(_phase)
for _cause in EndCause:
    SESSIONS_ENDED.labels(_cause.value)
STARTS.labels(STARTED, "")
for _reason in REASONS:
    STARTS.labels(FAILED, _reason)
