"""Every setting of the service, in one frozen class, read from the environment (prefix SCRIMP_).

The embedded default needs nothing but a home folder: SQLite and a file-system broker live in it.
Secrets are files of mode 0600 under `home/secrets` or `secrets_dir` (see app.secrets), never settings.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.disk import RESERVE_BYTES

MIB = 1024 * 1024


class Settings(BaseSettings):
    """All settings for operators. Environment variables have these names in upper case, after SCRIMP_."""

    model_config = SettingsConfigDict(env_prefix="SCRIMP_", frozen=True, extra="ignore")

    home: Path = Field(Path.home() / ".scrimp", description="Folder for everything that the service writes.")
    database_url: str = Field("", description="SQLAlchemy URL; empty means SQLite in home/scrimp.db.")
    broker_url: str = Field("", description="Celery broker; empty means a folder of messages, home/broker.")

    broker_password_file: Path | None = Field(
        None, description="File with the broker's password, so that no environment holds it; none: the URL has it."
    )
    admin_key_file: Path | None = Field(
        None, description="Where the first admin key is written; none: home/admin.key. Keep it from workers."
    )

    secrets_dir: Path | None = Field(
        None,
        description="Folder of secret files that an operator provides; none: home/secrets, made by `scrimp serve`.",
    )

    heads_dir: Path | None = Field(
        None,
        description="Folder of the ledgers' recorded heads; keep it out of database backups; none: home/heads.",
    )

    heads_store: str = Field(
        "",
        pattern=r"^(s3://.+)?$",
        description="Bucket of the ledgers' recorded heads instead of that folder (s3://…); empty: the folder.",
    )

    object_store: str = Field(
        "",
        pattern=r"^(s3://.+)?$",
        description="Bucket for data sets, models and other files of jobs (s3://…); empty: home/storage.",
    )
    object_encryption: Literal["", "AES256", "aws:kms"] = Field(
        "", description="What the bucket encrypts new objects with (server-side); empty: its own default."
    )
    object_kms_key: str = Field("", description="Id of the key for `aws:kms`; empty: the account's own.")
    cache_bytes: int = Field(
        256 * 1024 * MIB,
        ge=1,
        description="With a bucket: what a host keeps of data sets in home/storage/cache; the least recently used go.",
    )

    encrypt_parts: bool = Field(
        False,
        description="Seal what is stored of data sets on this machine, under the secret `parts_key`: parts, caches, "
        "files that arrive.",
    )

    sign_command: str = Field(
        "",
        description="Program that signs for the relay: bytes on its input, the raw Ed25519 signature on its output; "
        "empty: the secret `signing_key` does.",
    )
    sign_public_key: str = Field("", description="The public key that it signs with: base64 of the raw 32 bytes.")
    signing_history: Path | None = Field(
        None,
        description="The history of the signing keys that an offline root signed (`scrimp keys root`).",
    )
    signing_root: str = Field(
        "", description="The root's public key, base64: the relay signs with no key that its history does not name."
    )
    witnesses: list[str] = Field(
        [], description='Witnesses of checkpoints, as JSON: ["URL VERIFIER-KEY", …]; the relay sends them each one.'
    )
    witness_required: bool = Field(
        False, description="Admit and run nothing on private data unless every witness has seen the newest checkpoint."
    )
    host: str = Field("127.0.0.1", description="Address the API listens on; loopback by default.")
    port: int = Field(8100, description="Port the API listens on.")
    allowed_hosts: list[str] = Field(
        ["127.0.0.1", "localhost", "[::1]"],
        description="Host headers to answer (JSON list); others get 400, against DNS rebinding.",
    )
    behind_tls: bool = Field(
        False, description="A proxy ends TLS before the API: set Secure cookies and send HSTS all the same."
    )
    data_root: Path | None = Field(
        None, description="Folder that `path` registrations may read from; none: uploads only."
    )

    data_buckets: list[str] = Field(
        [],
        description="Buckets, or bucket/prefix, that `path` registrations may name as s3://bucket/key (JSON list).",
    )

    models_root: Path | None = Field(
        None, description="Folder of feature extractors and Hugging Face models; none: the service has no models."
    )

    max_upload_bytes: int = Field(512 * MIB, description="Largest data file accepted in one request.")
    max_upload_total_bytes: int = Field(
        64 * 1024 * MIB, ge=1, description="Largest data file uploaded in pieces (/v1/uploads)."
    )
    max_open_uploads: int = Field(8, ge=1, description="Uploads in pieces of a key that are not registered.")
    max_open_upload_bytes: int = Field(
        128 * 1024 * MIB, ge=1, description="What those uploads of a key may declare together."
    )
    max_stored_bytes: int = Field(
        0, ge=0, description="What an owner's key may store: data sets, uploads, files being read; 0: no limit."
    )
    stored_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="What an owner's key may store where neither it nor max_stored_bytes has a limit, as a share of "
        "what the storage's disk has free, less the reserve, and of what the key stores there; 1: no limit.",
    )
    disk_reserve_bytes: int = Field(
        RESERVE_BYTES, ge=0, description="What data files and uploads leave free of the storage's disk."
    )
    upload_kept_hours: float = Field(
        24.0, gt=0, description="Hours after its last byte that a complete upload in pieces is kept."
    )
    upload_idle_s: float = Field(
        900.0,
        gt=0,
        description="How long an incomplete upload in pieces is kept without progress; each body_bytes_per_s bytes "
        "that arrive give it one more second, up to this.",
    )
    max_path_bytes: int = Field(64 * 1024 * MIB, description="Largest data file registered by `path`.")
    max_records: int = Field(
        100_000_000,
        ge=1,
        description="Most records, users or slots that a file's declaration may name; checked before it is read.",
    )
    head_time_s: float = Field(10.0, gt=0, description="How long a request's headers may take to arrive.")
    max_body_bytes: int = Field(
        1 * MIB, description="Largest JSON body of a route that needs more than 64 KiB: a specification, predictions."
    )
    body_time_s: float = Field(30.0, description="How long a request's body may take to arrive.")
    body_bytes_per_s: int = Field(
        64 * 1024, description="Each time that this many bytes of a larger body arrive, it gets one more second."
    )
    body_bytes_per_minute: int = Field(
        64 * MIB, ge=1, description="Bytes a minute of a key's bodies above 8 KiB; data files do not count."
    )
    max_large_bodies: int = Field(
        2, ge=1, description="Bodies above 8 KiB of a key that one API process receives and answers at once."
    )
    parse_memory_bytes: int = Field(4096 * MIB, description="Address space of the process that parses a data file.")
    max_unpacked_bytes: int = Field(
        64 * 1024 * MIB, description="What a compressed data file, or a Parquet file, may unpack to."
    )
    max_unpack_ratio: float = Field(
        100.0,
        ge=1,
        description="The most bytes that a byte of a compressed data file may unpack to, above 64 MiB in all.",
    )
    parse_time_s: float = Field(300.0, description="Wall clock of the process that parses a data file.")
    max_parsers: int = Field(2, ge=1, description="Data files that one API process parses at once.")
    read_at_once_bytes: int = Field(
        8 * MIB,
        ge=0,
        description="Data sets up to this size are read within the request; larger ones in the background.",
    )
    read_time_s: float = Field(
        24 * 3600.0, gt=0, description="Wall clock of the process that reads a data file in the background."
    )
    read_slice_s: float = Field(
        60.0,
        gt=0,
        description="How long a data set is read in the background while another owner's waits; then it begins again "
        "later, with twice the time.",
    )
    max_readers: int = Field(2, ge=1, description="Data sets that one API process reads in the background at once.")
    parse_wait_s: float = Field(10.0, description="How long a registration waits for its turn; after that 503.")
    pricing_memory_bytes: int = Field(3072 * MIB, description="Address space of the process that prices jobs.")
    pricing_time_s: float = Field(30.0, description="Wall clock for pricing one job.")
    pricing_processes: int = Field(2, ge=1, description="Prices that one API process computes at once.")

    limits_url: str = Field(
        "",
        pattern=r"^(memory://|rediss?://.+)?$",
        description="Where requests are counted for all API processes (redis://…); empty: the broker, if it is "
        "Redis; otherwise each process counts for itself (memory://).",
    )
    requests_per_minute: int = Field(6000, ge=1, description="Requests a minute for a key without a limit of its own.")
    failed_sign_ins_per_minute: int = Field(
        60, ge=1, description="Missing and invalid keys a minute from one address; above it 429."
    )
    max_queued_jobs: int = Field(100, ge=1, description="Queued jobs for a key without a limit of its own.")
    max_job_s: float = Field(
        0.0, ge=0, description="How long a job may run, without waiting, unless its key's limit is lower; 0: no limit."
    )
    max_queued_predictions: int = Field(20, ge=1, description="Predictions of a key that are waiting or running.")
    max_open_egresses: int = Field(
        8, ge=1, description="Egresses of a key that wait for two persons or are being made."
    )
    max_egress_bytes: int = Field(
        4096 * MIB,
        ge=1,
        description="What the papers of a data set's egresses may take; they go with the files of their jobs.",
    )
    prediction_time_s: float = Field(60.0, description="How long a worker may take for one prediction.")
    prediction_kept_s: float = Field(
        3600.0, description="How long a prediction is kept after the request, for the key that made it."
    )
    artifacts_kept_days: float | None = Field(
        None, gt=0, description="Days after a job's end that its model files are kept; none: until they are deleted."
    )
    content_kept_days: float | None = Field(
        None, gt=0, description="Days after its last job that a data set's content is kept; none: until it is deleted."
    )
    history_kept_days: float | None = Field(
        None,
        gt=0,
        description="Days after a job's end that its attempts, events and scores are kept; its certificate and the "
        "ledger stay. None: for ever.",
    )
    max_streams: int = Field(1000, ge=1, description="Event streams that one API process serves at once; above it 503.")
    max_streams_per_key: int = Field(
        200, ge=1, description="Event streams of one key that one API process serves at once; above it 429."
    )
    max_prices: int = Field(100_000, ge=1, description="The most prices that are cached; the oldest are dropped.")

    ledger_check_hours: float = Field(
        24.0,
        gt=0,
        description="How often the relay verifies each ledger in full, with certificates and heads.",
    )

    heartbeat_s: float = Field(5.0, description="How often a worker renews the lease of its running job.")
    lease_s: float = Field(30.0, description="How long a claim holds without a heartbeat.")
    sweep_s: float = Field(1.0, description="How often the relay looks for messages, lost jobs and expired leases.")
    notify_again_s: float = Field(
        10.0, description="How long a queued job stays unclaimed before workers are notified again."
    )
    attempt_silence_s: float = Field(
        3600.0,
        description="How long an attempt's process may be silent (or 20 times its longest silence) before it is ended.",
    )
    cancel_grace_s: float = Field(10.0, description="How long a cancelled attempt may take to end by itself.")
    checkpoint_s: float = Field(
        60.0,
        gt=0,
        description="How often a running job's state is saved, at the end of a block of steps: at first each two "
        "seconds, or a twentieth of the attempt's time so far. At most a fiftieth of the time goes there.",
    )
    drain_s: float = Field(
        5.0,
        ge=0,
        description="How long a worker that is told to stop may go on to the end of its job's block of steps, "
        "to save its state.",
    )
    finish_only: bool = Field(
        False,
        description="Take only jobs that began under this worker's release of the code and its libraries, to end them "
        "during an upgrade.",
    )
    devices: str = Field(
        "auto",
        pattern=r"^(auto|cuda|(cpu|cuda:\d{1,3})(,(cpu|cuda:\d{1,3}))*)$",
        description="What this machine's workers compute on, such as cuda:0,cuda:1, with a process for each; "
        "cuda: every GPU; auto: every GPU, or the processor if there is none.",
    )
    worker_processes: int | None = Field(
        None,
        ge=1,
        le=8,
        description="The most processes (ranks) that a worker runs for one job; none: as many as it has processors.",
    )
    ray_address: str = Field(
        "",
        description="Ray cluster on which this worker runs its jobs' ranks: the head's host:port, or auto; empty: none."
        " The worker runs on one of its machines.",
    )
    crew: str | None = Field(
        None,
        pattern=r"^[!-~]{1,100}$",
        description="The workers of one machine that lend each other their GPUs for one job; `scrimp worker` and "
        "`scrimp serve` name their own. Workers of one name must see the same GPUs in the same order.",
    )
    attempt_memory_bytes: int | None = Field(
        None, ge=2**28, description="Memory limit of an attempt's process; none: nine tenths of the machine's."
    )
    attempt_uid: int | None = Field(
        None,
        ge=1,
        lt=2**32 - 1,
        description="User of attempts and predictions; the worker then needs CAP_SETUID, CAP_SETGID and CAP_KILL; "
        "none: the worker's own.",
    )
    attempt_gid: int | None = Field(
        None, ge=1, lt=2**32 - 1, description="Their only group, in which the worker is too; set it with the user."
    )
    max_attempts: int = Field(
        5,
        description="Attempts of one job that may crash before it fails. Ten times as many lapsed leases fail it, too.",
    )
    session_hours: float = Field(12.0, description="How long a dashboard sign-in by an API key lasts.")
    oidc_issuer: str = Field(
        "",
        max_length=255,
        pattern=r"^(https://.+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?(/.*)?)?$",
        description="Identity provider (OpenID Connect) that people sign in at, as it names itself; empty: none.",
    )
    oidc_client_id: str = Field("", description="This service's id at the identity provider.")
    oidc_client_secret_file: Path | None = Field(
        None, description="File with its secret there; none: a public client, which PKCE alone protects."
    )
    oidc_redirect_url: str = Field(
        "",
        pattern=r"^(https?://.+/dashboard/sign-in/callback)?$",
        description="This service's address for people, and /dashboard/sign-in/callback, as registered there.",
    )
    oidc_scopes: str = Field("openid profile email", description="What is asked of the identity provider.")
    oidc_groups_claim: str = Field("groups", description="The claim of the ID token that lists a person's groups.")
    oidc_roles: dict[str, Literal["admin", "owner", "analyst", "viewer"]] = Field(
        {}, description='The role of each group, as JSON: {"ml-team": "analyst"}; without one of them nobody gets in.'
    )
    oidc_session_hours: float = Field(
        1.0,
        gt=0,
        le=24,
        description="How long such a sign-in lasts, at most; then the identity provider is asked again.",
    )
    trusted_proxies: int = Field(
        0, ge=0, le=10, description="How many proxies in front append to X-Forwarded-For; 0: the header is ignored."
    )
    webhooks_allow_http: bool = Field(False, description="Allow webhooks over http.")
    webhooks_allow_private: list[str] = Field(
        [], description="Internal hosts and networks (CIDR) that webhooks may reach, also over http (JSON list)."
    )
    webhooks_ports: list[int] = Field([80, 443], description="Ports that webhooks may use (JSON list); []: any.")
    webhooks_ca_file: Path | None = Field(
        None, description="Certificates (PEM) that webhooks trust besides the usual ones."
    )
    smtp_host: str = Field(
        "", description="SMTP server that e-mails to webhooks of the form mailto: go to; empty: none."
    )
    smtp_port: int = Field(587, ge=1, le=65535, description="Its port.")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="How the connection to it is encrypted; `none`: only on a network that you trust."
    )
    smtp_user: str = Field("", description="The user that the service signs in as there; empty: none.")
    smtp_password_file: Path | None = Field(None, description="File with that user's password.")
    smtp_from: str = Field("scrimp@localhost", pattern=r"^[^\s@<>]+@[^\s@<>]+$", description="The sender's address.")
    smtp_recipients: list[str] = Field(
        [], description='Mailboxes and whole domains that e-mails may go to (JSON list): ["example.org"].'
    )
    log_level: str = Field(
        "INFO", pattern=r"(?i)^(debug|info|warning|error|critical)$", description="Level of the service's logs."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="The logs' lines: text for people, or a JSON object each."
    )
    otel_endpoint: str = Field(
        "", pattern=r"^(https?://.+)?$", description="OTLP/HTTP collector that jobs are traced to; empty: no traces."
    )
    access_log: bool = Field(False, description="Log a line for each request: method, route, status and time.")

    @property
    def effective_database_url(self) -> str:
        """The database's URL: the setting, or SQLite in the home."""
        return self.database_url or f"sqlite:///{self.home / 'scrimp.db'}"

    @property
    def effective_broker_url(self) -> str:
        """The broker's URL, with its password if a file holds it.

        Raises:
            OSError: that file cannot be read.
        """
        url = self.broker_url or "spool://localhost"
        if self.broker_password_file is None:
            return url
        scheme, _, address = url.partition("://")
        return (
            f"{scheme}://:{quote(self.broker_password_file.read_text().strip(), safe='')}@{address.rpartition('@')[2]}"
        )

    @property
    def admin_key_path(self) -> Path:
        """The file of the first admin key."""
        return self.admin_key_file or self.home / "admin.key"

    @property
    def broker_dir(self) -> Path:
        """The folder of the embedded broker's messages."""
        return self.home / "broker"

    @property
    def storage_root(self) -> Path:
        """The folder of data sets and artifacts; a shared volume if there are several hosts."""
        return self.home / "storage"

    @property
    def effective_heads_dir(self) -> Path:
        """The folder of the ledgers' recorded heads, outside the database and beside the storage."""
        return self.heads_dir or self.home / "heads"

    @property
    def effective_secrets_dir(self) -> Path:
        """The folder of secret files."""
        return self.secrets_dir or self.home / "secrets"

    @property
    def url(self) -> str:
        """The address at which the API listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@cache
def get_settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
