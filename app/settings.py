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

    home: Path = Field(
        Path.home() / ".scrimp",
        description="Folder for everything that the service writes: database, data, artifacts, secrets, logs.",
    )
    database_url: str = Field("", description="SQLAlchemy URL. Empty: SQLite in `HOME/scrimp.db`.")
    broker_url: str = Field("", description="Celery broker. Empty: a folder of messages, `HOME/broker`.")

    broker_password_file: Path | None = Field(
        None,
        description="File with the broker's password, so that no environment and no argument list holds it. "
        "None: the URL has it.",
    )
    admin_key_file: Path | None = Field(
        None,
        description="Where the first admin key is written (0600). Keep it from workers: where processes share"
        " their home, choose a place that workers cannot see."
        " None: `HOME/admin.key`.",
    )

    secrets_dir: Path | None = Field(
        None,
        description="Folder of secret files that an operator provides ([production.md](production.md)); the "
        "service makes none there."
        " None: `HOME/secrets`.",
    )

    heads_dir: Path | None = Field(
        None,
        description="Folder of the ledgers' recorded heads and of jobs' marks "
        "([production.md](production.md)): on a disk of its own if you can; keep it out of "
        "database backups."
        " None: `HOME/heads`.",
    )

    heads_store: str = Field(
        "",
        pattern=r"^(s3://.+)?$",
        description="Bucket of those heads instead of the folder, such as `s3://scrimp-heads/team` "
        "([production.md](production.md#object-storage)). Empty: the folder.",
    )

    object_store: str = Field(
        "",
        pattern=r"^(s3://.+)?$",
        description="Bucket for data sets, models and other files of jobs, such as `s3://scrimp/team` "
        "([production.md](production.md#object-storage)); needs the extra `s3`. Empty: "
        "`HOME/storage`.",
    )
    object_encryption: Literal["", "AES256", "aws:kms"] = Field(
        "",
        description="What the bucket is asked to encrypt each new object with: `AES256` or `aws:kms`. Empty: "
        "its own default.",
    )
    object_kms_key: str = Field("", description="The key's id for `aws:kms`. Empty: the account's own.")
    cache_bytes: int = Field(
        256 * 1024 * MIB,
        ge=1,
        description="With a bucket: what a host keeps of data sets in `HOME/storage/cache`. The least "
        "recently used go first.",
    )

    encrypt_parts: bool = Field(
        False,
        description="Seal what is stored of data sets on this machine (parts, caches, files that arrive), "
        "under the secret `parts_key` ([encryption.md](encryption.md)).",
    )

    sign_command: str = Field(
        "",
        description="Program that signs for the relay, with its arguments "
        "([secrets.md](secrets.md#a-signing-key-that-stays-elsewhere)). Empty: the secret "
        "`signing_key` does.",
    )
    sign_public_key: str = Field("", description="The public key that it signs with: base64 of the raw 32 bytes.")
    signing_history: Path | None = Field(
        None,
        description="File with the history of the signing keys, as an [offline "
        "root](secrets.md#an-offline-root) signed it; API and relay read it. None: there is no "
        "root.",
    )
    signing_root: str = Field(
        "",
        description="The root's public key, base64. The relay signs with no key that the history does not "
        "name for now.",
    )
    witnesses: list[str] = Field(
        [],
        description='Witnesses of checkpoints ([checkpoints.md](checkpoints.md#witnesses)), as JSON: `["URL '
        'VERIFIER-KEY", …]`. The relay sends them each one; API and workers need the setting too.',
    )
    witness_required: bool = Field(
        False,
        description="Admit and run nothing on private data unless every witness has seen the newest "
        "checkpoint. Changes of a cap, joins and retirement do not wait for witnesses.",
    )
    host: str = Field(
        "127.0.0.1", description="Address the API listens on. Any other address than loopback needs TLS in front."
    )
    port: int = Field(8100, description="Port the API listens on.")
    allowed_hosts: list[str] = Field(
        ["127.0.0.1", "localhost", "[::1]"],
        description="Host headers to answer; others get 400, against DNS rebinding.",
    )
    behind_tls: bool = Field(
        False, description="A proxy ends TLS before the API: set Secure cookies and send HSTS all the same."
    )
    data_root: Path | None = Field(
        None, description="Folder that `path` registrations may read from. None: uploads only."
    )

    data_buckets: list[str] = Field(
        [],
        description="Buckets, or bucket/prefix, that `path` registrations may name as `s3://bucket/key` "
        "([data.md](data.md)); needs the extra `s3`.",
    )

    models_root: Path | None = Field(
        None,
        description="Folder of feature extractors ([data.md](data.md)) and Hugging Face models "
        "([language.md](language.md)), the same on API and workers. None: the service has no "
        "models.",
    )

    max_upload_bytes: int = Field(512 * MIB, description="Largest data file accepted in one request.")
    max_upload_total_bytes: int = Field(
        64 * 1024 * MIB,
        ge=1,
        description="Largest data file uploaded in pieces (`/v1/uploads`, [data.md](data.md#large-files)).",
    )
    max_open_uploads: int = Field(8, ge=1, description="Uploads in pieces of a key that are not registered.")
    max_open_upload_bytes: int = Field(
        128 * 1024 * MIB, ge=1, description="What those uploads of a key may declare together."
    )
    max_stored_bytes: int = Field(
        0,
        ge=0,
        description="What an owner's key may store together: data sets with the features of extractors, "
        "uploads in pieces (all that they declared), files being read. Checked before a file is "
        "accepted; then 409. 0: the share below.",
    )
    stored_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="What an owner's key may store where neither it nor `SCRIMP_MAX_STORED_BYTES` has a "
        "limit, as a share of what the storage's disk has free, less the reserve, and of what the"
        " key stores there. With a bucket only files that arrive count. 1: no limit.",
    )
    disk_reserve_bytes: int = Field(
        RESERVE_BYTES,
        ge=0,
        description="What data files and uploads leave free of the storage's disk, beside what is kept for "
        "open uploads; for the database, messages and models. `/readyz` asks for half of it.",
    )
    upload_kept_hours: float = Field(
        24.0,
        gt=0,
        description="Hours after its last byte that a complete upload in pieces is kept. Set it for API and relay.",
    )
    upload_idle_s: float = Field(
        900.0,
        gt=0,
        description="How long an incomplete upload in pieces is kept without progress. Each "
        "`SCRIMP_BODY_BYTES_PER_S` bytes that arrive give it one more second, up to this. Set it "
        "for API and relay.",
    )
    max_path_bytes: int = Field(64 * 1024 * MIB, description="Largest data file registered by `path`.")
    max_records: int = Field(
        100_000_000,
        ge=1,
        description="The most records, users or slots that the declaration of one file may name, a block's "
        "too. Checked before the file is looked at; then 422. Reading takes up to 24 bytes of "
        "`SCRIMP_PARSE_MEMORY_BYTES` a record, and 96 a record and each name where a person's "
        "records are bounded.",
    )
    head_time_s: float = Field(
        10.0,
        gt=0,
        description="How long a request's headers may take to arrive, and how long a connection may continue "
        "to send a refused body; after that it is closed.",
    )
    max_body_bytes: int = Field(
        1 * MIB,
        description="Largest JSON body of the routes that need more than 64 KiB: a data set's specification, "
        "a prediction's inputs.",
    )
    body_time_s: float = Field(30.0, description="How long a request's body may take to arrive; then 408.")
    body_bytes_per_s: int = Field(
        64 * 1024, description="Each time that this many bytes of a larger body arrive, it gets one more second."
    )
    body_bytes_per_minute: int = Field(
        64 * MIB,
        ge=1,
        description="Bytes a minute of a key's bodies above 8 KiB; data files do not count. Above it 429. "
        "Predictions on many records want more.",
    )
    max_large_bodies: int = Field(
        2,
        ge=1,
        description="Bodies above 8 KiB of a key that one API process receives and answers at once; 16 more "
        "wait unread, then 429. Data files do not count.",
    )
    parse_memory_bytes: int = Field(4096 * MIB, description="Address space of the process that parses a data file.")
    max_unpacked_bytes: int = Field(
        64 * 1024 * MIB, description="What a compressed data file, or a Parquet file, may unpack to."
    )
    max_unpack_ratio: float = Field(
        100.0,
        ge=1,
        description="The most bytes that a byte of a compressed data file may unpack to, above 64 MiB in all;"
        " images are exempt. Text of tables packs 3 to 30 times.",
    )
    parse_time_s: float = Field(
        300.0, description="Wall clock of the process that parses a data file within a request."
    )
    max_parsers: int = Field(
        2, ge=1, description="Data files that one API process parses at once; each may take the memory above."
    )
    read_at_once_bytes: int = Field(
        8 * MIB,
        ge=0,
        description="Data sets up to this size are read within the request; larger ones in the background "
        "([data.md](data.md)).",
    )
    read_time_s: float = Field(
        24 * 3600.0, gt=0, description="Wall clock of the process that reads a data file in the background."
    )
    read_slice_s: float = Field(
        60.0,
        gt=0,
        description="How long a data set is read in the background while another owner's waits. Then it gives"
        " its reader up, and begins again later with twice the time.",
    )
    max_readers: int = Field(
        2,
        ge=1,
        description="Data sets that one API process reads in the background at once, two at least for several "
        "owners; each may take the memory above. Owners take turns, and one owner's files leave one "
        "reader to the others.",
    )
    parse_wait_s: float = Field(
        10.0, description="How long a registration waits for its turn; after that 503 with Retry-After."
    )
    pricing_memory_bytes: int = Field(3072 * MIB, description="Address space of the process that prices jobs.")
    pricing_time_s: float = Field(30.0, description="Wall clock for pricing one job.")
    pricing_processes: int = Field(
        2,
        ge=1,
        description="Prices that one API process computes at once, two at least for several keys, some 100 MiB "
        "each. One key, and all keys together whose prices take above 2 s, have one fewer.",
    )

    limits_url: str = Field(
        "",
        pattern=r"^(memory://|rediss?://.+)?$",
        description="Where requests are counted for all API processes (`redis://…`). Empty: the broker, if it"
        " is Redis; otherwise each process counts for itself (`memory://`).",
    )
    requests_per_minute: int = Field(6000, ge=1, description="Requests a minute for a key without a limit of its own.")
    failed_sign_ins_per_minute: int = Field(
        60,
        ge=1,
        description="Missing and invalid keys a minute from one address; above it 429. A valid key is "
        "answered from any address.",
    )
    max_queued_jobs: int = Field(100, ge=1, description="Queued jobs for a key without a limit of its own.")
    max_job_s: float = Field(
        0.0,
        ge=0,
        description="How long a job may run, without waiting, unless its specification or its key has a lower"
        " limit; set it for the workers. After that the job fails and its whole hold is spent. 0:"
        " no limit.",
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
        None,
        gt=0,
        description="Days after a job's end that its model files are kept; its certificate stays. None: until"
        " they are deleted.",
    )
    content_kept_days: float | None = Field(
        None,
        gt=0,
        description="Days after its last job (or its registration) that a data set's content is kept; its "
        "ledger stays. None: until it is deleted.",
    )
    history_kept_days: float | None = Field(
        None,
        gt=0,
        description="Days after a job's end that its attempts, events and scores are kept ([what may be "
        "shortened](production.md#retention)); its certificate, which has its scores, and the "
        "ledger stay. None: for ever.",
    )
    max_streams: int = Field(1000, ge=1, description="Event streams that one API process serves at once; above it 503.")
    max_streams_per_key: int = Field(
        200, ge=1, description="Event streams of one key that one API process serves at once; above it 429."
    )
    max_prices: int = Field(
        100_000,
        ge=1,
        description="The most prices that are cached, so that none is computed twice; the oldest are dropped.",
    )

    ledger_check_hours: float = Field(
        24.0,
        gt=0,
        description="How often the relay verifies each ledger in full, with its certificates and its recorded head.",
    )

    heartbeat_s: float = Field(5.0, description="How often a worker renews the lease of its running job.")
    lease_s: float = Field(30.0, description="How long a claim holds without a heartbeat.")
    sweep_s: float = Field(1.0, description="How often the relay looks for lost jobs and expired leases.")
    notify_again_s: float = Field(
        10.0,
        description="How long a queued job stays unclaimed before workers are notified again, unless its "
        "message waits for a busy worker.",
    )
    attempt_silence_s: float = Field(
        3600.0,
        description="How long an attempt's process may be silent, or 20 times its longest silence so far, "
        "before it is ended as frozen. It reports at least 25 times a job.",
    )
    cancel_grace_s: float = Field(10.0, description="How long a cancelled attempt may take to end by itself.")
    checkpoint_s: float = Field(
        60.0,
        gt=0,
        description="How often a running job's state is saved, at the end of a block of steps: at first each "
        "two seconds, or a twentieth of the attempt's time so far ([checkpoints of "
        "training](production.md#checkpoints-of-training)). At most a fiftieth of the time goes "
        "there.",
    )
    drain_s: float = Field(
        5.0,
        ge=0,
        description="How long a worker that is told to stop may go on to the end of its job's block of steps,"
        " to save its state.",
    )
    finish_only: bool = Field(
        False,
        description="Take only jobs that began under this worker's release of the code and its libraries, to "
        "end them during an [upgrade](production.md#upgrades).",
    )
    devices: str = Field(
        "auto",
        pattern=r"^(auto|cuda|(cpu|cuda:\d{1,3})(,(cpu|cuda:\d{1,3}))*)$",
        description="What the workers of this machine compute on, a process for each: `cpu`, `cuda` (every "
        "GPU), names such as `cuda:0,cuda:1` or `cpu,cuda:0`; `auto` is every GPU, or the "
        "processor if there is none. The option `--devices` wins.",
    )
    worker_processes: int | None = Field(
        None,
        ge=1,
        le=8,
        description="The most processes (ranks) that a worker runs for one job, up to 8: see [many "
        "processes](production.md#many-processes). The option `--processes` wins."
        " None: as many as it has processors.",
    )
    ray_address: str = Field(
        "",
        description="The Ray cluster on whose machines this worker runs its jobs' processes; it must run on "
        "one of them. `auto`: this machine's. See [many machines](production.md#many-machines). "
        "The option `--ray` of `scrimp worker` wins. Where the API has none, a job that asks for "
        "several GPUs is refused (422)."
        " Empty: none.",
    )
    attempt_memory_bytes: int | None = Field(
        None,
        ge=2**28,
        description="Memory limit of an attempt's process: on its cgroup if the worker may make one, "
        "otherwise on its data segment. Where the API has it too, a job whose trained numbers "
        "alone need more is refused (422): 8 bytes for each, or 16 if the job asks for a "
        "processor. A quote says about how much a process will need (`memory`), and warns if that"
        " is more."
        " None: nine tenths of the machine's.",
    )
    attempt_uid: int | None = Field(
        None,
        ge=1,
        lt=2**32 - 1,
        description="Number of the user of attempts and predictions ([a second "
        "user](production.md#a-second-user)). The worker then needs `CAP_SETUID`, `CAP_SETGID` "
        "and `CAP_KILL`, and does not start without them. Where the API has it too, `/readyz` "
        "says if living workers keep to it."
        " None: the worker's own.",
    )
    attempt_gid: int | None = Field(
        None,
        ge=1,
        lt=2**32 - 1,
        description="Number of their only group, in which the worker is too. Set it with the user."
        " None: the worker's own.",
    )
    max_attempts: int = Field(
        5,
        description="Attempts of one job that may crash under a living worker before the job fails. Ten times"
        " as many lapsed leases fail it too; a worker that stops in order does not count.",
    )
    session_hours: float = Field(12.0, description="How long a dashboard sign-in by an API key lasts.")
    oidc_issuer: str = Field(
        "",
        max_length=255,
        pattern=r"^(https://.+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?(/.*)?)?$",
        description="Identity provider that people sign in at ([access.md](access.md#people-sign-in)), "
        "exactly as it names itself; https, or http on loopback. Needs the extra `oidc`. Empty: "
        "none.",
    )
    oidc_client_id: str = Field("", description="This service's id there.")
    oidc_client_secret_file: Path | None = Field(
        None, description="File with its secret there. None: a public client, which PKCE alone protects."
    )
    oidc_redirect_url: str = Field(
        "",
        pattern=r"^(https?://.+/dashboard/sign-in/callback)?$",
        description="This service's address for people and `/dashboard/sign-in/callback`, as registered there.",
    )
    oidc_scopes: str = Field(
        "openid profile email",
        description="What the provider is asked for; some list groups only with a scope of their own.",
    )
    oidc_groups_claim: str = Field("groups", description="The claim of the ID token that lists a person's groups.")
    oidc_roles: dict[str, Literal["admin", "owner", "analyst", "viewer"]] = Field(
        {},
        description='The role of each group: `{"ml-team": "analyst"}`. The strongest counts. Who is in none '
        "of them does not get in.",
    )
    oidc_session_hours: float = Field(
        1.0,
        gt=0,
        le=24,
        description="How long such a sign-in lasts, at most 24 and at most `SCRIMP_SESSION_HOURS`; then the "
        "provider is asked again.",
    )
    trusted_proxies: int = Field(
        0,
        ge=0,
        le=10,
        description="How many proxies in front of the API append to X-Forwarded-For. 0: the header is ignored.",
    )
    webhooks_allow_http: bool = Field(False, description="Allow webhooks over http.")
    webhooks_allow_private: list[str] = Field(
        [], description="Internal hosts and networks (CIDR) that webhooks may reach, also over http."
    )
    webhooks_ports: list[int] = Field([80, 443], description="Ports that webhooks may use, also internally. `[]`: any.")
    webhooks_ca_file: Path | None = Field(
        None, description="Certificates (PEM) that webhooks trust besides the usual ones."
    )
    smtp_host: str = Field(
        "",
        description="SMTP server for webhooks of the form `mailto:` "
        "([webhooks.md](webhooks.md#e-mail-and-slack)). Empty: none.",
    )
    smtp_port: int = Field(587, ge=1, le=65535, description="Its port.")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description="How the connection is encrypted: `starttls`, `tls` from its beginning, or `none`, on a "
        "network that you trust. Its certificate is checked, also under "
        "`SCRIMP_WEBHOOKS_CA_FILE`.",
    )
    smtp_user: str = Field("", description="The user that the relay signs in as. Empty: none.")
    smtp_password_file: Path | None = Field(None, description="File with that user's password.")
    smtp_from: str = Field(
        "scrimp@localhost",
        pattern=r"^[^\s@<>]+@[^\s@<>]+$",
        description="The sender's address; its domain also names the service to the server.",
    )
    smtp_recipients: list[str] = Field(
        [],
        description='Mailboxes and whole domains that e-mails may go to: `["example.org", '
        '"ann@other.example"]`. Whoever has a key chooses among them. Set it for API and relay '
        "alike.",
    )
    log_level: str = Field(
        "INFO",
        pattern=r"(?i)^(debug|info|warning|error|critical)$",
        description="Level of the service's logs. Libraries log warnings alone.",
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="The logs' lines, on standard error: `text` for people, or `json`, an object each. `time`, "
        "`level`, `logger`, `message`; `process`, `pid`; `request`, also the answer's `X-Request-Id` "
        "(with `SCRIMP_TRUSTED_PROXIES` the proxy's); `job`, `attempt`, `prediction` that the line is "
        "about; of the access log `method`, `route` (never the address or its query), `status`, "
        "`duration_ms`; `error`, an exception's type and places, never its text, which may quote a record.",
    )
    otel_endpoint: str = Field(
        "",
        pattern=r"^(https?://.+)?$",
        description="OTLP/HTTP collector that jobs are traced to, such as `http://127.0.0.1:4318`; needs the "
        "extra `otel` ([production.md](production.md#traces)). Empty: no traces.",
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
    def arrivals_root(self) -> Path:
        """The folder of files that arrive, until they are read: with a bucket apart from what else is this machine's
        own, so that the hosts of API processes and ingest workers can share it."""
        return self.storage_root / "arrivals" if self.object_store else self.storage_root

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
