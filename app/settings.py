"""Every setting of the service, in one frozen class, read from the environment (prefix SCRIMP_).

The embedded default needs nothing but a home folder: SQLite and a file-system broker live in it.
Secrets are files of mode 0600 under `home/secrets` or `secrets_dir` (see app.secrets), never settings.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import quote

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1024 * 1024


class Settings(BaseSettings):
    """What an operator may set. Names in the environment are these, upper case, after SCRIMP_."""

    model_config = SettingsConfigDict(env_prefix="SCRIMP_", frozen=True, extra="ignore")

    home: Path = Field(Path.home() / ".scrimp", description="Where the service keeps everything it writes.")
    database_url: str = Field("", description="SQLAlchemy URL; empty means SQLite in home/scrimp.db.")
    broker_url: str = Field("", description="Celery broker; empty means a folder of messages, home/broker.")

    broker_password_file: Path | None = Field(
        None, description="File with the broker's password, so that it is in no environment; none: as the URL says."
    )
    admin_key_file: Path | None = Field(
        None, description="Where the first admin key is written; none: home/admin.key. Not for workers to see."
    )

    secrets_dir: Path | None = Field(
        None,
        description="Folder of secret files that an operator provides; none: home/secrets, made by `scrimp serve`.",
    )

    heads_dir: Path | None = Field(
        None,
        description="Folder of the ledgers' recorded heads, in no backup of the database; none: home/heads.",
    )

    host: str = Field("127.0.0.1", description="Address the API listens on. Loopback unless told otherwise.")
    port: int = Field(8100, description="Port the API listens on.")
    allowed_hosts: list[str] = Field(
        ["127.0.0.1", "localhost", "[::1]"],
        description="Host headers that are answered (JSON list); others get 400, against DNS rebinding.",
    )
    behind_tls: bool = Field(
        False, description="A proxy ends TLS before the API: cookies are Secure and answers carry HSTS all the same."
    )
    data_root: Path | None = Field(
        None, description="Folder that `path` registrations may read from; none: uploads only."
    )

    models_root: Path | None = Field(
        None, description="Folder of feature extractors and Hugging Face models; none: there are none."
    )

    max_upload_bytes: int = Field(512 * MIB, description="Largest data file accepted.")
    head_time_s: float = Field(10.0, gt=0, description="How long a request's headers may take to arrive.")
    max_body_bytes: int = Field(
        1 * MIB, description="Largest JSON body of a route that needs more than 64 KiB: a specification, predictions."
    )
    body_time_s: float = Field(30.0, description="How long a request's body may take to arrive.")
    body_bytes_per_s: int = Field(
        64 * 1024, description="The rate at which a larger body, an upload, earns more time than that."
    )
    parse_memory_bytes: int = Field(4096 * MIB, description="Address space of the process that parses a data file.")
    parse_time_s: float = Field(300.0, description="Wall clock of the process that parses a data file.")
    max_parsers: int = Field(2, ge=1, description="Data files that one API process parses at once.")
    parse_wait_s: float = Field(10.0, description="How long a registration waits for its turn; then 503.")
    pricing_memory_bytes: int = Field(3072 * MIB, description="Address space of the process that prices jobs.")
    pricing_time_s: float = Field(30.0, description="Wall clock for pricing one job.")

    limits_url: str = Field(
        "",
        pattern=r"^(memory://|rediss?://.+)?$",
        description="Where requests are counted for all API processes (redis://…); empty: the broker, where that is "
        "Redis, else each process counts for itself (memory://).",
    )
    requests_per_minute: int = Field(6000, ge=1, description="Requests a minute of a key without a limit of its own.")
    failed_sign_ins_per_minute: int = Field(
        60, ge=1, description="Missing keys, and keys that do not hold, a minute from one address; past it 429."
    )
    max_queued_jobs: int = Field(100, ge=1, description="Queued jobs of a key without a limit of its own.")
    max_job_s: float = Field(
        0.0, ge=0, description="How long a job may run, waiting not counted, unless its key says less; 0: for ever."
    )
    max_queued_predictions: int = Field(20, ge=1, description="Predictions of a key that wait or are worked on.")
    prediction_time_s: float = Field(60.0, description="How long a worker may take for one prediction.")
    prediction_kept_s: float = Field(
        3600.0, description="How long a prediction is kept, for the key that asked for it, after it was asked for."
    )
    artifacts_kept_days: float | None = Field(
        None, gt=0, description="Days after its end that a job's model files are kept; none: until they are deleted."
    )
    content_kept_days: float | None = Field(
        None, gt=0, description="Days after its last job that a data set's content is kept; none: until it is deleted."
    )
    max_streams: int = Field(1000, ge=1, description="Event streams that one API process serves at once; then 503.")
    max_streams_per_key: int = Field(
        200, ge=1, description="Event streams of one key that one API process serves at once; then 429."
    )
    max_prices: int = Field(100_000, ge=1, description="Prices that are kept; the oldest are dropped.")

    ledger_check_hours: float = Field(
        24.0,
        gt=0,
        description="How often the relay verifies each ledger in full, with certificates and heads.",
    )

    heartbeat_s: float = Field(5.0, description="How often a worker renews the lease of the job that it runs.")
    lease_s: float = Field(30.0, description="How long a claim holds without a heartbeat.")
    sweep_s: float = Field(1.0, description="How often the relay looks for messages, lost jobs and expired leases.")
    ring_again_s: float = Field(
        10.0, description="How long a queued job stays unclaimed before its bell is rung again."
    )
    attempt_silence_s: float = Field(
        3600.0,
        description="How long an attempt's process may be silent (or 20 times its longest silence) before it is ended.",
    )
    cancel_grace_s: float = Field(10.0, description="How long a cancelled attempt may take to end by itself.")
    attempt_memory_bytes: int | None = Field(
        None, ge=2**28, description="Memory that an attempt's process may have; none: nine tenths of the machine's."
    )
    max_attempts: int = Field(5, description="Attempts of one job whose process crashed before the job fails.")
    session_hours: float = Field(12.0, description="How long a dashboard sign-in lasts.")
    trusted_proxies: int = Field(
        0, ge=0, le=10, description="How many proxies in front add to X-Forwarded-For; 0: the header is not believed."
    )
    webhooks_allow_http: bool = Field(False, description="Whether webhooks may go over http.")
    webhooks_allow_private: list[str] = Field(
        [], description="Hosts and networks (CIDR) inside that webhooks may go to, also over http (JSON list)."
    )
    webhooks_ports: list[int] = Field([80, 443], description="Ports that webhooks may go to (JSON list); []: any.")
    webhooks_ca_file: Path | None = Field(None, description="Certificates (PEM) that webhooks trust besides the usual.")
    webhooks_retry_scale: float = Field(
        1.0, gt=0, description="Factor on the waits between tries of a webhook, and on the time until it is disabled."
    )
    log_level: str = Field("INFO", description="Level of the service's logs.")

    @property
    def effective_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'scrimp.db'}"

    @property
    def effective_broker_url(self) -> str:
        """The broker's URL, with its password where a file has it.

        Raises:
            OSError: that file cannot be read.
        """
        url = self.broker_url or "spool://localhost"
        if self.broker_password_file is None:
            return url
        scheme, _, rest = url.partition("://")
        return f"{scheme}://:{quote(self.broker_password_file.read_text().strip(), safe='')}@{rest.rpartition('@')[2]}"

    @property
    def admin_key_path(self) -> Path:
        return self.admin_key_file or self.home / "admin.key"

    @property
    def broker_dir(self) -> Path:
        """Where the embedded broker's messages lie."""
        return self.home / "broker"

    @property
    def storage_root(self) -> Path:
        """Data sets and artifacts; a shared volume where there are several hosts."""
        return self.home / "storage"

    @property
    def effective_heads_dir(self) -> Path:
        """Where the ledgers' heads are recorded, outside the database and beside the storage."""
        return self.heads_dir or self.home / "heads"

    @property
    def effective_secrets_dir(self) -> Path:
        return self.secrets_dir or self.home / "secrets"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@cache
def get_settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
