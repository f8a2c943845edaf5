"""Writes docs/settings.md from `app.settings`: `make openapi`. Tests compare the page with the settings."""

from __future__ import annotations

import json
from pathlib import Path

from app.settings import Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Scrimp reads every setting from the environment, in upper case with the prefix `SCRIMP_`: `port` is `SCRIMP_PORT`. Lists
are JSON. The options `--home`, `--host`, `--port` and `--devices` of `scrimp serve` win over the environment.

Secrets are not settings: they are files of mode 0600 under `HOME/secrets` ([secrets.md](secrets.md)).
`make openapi` writes this page.
"""
TAIL = """
## The command line

| Variable | Default | Meaning |
|---|---|---|
| `SCRIMP_URL` | the local service's | Address of the service. |
| `SCRIMP_KEY` | `HOME/admin.key`, for a service on this machine only | The API key that `scrimp` sends. |
| `SCRIMP_DEBUG` | unset | If set, an unexpected error of `scrimp` shows its traceback. |
"""
SECTIONS = {
    "Where things are": """
        home database_url broker_url broker_password_file admin_key_file secrets_dir heads_dir heads_store
        object_store object_encryption object_kms_key cache_bytes encrypt_parts sign_command sign_public_key
        signing_history signing_root behind_tls data_root data_buckets models_root
    """,
    "The API": """
        host port allowed_hosts session_hours oidc_issuer oidc_client_id oidc_client_secret_file
        oidc_redirect_url oidc_scopes oidc_groups_claim oidc_roles oidc_session_hours trusted_proxies
        log_level log_format otel_endpoint access_log
    """,
    "Limits": """
        max_upload_bytes max_upload_total_bytes max_open_uploads max_open_upload_bytes max_stored_bytes
        stored_share disk_reserve_bytes upload_kept_hours upload_idle_s max_path_bytes max_records
        head_time_s max_body_bytes body_time_s body_bytes_per_s body_bytes_per_minute max_large_bodies
        parse_memory_bytes max_unpacked_bytes max_unpack_ratio parse_time_s read_at_once_bytes read_time_s
        read_slice_s max_readers max_parsers parse_wait_s pricing_memory_bytes pricing_time_s
        pricing_processes limits_url requests_per_minute failed_sign_ins_per_minute max_queued_jobs
        max_job_s max_queued_predictions max_open_egresses max_egress_bytes prediction_time_s
        prediction_kept_s max_streams max_streams_per_key max_prices
    """,
    "Retention": """
        artifacts_kept_days content_kept_days history_kept_days
    """,
    "Workers": """
        heartbeat_s lease_s witnesses witness_required sweep_s ledger_check_hours attempt_silence_s
        notify_again_s cancel_grace_s checkpoint_s drain_s finish_only devices ray_address worker_processes
        attempt_memory_bytes attempt_uid attempt_gid max_attempts
    """,
    "Webhooks": """
        webhooks_allow_http webhooks_allow_private webhooks_ports webhooks_ca_file smtp_host smtp_port
        smtp_security smtp_user smtp_password_file smtp_from smtp_recipients
    """,
}
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """A table of each section's settings."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        rows = [f"| `SCRIMP_{name.upper()}` | {default(name)} | {meaning(name)} |" for name in names.split()]
        parts.append("\n".join([f"\n## {title}\n", "| Setting | Default | Meaning |", "|---|---|---|", *rows, ""]))
    return "".join([*parts, TAIL])


def meaning(name: str) -> str:
    """What a setting is for."""
    return Settings.model_fields[name].description or ""


def default(name: str) -> str:
    """A setting's default as people read it: sizes in bytes with their unit, lists as JSON."""
    value = Settings.model_fields[name].default
    if value is None or value == "":
        return "none" if value is None else "empty"
    if name.endswith(("bytes", "bytes_per_s", "bytes_per_minute")) and value:
        return next(f"{value // size} {unit}" for unit, size in UNITS if value % size == 0)
    if isinstance(value, Path):
        return f"`~/{value.name}`"
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text.removesuffix('.0')}`"


if __name__ == "__main__":
    main()
