"""Calls of the service that send what they are given: lists, page by page, and plain calls.

Written by scripts/write_specs.py from the routes.
"""

from __future__ import annotations

from typing import Any

from scrimp.models import (
    Approval,
    AuditEntry,
    AuditVerification,
    Budget,
    BudgetRequest,
    Charge,
    DataBlock,
    Dataset,
    Delivery,
    Egress,
    ErasureNote,
    Event,
    Grant,
    Graph,
    Job,
    Key,
    Kind,
    Ledger,
    LedgerEntry,
    NewSecret,
    Optimizer,
    Persons,
    Safeguard,
    SignatureDate,
    SigningHistory,
    SigningKey,
    Spending,
    Trials,
    UsageRow,
    Webhook,
    Worker,
)
from scrimp.rows import Pages
from scrimp.wire import Part, Wire, in_path


class Lists(Wire):
    """A part of `Client`."""

    def agree(self, approval_id: str) -> Approval:
        """Agrees, as the person to whom this key belongs. With the second person's word the act takes effect."""
        return Approval.model_validate(self.json("POST", f"/v1/approvals/{in_path(approval_id)}/agree"))

    def approval(self, approval_id: str) -> Approval:
        """Shows an act that two persons must agree to, and who has."""
        return Approval.model_validate(self.json("GET", f"/v1/approvals/{in_path(approval_id)}"))

    def approvals(self, dataset: str | None = None) -> Pages[Approval]:
        """Lists what this key asked for, may decide on, or owns, newest first."""
        return self.pages("/v1/approvals", Approval, dataset=dataset)

    def ask_egress(self, job_id: str, recipient: str, reason: str) -> Egress:
        """Asks for a signed folder of a finished job: its files, certificate, statement, proofs, and answers in
        words."""
        return Egress.model_validate(
            self.json("POST", f"/v1/jobs/{in_path(job_id)}/egress", json={"recipient": recipient, "reason": reason})
        )

    def audit(
        self, key: str | None = None, action: str | None = None, target: str | None = None, since: int | None = None
    ) -> Pages[AuditEntry]:
        """Lists audit entries, newest first; filters by key, action or target."""
        return self.pages("/v1/audit", AuditEntry, key=key, action=action, target=target, since=since)

    def cancel(self, job_id: str) -> Job:
        """Stops a job. Started steps stay charged; the rest of the hold is released."""
        return Job.model_validate(self.json("POST", f"/v1/jobs/{in_path(job_id)}/cancel"))

    def change_key(self, key_id: str, **changes: Any) -> Key:
        """Changes a key's limits and its weight, at once; what is left out stays. Jobs that run go on. For admins."""
        return Key.model_validate(self.json("PATCH", f"/v1/keys/{in_path(key_id)}", json=changes))

    def change_webhook(self, webhook_id: str, **changes: Any) -> Webhook:
        """Changes a webhook's address, events or description, or enables or disables it."""
        return Webhook.model_validate(self.json("PATCH", f"/v1/webhooks/{in_path(webhook_id)}", json=changes))

    def datasets(self) -> Pages[Dataset]:
        """Lists the data sets that this key may see, newest first, each with its ledger's balances; and the key's
        own that are still being read."""
        return self.pages("/v1/datasets", Dataset)

    def delete_artifacts(self, job_id: str) -> Job:
        """Deletes a job's model files; for a study its trials' files too."""
        return Job.model_validate(self.json("DELETE", f"/v1/jobs/{in_path(job_id)}/artifacts"))

    def delete_content(self, dataset: str) -> Dataset:
        """Deletes the data themselves, for good; for the data set's owner. No job can be submitted on it any more."""
        return Dataset.model_validate(self.json("DELETE", f"/v1/datasets/{in_path(dataset)}/content"))

    def delete_graph(self, sha256: str) -> None:
        """Deletes a graph of the caller's; 409 while a job with it is not finished. Models that were trained stay;
        the service answers no more predictions with them, and `scrimp.load_model` does."""
        self.json("DELETE", f"/v1/graphs/{in_path(sha256)}")

    def delete_webhook(self, webhook_id: str) -> None:
        """Deletes a webhook and its deliveries."""
        self.json("DELETE", f"/v1/webhooks/{in_path(webhook_id)}")

    def deliveries(self, webhook_id: str) -> Pages[Delivery]:
        """Lists a webhook's deliveries and their results, newest first. They are kept for 30 days."""
        return self.pages(f"/v1/webhooks/{in_path(webhook_id)}/deliveries", Delivery)

    def deny(self, approval_id: str) -> Approval:
        """Denies an act, or withdraws one's own: for the persons, the data set's owner, and who asked."""
        return Approval.model_validate(self.json("POST", f"/v1/approvals/{in_path(approval_id)}/deny"))

    def egresses(self, job_id: str) -> Pages[Egress]:
        """Lists a job's egresses, the newest first: whom its files left for, and what is waited for."""
        return self.pages(f"/v1/jobs/{in_path(job_id)}/egresses", Egress)

    def erasure_note(self, dataset: str) -> ErasureNote:
        """Says which models were made with deleted content or retired blocks, with their certificates and what ε
        means."""
        return ErasureNote.model_validate(self.json("GET", f"/v1/datasets/{in_path(dataset)}/erasure-note"))

    def events(self, job_id: str) -> Pages[Event]:
        """Lists the job's events, oldest first."""
        return self.pages(f"/v1/jobs/{in_path(job_id)}/events", Event)

    def extractors(self) -> Pages[Kind]:
        """Lists this service's frozen feature extractors, for `model.extractor` of a linear model."""
        return self.pages("/v1/extractors", Kind)

    def grants(self, dataset: str) -> Pages[Grant]:
        """Lists every grant on a data set, oldest first."""
        return self.pages(f"/v1/datasets/{in_path(dataset)}/grants", Grant)

    def graphs(self) -> Pages[Graph]:
        """Lists the models that the caller has uploaded, the newest first. No other key sees them."""
        return self.pages("/v1/graphs", Graph)

    def job(self, job_id: str) -> Job:
        """Shows a job: its status, progress, quote, attempts, last metrics and artifacts."""
        return Job.model_validate(self.json("GET", f"/v1/jobs/{in_path(job_id)}"))

    def join_ledger(self, dataset: str, into: str, reason: str) -> Ledger:
        """Joins data sets with the same records: closes this ledger and charges all that it spent to another's,
        which it returns. For admins; it cannot be undone."""
        return Ledger.model_validate(
            self.json("POST", f"/v1/datasets/{in_path(dataset)}/ledger/join", json={"into": into, "reason": reason})
        )

    def keys(self) -> Pages[Key]:
        """Lists every key, including revoked ones. For admins."""
        return self.pages("/v1/keys", Key)

    def label(self, job_id: str, **changes: Any) -> Job:
        """Changes a job's tags and notes; for who may cancel it. They are no part of its certificate."""
        return Job.model_validate(self.json("PATCH", f"/v1/jobs/{in_path(job_id)}", json=changes))

    def ledger(self, dataset: str) -> Ledger:
        """Shows what is enforced and what was spent, and other accountants' figures. Public data have no ledger:
        404."""
        return Ledger.model_validate(self.json("GET", f"/v1/datasets/{in_path(dataset)}/ledger"))

    def ledger_entries(self, dataset: str, job: str | None = None) -> Pages[LedgerEntry]:
        """Lists the ledger's entries, oldest first."""
        return self.pages(f"/v1/datasets/{in_path(dataset)}/ledger/entries", LedgerEntry, job=job)

    def models(self) -> Pages[Kind]:
        """Lists the kinds of model, with the JSON schema of their settings."""
        return self.pages("/v1/models", Kind)

    def optimizers(self) -> Pages[Optimizer]:
        """Lists the optimizers, with their rules, their state, and the JSON schema of their settings."""
        return self.pages("/v1/optimizers", Optimizer)

    def own_key(self) -> Key:
        """Shows the calling key and its limits."""
        return Key.model_validate(self.json("GET", "/v1/keys/self"))

    def pause(self, job_id: str) -> Job:
        """Pauses a job: it leaves its worker within a second and keeps its hold. It goes on when it is resumed."""
        return Job.model_validate(self.json("POST", f"/v1/jobs/{in_path(job_id)}/pause"))

    def persons(self, dataset: str) -> Persons:
        """Shows the persons of whom two decide together on a data set; none: one person is enough."""
        return Persons.model_validate(self.json("GET", f"/v1/datasets/{in_path(dataset)}/persons"))

    def remove_grant(self, dataset: str, key_id: str) -> None:
        """Ends a grant, at once. Jobs that were admitted under it continue."""
        self.json("DELETE", f"/v1/datasets/{in_path(dataset)}/grants/{in_path(key_id)}")

    def resume(self, job_id: str) -> Job:
        """Lets a paused job go on from its checkpoint. Later steps are repeated bit for bit, free of charge."""
        return Job.model_validate(self.json("POST", f"/v1/jobs/{in_path(job_id)}/resume"))

    def retire_dataset(self, dataset: str) -> Dataset:
        """Takes back a data set that nothing was ever held on, for good; its owner may register its content anew."""
        return Dataset.model_validate(self.json("POST", f"/v1/datasets/{in_path(dataset)}/retire"))

    def revoke_key(self, key_id: str) -> Key:
        """Revokes a key for good: at once in this API process, within a second in others. Its jobs continue. The
        last admin key without an expiry cannot be revoked: 409."""
        return Key.model_validate(self.json("DELETE", f"/v1/keys/{in_path(key_id)}"))

    def rotate_webhook_secret(self, webhook_id: str) -> NewSecret:
        """Gives a webhook a new secret, which appears in this response only. For 24 h messages carry signatures by
        both."""
        return NewSecret.model_validate(self.json("POST", f"/v1/webhooks/{in_path(webhook_id)}/rotate-secret"))

    def safeguards(self) -> Pages[Safeguard]:
        """Lists what protects the service as its own settings say it. They are not signed. No host, path or secret
        is told."""
        return self.pages("/v1/safeguards", Safeguard)

    def signature_date(self, digest: str) -> SignatureDate:
        """Proves that the service had signed something when its witnesses saw the log: for readers whom the key is
        revoked from. `digest`: SHA-256 of the signature's 64 bytes and of the payload, in hexadecimal."""
        return SignatureDate.model_validate(self.json("GET", f"/v1/signatures/{in_path(digest)}"))

    def signing_history(self) -> SigningHistory:
        """Shows when which key signs, and which is revoked, as the offline root signed it. Check it under its key."""
        return SigningHistory.model_validate(self.json("GET", "/v1/signing-keys/history"))

    def signing_keys(self) -> Pages[SigningKey]:
        """Lists the keys that sign or signed certificates, the newest first. Keep the key that you trust outside."""
        return self.pages("/v1/signing-keys", SigningKey)

    def spending(self, dataset: str) -> Spending:
        """Shows what each key spent, whoever posted it, summed over the data set's blocks. Its owner and admins
        read names."""
        return Spending.model_validate(self.json("GET", f"/v1/datasets/{in_path(dataset)}/spending"))

    def strategies(self) -> Pages[Kind]:
        """Lists the strategies for a private study of hyperparameters on a job's one budget, with their costs."""
        return self.pages("/v1/hpo-strategies", Kind)

    def test_webhook(self, webhook_id: str) -> Delivery:
        """Sends a `webhook.test` now, once. The deliveries show its result a moment later."""
        return Delivery.model_validate(self.json("POST", f"/v1/webhooks/{in_path(webhook_id)}/test"))

    def trials(self, job_id: str) -> Trials:
        """Lists a study's trials, with their points and noisy scores, and the choice of the final trial."""
        return Trials.model_validate(self.json("GET", f"/v1/jobs/{in_path(job_id)}/trials"))

    def usage(self, dataset: str | None = None, since: str | None = None, until: str | None = None) -> Pages[UsageRow]:
        """Shows what jobs took that ended in these months (2026-11): processor and GPU seconds, bytes and ε."""
        return self.pages("/v1/usage", UsageRow, dataset=dataset, since=since, until=until)

    def verify_audit(self) -> AuditVerification:
        """Recomputes the hash chain; names the first entry that does not fit. Keep the head outside."""
        return AuditVerification.model_validate(self.json("GET", "/v1/audit/verify"))

    def webhook(self, webhook_id: str) -> Webhook:
        """Shows a webhook: its address, events and state."""
        return Webhook.model_validate(self.json("GET", f"/v1/webhooks/{in_path(webhook_id)}"))

    def webhooks(self) -> Pages[Webhook]:
        """Lists the key's own webhooks, newest first; an admin sees all."""
        return self.pages("/v1/webhooks", Webhook)

    def workers(self) -> Pages[Worker]:
        """Lists workers seen in the last day, the last seen first. A worker that shut down cleanly is left out."""
        return self.pages("/v1/workers", Worker)


class BlockCalls(Part):
    """A part of `client.blocks`."""

    def retire(self, dataset: str, label: str) -> DataBlock:
        """Retires a block of a data set, for good: nothing more is admitted on it, and its files go with its last
        job."""
        return DataBlock.model_validate(
            self.json("POST", f"/v1/datasets/{in_path(dataset)}/blocks/{in_path(label)}/retire")
        )


class BudgetCalls(Part):
    """A part of `client.budgets`."""

    def __call__(self, dataset: str) -> Pages[Budget]:
        """Lists the budgets within the cap: all of them for the owner, else the calling key's own."""
        return self.pages(f"/v1/datasets/{in_path(dataset)}/budgets", Budget)

    def deny(self, request_id: str, answer: str | None = None) -> BudgetRequest:
        """Refuses a request, or withdraws the key's own. Nothing changes."""
        return BudgetRequest.model_validate(
            self.json("POST", f"/v1/budget-requests/{in_path(request_id)}/deny", json={"answer": answer})
        )

    def get(self, dataset: str, name: str) -> Budget:
        """Shows one budget, with its balances."""
        return Budget.model_validate(self.json("GET", f"/v1/datasets/{in_path(dataset)}/budgets/{in_path(name)}"))

    def requests(self, dataset: str | None = None, status: str | None = None) -> Pages[BudgetRequest]:
        """Lists the key's own requests and those on data sets that it owns, newest first."""
        return self.pages("/v1/budget-requests", BudgetRequest, dataset=dataset, status=status)


class ChargeCalls(Part):
    """A part of `client.charges`."""

    def __call__(self, dataset: str | None = None, status: str | None = None) -> Pages[Charge]:
        """Lists charges on the data sets that this key may see, newest first; `dataset` is an id or a name."""
        return self.pages("/v1/charges", Charge, dataset=dataset, status=status)

    def get(self, charge_id: str) -> Charge:
        """Shows a charge."""
        return Charge.model_validate(self.json("GET", f"/v1/charges/{in_path(charge_id)}"))

    def post(self, charge_id: str) -> Charge:
        """Spends the charge: the other system has answered something."""
        return Charge.model_validate(self.json("POST", f"/v1/charges/{in_path(charge_id)}/post"))

    def void(self, charge_id: str, reason: str) -> Charge:
        """Gives the charge back. Only if the other system has answered nothing and will answer nothing under it."""
        return Charge.model_validate(
            self.json("POST", f"/v1/charges/{in_path(charge_id)}/void", json={"reason": reason})
        )
