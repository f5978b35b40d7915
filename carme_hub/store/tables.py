"""The tables of Carme Hub's own database. Times are UTC epoch seconds; amounts are integers."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

session = Table(
    "session",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("request", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("nonce_hash", String(64), nullable=False, default=""),
    Column("port", Integer, nullable=False, default=0),
    Column("node", String(255), nullable=False, default=""),
    Column("job_id", BigInteger, nullable=False, default=0),
    Column("submitted", Float, nullable=False, default=0.0),
    Column("started", Float, nullable=False, default=0.0),
    Column("ended", Float, nullable=False, default=0.0),
    Column("end_reason", Text, nullable=False, default=""),
    Column("cancel_wanted", Float, nullable=False, default=0.0),
    Column("cancel_reason", Text, nullable=False, default=""),
    Column("token_id", Integer, nullable=False, default=0),
    Column("certificate", String(64), nullable=False, default=""),
    Column("saved", Float, nullable=False, default=0.0),
    Column("parent", String(36), nullable=False, default=""),
    Column("server_ended", Float, nullable=False, default=0.0),
    Column("server_exit", Integer, nullable=False, default=0),
    Index("ix_session_state", "state"),
    Index("ix_session_server", "user", "server_name", "created"),
    Index("ix_session_parent", "parent"),
)

#: An integer of 64 bits that SQLite also uses as its row id.
_ID = BigInteger().with_variant(Integer, "sqlite")

ledger = Table(
    "ledger",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("key", String(255), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("account", String(255), nullable=False),
    Column("user", String(255), nullable=False, default=""),
    Column("amount", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
    Column("session", String(36), nullable=False, default=""),
    # NULL for an entry without a job: NULLs are never equal, so the constraint applies only to jobs.
    Column("job_id", BigInteger),
    Column("submitted", BigInteger),
    Column("start", BigInteger, nullable=False, default=0),
    Column("end", BigInteger, nullable=False, default=0),
    Column("gpus", String(255), nullable=False, default=""),
    Column("factor", Integer, nullable=False, default=1000),
    Column("partition", String(255), nullable=False, default=""),
    Column("qos", String(255), nullable=False, default=""),
    Column("nodes", Text, nullable=False, default=""),
    Column("reason", Text, nullable=False, default=""),
    Column("actor", String(255), nullable=False),
    Column("expires", BigInteger, nullable=False, default=0),
    UniqueConstraint("key", name="uq_ledger_key"),
    UniqueConstraint("cluster", "job_id", "submitted", "kind", name="uq_ledger_job"),
    # Sums over one account or one user read only the index.
    Index("ix_ledger_account", "cluster", "account", "kind", "end", "start", "amount"),
    Index("ix_ledger_user", "cluster", "user", "kind", "end", "start", "amount"),
    Index("ix_ledger_session", "session"),
    # Few entries have an expiry, and they are queried each minute.
    Index(
        *("ix_ledger_expires", "cluster", "expires"),
        sqlite_where=text("expires > 0"),
        postgresql_where=text("expires > 0"),
    ),
)

#: Holds without a release. A trigger on the ledger maintains it, so that code cannot make the two disagree; without it,
#: each admission would read every hold that was ever written.
open_hold = Table(
    "open_hold",
    metadata,
    Column("entry", _ID, primary_key=True, autoincrement=False),
    Column("cluster", String(64), nullable=False),
    Column("session", String(36), nullable=False),
    Index("ix_open_hold_cluster", "cluster"),
    Index("ix_open_hold_session", "session"),
)

#: The sum of all entries of an account, by kind and by whether they have a period: the parts of a balance. A trigger on
#: the ledger maintains it in the transaction that writes the entries; without it, each balance would read all entries
#: of its account. ``carme-hub db check`` compares it with the entries.
ledger_sum = Table(
    "ledger_sum",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("account", String(255), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("timed", Boolean, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    # SQLite adds beyond 64 bits in floating point, so both databases refuse an entry that leads there.
    CheckConstraint("amount BETWEEN -9000000000000000000 AND 9000000000000000000", name="ck_ledger_sum_amount"),
)

anomaly = Table(
    "anomaly",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("key", String(255), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("job_id", BigInteger, nullable=False, default=0),
    Column("submitted", BigInteger, nullable=False, default=0),
    Column("account", String(255), nullable=False, default=""),
    Column("user", String(255), nullable=False, default=""),
    Column("found", Float, nullable=False),
    Column("seen", JSON, nullable=False),
    Column("settled", Float, nullable=False, default=0.0),
    Column("settled_by", String(255), nullable=False, default=""),
    Column("decision", Text, nullable=False, default=""),
    UniqueConstraint("key", name="uq_anomaly_key"),
    Index("ix_anomaly_open", "cluster", "settled"),
)

#: Small values by name, with all versions: what the reconciler last did, and the policy's history.
note = Table(
    "note",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("cluster", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(255), nullable=False, default=""),
    Column("value", JSON, nullable=False),
    Index("ix_note_name", "cluster", "name", "id"),
)

#: Idempotency keys: claimed before the work, answered after it. The primary key prevents two claims at one moment.
claim = Table(
    "claim",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("token", String(32), nullable=False),
    Column("at", Float, nullable=False),
    Column("answer", Text),
    Index("ix_claim_at", "at"),
)

#: Notices that users have received, each once; ``about`` is the digest of the subject.
notice = Table(
    "notice",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("cluster", String(64), nullable=False),
    Column("about", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("level", String(16), nullable=False),
    Column("text", Text, nullable=False),
    Column("at", Float, nullable=False),
    UniqueConstraint("cluster", "about", name="uq_notice_about"),
    Index("ix_notice_at", "cluster", "at"),
)

#: Scaling curves of users, the newest one for each image and script (``domain.scaling_curve``).
scaling = Table(
    "scaling",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("image", String(255), primary_key=True),
    Column("script", String(128), primary_key=True),
    Column("at", Float, nullable=False),
    Column("value", JSON, nullable=False),
)

#: The newest training runs of each user, as JSON rows (``spawners.handlers.runs``).
runs = Table(
    "runs",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("at", Float, nullable=False),
    Column("value", JSON, nullable=False),
)

#: Sums of ``domain.activity.finished.Unused``.
UNUSED_SUMS = (
    *("gpu", "gpu_unused", "gpu_unknown", "gpu_busy", "gpu_measured"),
    *("cpu", "cpu_unused", "cpu_unknown", "memory", "memory_unused", "memory_unknown"),
)

#: What a job used on a node in an hour (``domain.activity.minutes``), with its minutes as long as they are kept, and
#: what of them says whether it was idle (``domain.activity.evidence``) as long as the hour.
activity_hour = Table(
    "activity_hour",
    metadata,
    Column("session", String(36), primary_key=True),
    Column("node", String(255), primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("cluster", String(64), nullable=False),
    Column("minutes", JSON(none_as_null=True)),
    Column("total", JSON, nullable=False),
    Column("evidence", Text),
    Index("ix_activity_hour_hour", "cluster", "hour"),
)

#: What a job used on a node in all; ``at`` is the end of its last minute, ``about`` what its reporter says of the node.
activity_job = Table(
    "activity_job",
    metadata,
    Column("session", String(36), primary_key=True),
    Column("node", String(255), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("about", JSON, nullable=False),
    Column("total", JSON, nullable=False),
    Index("ix_activity_job_at", "cluster", "at"),
)

#: What happened to sessions that were idle: "warned" (so many seconds before the end), "here" (its user said so),
#: "told", "ending", "kept" and "ended" (``store.idle``); ``about``: the action, of an end.
idle_event = Table(
    "idle_event",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("cluster", String(64), nullable=False),
    Column("session", String(36), nullable=False),
    Column("at", Float, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("seconds", Integer, nullable=False, default=0),
    Column("about", JSON(none_as_null=True)),
    Index("ix_idle_event_session", "session", "at"),
    Index("ix_idle_event_at", "cluster", "at"),
)

#: Jobs that have ended (``domain.activity.finished``): ``about`` is the job, the sums what of it was not used, in
#: seconds of GPUs, CPUs and GiB; ``week`` is the beginning of the week in which it ended.
finished_job = Table(
    "finished_job",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("submitted", BigInteger, primary_key=True, autoincrement=False),
    Column("user", String(255), nullable=False),
    Column("account", String(255), nullable=False),
    Column("session", String(36), nullable=False),
    Column("ended", Float, nullable=False),
    Column("week", BigInteger, nullable=False),
    Column("about", JSON, nullable=False),
    *(Column(name, BigInteger, nullable=False, default=0) for name in UNUSED_SUMS),
    Index("ix_finished_job_user", "cluster", "user", "ended"),
    Index("ix_finished_job_week", "cluster", "week", "account"),
    Index("ix_finished_job_ended", "cluster", "ended"),
)

#: The weekly mail of each user: the week of the last one (0 = none yet), and since when it is not wanted (0 = it is).
advice_mail = Table(
    "advice_mail",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("week", BigInteger, nullable=False, default=0),
    Column("unwanted", Float, nullable=False, default=0.0),
)

#: What is copied to and from the nodes of sessions; ``report`` is the newest one (``domain.staging.progress``), and
#: ``decision`` what the user wants done with results that are still on the node. ``nonce_hash`` proves who reports.
staging = Table(
    "staging",
    metadata,
    Column("session", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("state", String(16), nullable=False),
    Column("node", String(255), nullable=False, default=""),
    Column("created", Float, nullable=False),
    Column("at", Float, nullable=False, default=0.0),
    Column("nonce_hash", String(64), nullable=False),
    Column("stage", JSON, nullable=False),
    Column("report", JSON, nullable=False),
    Column("decision", JSON, nullable=False),
    Index("ix_staging_user", "cluster", "user", "created"),
)

#: Secrets that the hub and its services share, made by whichever needs one first.
secret = Table(
    "secret",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("value", String(128), nullable=False),
)

#: Reservations of GPUs; those of one recurring booking have the same series.
reservation = Table(
    "reservation",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("account", String(255), nullable=False),
    Column("title", String(255), nullable=False),
    Column("type", String(64), nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("seats", Integer, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("places", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("users", JSON, nullable=False),
    Column("group", String(255), nullable=False, default=""),
    Column("everybody", Boolean, nullable=False, default=False),
    Column("profile", String(64), nullable=False, default=""),
    Column("zone", String(64), nullable=False, default="UTC"),
    Column("series", String(36), nullable=False, default=""),
    Column("occurrence", String(32), nullable=False, default=""),
    Column("version", Integer, nullable=False, default=1),
    Column("changed", Float, nullable=False, default=0.0),
    Column("reason", Text, nullable=False, default=""),
    Column("actor", String(255), nullable=False, default=""),
    Column("used", Float, nullable=False, default=0.0),
    Column("ended", Float, nullable=False, default=0.0),
    Column("kind", String(16), nullable=False, default="booking"),
    Column("waits", Boolean, nullable=False, default=False),
    Column("problem", Text, nullable=False, default=""),
    CheckConstraint('"end" > "start"', name="ck_reservation_period"),
    # A reservation that overlaps a period ends after its start; most reservations have ended before.
    Index("ix_reservation_end", "cluster", "end", "start"),
    Index("ix_reservation_owner", "cluster", "owner", "end"),
    Index("ix_reservation_series", "cluster", "series"),
)
