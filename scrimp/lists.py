"""The service's lists, page by page. Written by scripts/write_specs.py from the routes that have items."""

from __future__ import annotations

from scrimp.models import (
    AuditEntry,
    Dataset,
    Delivery,
    Event,
    Grant,
    Key,
    KeySpending,
    Kind,
    LedgerEntry,
    Optimizer,
    SigningKey,
    Webhook,
    Worker,
)
from scrimp.rows import Pages
from scrimp.wire import Wire, in_path


class Lists(Wire):
    """A part of `Client`."""

    def audit(
        self, key: str | None = None, action: str | None = None, target: str | None = None, since: int | None = None
    ) -> Pages[AuditEntry]:
        """Lists audit entries, newest first; filters by key, action or target."""
        return self.pages("/v1/audit", AuditEntry, key=key, action=action, target=target, since=since)

    def datasets(self) -> Pages[Dataset]:
        """Lists the data sets that this key may see, newest first, each with its ledger's balances; and the key's
        own that are still being read."""
        return self.pages("/v1/datasets", Dataset)

    def deliveries(self, webhook_id: str) -> Pages[Delivery]:
        """Lists a webhook's deliveries and their results, newest first. They are kept for 30 days."""
        return self.pages(f"/v1/webhooks/{in_path(webhook_id)}/deliveries", Delivery)

    def events(self, job_id: str) -> Pages[Event]:
        """Lists the job's events, oldest first."""
        return self.pages(f"/v1/jobs/{in_path(job_id)}/events", Event)

    def extractors(self) -> Pages[Kind]:
        """Lists this service's frozen feature extractors, for `model.extractor` of a linear model."""
        return self.pages("/v1/extractors", Kind)

    def grants(self, dataset: str) -> Pages[Grant]:
        """Lists every grant on a data set, oldest first."""
        return self.pages(f"/v1/datasets/{in_path(dataset)}/grants", Grant)

    def keys(self) -> Pages[Key]:
        """Lists every key, including revoked ones. For admins."""
        return self.pages("/v1/keys", Key)

    def ledger_entries(self, dataset: str, job: str | None = None) -> Pages[LedgerEntry]:
        """Lists the ledger's entries, oldest first."""
        return self.pages(f"/v1/datasets/{in_path(dataset)}/ledger/entries", LedgerEntry, job=job)

    def models(self) -> Pages[Kind]:
        """Lists the kinds of model, with the JSON schema of their settings."""
        return self.pages("/v1/models", Kind)

    def optimizers(self) -> Pages[Optimizer]:
        """Lists the optimizers, with their rules, their state, and the JSON schema of their settings."""
        return self.pages("/v1/optimizers", Optimizer)

    def show_spending(self, dataset: str) -> Pages[KeySpending]:
        """Shows what each key spent, whoever posted it, summed over the data set's blocks. Its owner and admins
        read names."""
        return self.pages(f"/v1/datasets/{in_path(dataset)}/spending", KeySpending)

    def signing_keys(self) -> Pages[SigningKey]:
        """Lists the keys that sign or signed certificates, the newest first. Keep the key that you trust outside."""
        return self.pages("/v1/signing-keys", SigningKey)

    def strategies(self) -> Pages[Kind]:
        """Lists the strategies for a private study of hyperparameters on a job's one budget, with their costs."""
        return self.pages("/v1/hpo-strategies", Kind)

    def webhooks(self) -> Pages[Webhook]:
        """Lists the key's own webhooks, newest first; an admin sees all."""
        return self.pages("/v1/webhooks", Webhook)

    def workers(self) -> Pages[Worker]:
        """Lists workers seen in the last day, the last seen first. A worker that shut down cleanly is left out."""
        return self.pages("/v1/workers", Worker)
