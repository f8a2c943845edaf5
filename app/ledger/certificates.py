"""Signed privacy certificates: one for every job that spent privacy, enough to recompute its ε by hand.

    {"certificate": body, "signature": base64, "public_key": base64, "algorithm": "Ed25519", "envelope": DSSE envelope}

The signature is over the canonical JSON of the body: sorted keys, no spaces, UTF-8. The envelope holds the same body
and the delivered files' hashes for readers that are not this service (app.ledger.attestations); a body of version 1 has
none. ε is the PLANNED one even if the job stopped early: a figure computed at the stopping time would be
no guarantee. The charged amounts stand beside it. `ledger` holds the newest signed checkpoint too, and proofs that the
job's entries are in its tree (app.ledger.checkpoints). For a job on blocks of a data set it is a list of their ledgers:
each was charged the same amounts, and no other was charged.

A job on public data gets no certificate: no privacy is claimed. Nor does a job that never started a private step: its
hold was voided.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.contracts.base import WITHIN_A_JOB
from app.contracts.blocks import ALL
from app.contracts.hf import weights_file
from app.db.models import Artifact, Certificate, Dataset, Job, JobEvent, LedgerCheckpoint, LedgerEntry, Metric
from app.errors import Conflict, NotFound, PrivacyError
from app.hpo.stored import StoredStudy
from app.ids import rfc3339, whole_second
from app.ledger import attestations, checkpoints, notes, signatures
from app.ledger.accounts import filter_for, find
from app.ledger.blocks import held_on, label_of
from app.ledger.repository import dataset_with_account
from app.ledger.signing_keys import public_key
from app.privacy.mechanism import MechanismConfig


def issue(session: Session, job_id: str, signing_key: Ed25519PrivateKey, code_version: str) -> bool:
    """Signs and stores the certificate of a settled job, once.

    Returns:
        True if it was issued now. False if it exists already, or if there is nothing to certify.

    Raises:
        NotFound: no such job.
        Conflict: `wrong-state`, the job has not settled.
    """
    # Locked: if two relays run at once, the second sees the first one's certificate.
    job = session.get(Job, job_id, with_for_update={"key_share": True})
    if job is None:
        raise NotFound("there is no such job")
    read = held_on(session, job_id)
    if (job.mechanism is None and job.study is None) or not read:
        return False
    found = [find(session, each, f"settle:{job_id}") for each in read]
    settled = [each for each in found if each is not None]
    if len(settled) < len(read):
        raise Conflict("wrong-state", "the job has not settled: there is nothing to certify yet")
    if settled[0].kind == "void" or session.get(Certificate, job_id) is not None:
        return False
    body = _body(session, job, settled, code_version, public_key(signing_key))
    document = sign(body, signing_key, _delivered(session, job))
    issued = Certificate(job_id=job_id, body=document, signature=document["signature"], issued_at=whole_second())
    session.add(issued)
    session.flush()
    return True


def sign(body: dict[str, Any], signing_key: Ed25519PrivateKey, files: Mapping[str, str]) -> dict[str, Any]:
    """The signed document of a body.

    Args:
        files: name → SHA-256 of what the job delivered.
    """
    envelope = attestations.seal(attestations.statement(body, files), signing_key)
    return signatures.sign(body, "certificate", signing_key) | {"envelope": envelope}


def verify(document: dict[str, Any], public_key: str | None = None) -> bool:
    """Returns True if all signatures are valid, and the envelope holds this body.

    Args:
        document: a certificate as it was issued.
        public_key: base64 of the trusted key. Without it the document's own key is used: this proves that the document
            is intact, not who signed it.
    """
    if not signatures.holds(document, "certificate", public_key):
        return False
    if document["certificate"].get("version") == 1:  # issued before there were envelopes
        return document.get("envelope") is None
    try:
        statement = attestations.opened(document["envelope"], document["public_key"])
    except (KeyError, attestations.NotAuthentic):
        return False
    return bool(statement["predicate"] == document["certificate"])


def _delivered(session: Session, job: Job) -> dict[str, str]:
    """The SHA-256 of each file that the job delivered, by name; of trials whose weights are kept as TRIAL/NAME."""
    files = {each.name: each.sha256 for each in session.scalars(select(Artifact).where(Artifact.job_id == job.id))}
    if job.study is not None and StoredStudy.read(job.study).keep_weights:
        trials = select(Artifact).join(Job, Job.id == Artifact.job_id).where(Job.parent_id == job.id)
        files |= {f"{each.job_id}/{each.name}": each.sha256 for each in session.scalars(trials)}
    return files


def ledgers_of(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The ledgers that a certificate names, by their data sets, or blocks.

    Raises:
        KeyError, TypeError: the body cannot be read.
    """
    ledger = body["ledger"]
    if isinstance(ledger, list):
        return {each["dataset"]: each for each in ledger}
    return {body["dataset"]["id"]: ledger}


def _body(session: Session, job: Job, entries: list[LedgerEntry], code_version: str, signer: str) -> dict[str, Any]:
    settled = entries[0]  # the same amounts on every block
    if any((each.kind, each.train, each.holdout) != (settled.kind, settled.train, settled.holdout) for each in entries):
        raise PrivacyError("the job was settled differently on its blocks")
    dataset = session.get_one(Dataset, job.dataset_id)
    account = dataset_with_account(session, settled.dataset_id)[1]
    weights = weights_file(job.spec.get("model", {}))
    model = session.get(Artifact, (job.id, weights))
    released = model is not None
    what_ran = _training(session, job, released) if job.study is None else _study(session, job, weights, released)
    unit = filter_for(account.filter, account.order).unit
    charged = {"train": settled.train, "holdout": settled.holdout}
    if job.study is not None:  # its trials have drawn on its hold; the settlement covers the rest
        drawn = what_ran.pop("drawn")
        charged = {name: charged[name] + drawn[name] for name in charged}
    return {
        "version": 2,
        "certificate_id": job.id,
        "job": job.id,
        "status": job.status,
        "dataset": {"id": dataset.id, "name": dataset.name, "content_hmac": dataset.content_hmac},
        "side_information": _side_information(session, job),
        **what_ran,
        "accountant": _accountant(job),
        "epsilon": job.quote["epsilon"],
        "resolved": job.quote.get("resolved"),  # the learning rate that "auto" stood for, and why
        "charge": charged | {"unit": unit},
        "filter": {"kind": account.filter, "order": account.order},
        "cap": {"epsilon": account.cap_epsilon, "delta": account.cap_delta},
        "ledger": _ledgers(session, job, entries, signer),
        "released": {"weights": released, "metrics": _metrics(session, job.id)},
        "warnings": job.warnings,
        "code_version": code_version,
        "model_sha256": model.sha256 if model is not None else None,
        "issued_at": rfc3339(whole_second()),
    }


def _ledgers(
    session: Session, job: Job, entries: list[LedgerEntry], signer: str
) -> dict[str, Any] | list[dict[str, Any]]:
    """The ledger that was charged; with blocks a list of theirs. The guarantee is about the units of these alone."""
    named = {each: session.get_one(Dataset, each.dataset_id) for each in entries}
    found = [
        {
            "entry_seq": entry.seq,
            "balance_after": entry.memo["balance"],
            "head": entry.hash,
            **_checkpoint(session, job, entry, signer),
        }
        for entry in entries
    ]
    if job.spec.get("blocks", ALL) == ALL:
        if [each.dataset_id for each in entries] != [job.dataset_id]:
            raise PrivacyError("this job has paid on blocks that its specification does not name")
        return found[0]
    labels = {label_of(block) for block in named.values()}
    if labels != set(job.spec["blocks"]):
        raise PrivacyError("this job has paid on other blocks than its specification names")
    return [
        {"block": label_of(block), "dataset": block.id, "content_hmac": block.content_hmac, **ledger}
        for block, ledger in zip(named.values(), found, strict=True)
    ]


def _checkpoint(session: Session, job: Job, settled: LedgerEntry, signer: str) -> dict[str, Any]:
    """The newest signed checkpoint, and proofs that the job's entries are in it: hold, settlement, its trials' posts.

    Nothing if it does not reach the settlement, if an entry is missing, or if another key signed it: a certificate with
    such a checkpoint would never verify.
    """
    newest = session.get(LedgerCheckpoint, settled.dataset_id)
    if newest is None or newest.size < settled.seq or not notes.is_signed(newest.note, signer):
        return {}
    whose = select(Job.id).where(or_(Job.id == job.id, Job.parent_id == job.id))
    own = select(LedgerEntry.seq, LedgerEntry.hash).where(
        LedgerEntry.dataset_id == settled.dataset_id, LedgerEntry.job_id.in_(whose), LedgerEntry.seq <= newest.size
    )
    entries = [(row.seq, row.hash) for row in session.execute(own.order_by(LedgerEntry.seq))]
    try:
        proofs = checkpoints.proofs(session, settled.dataset_id, entries, newest.size)
    except ValueError:
        return {}
    return {"checkpoint": newest.note, "proofs": proofs}


def _training(session: Session, job: Job, has_model: bool) -> dict[str, Any]:
    """What a job that trains once did."""
    mechanism = MechanismConfig.model_validate(job.mechanism)
    training = mechanism.training
    return {
        "unit": mechanism.unit,
        "relation": mechanism.relation,
        "mechanism": job.mechanism,
        "events": mechanism.events.model_dump(mode="json"),
        "sampling": {"kind": training.sampling, "sample_rate": training.sample_rate},
        "noise_multiplier": training.noise_multiplier,
        "gradient_noise_multiplier": training.gradient_noise_multiplier,  # larger if a count is released with it
        "max_grad_norm": training.max_grad_norm,  # per unit
        "records_per_unit": training.records_per_unit,
        "expected_batch_size": training.expected_batch_size,
        "numerics": _numerics(session, job),
        **_audit(session, job),
        "steps": {
            "planned": training.steps,
            "started": job.steps_started,
            "effective": job.step if has_model else None,  # of the released model
        },
    }


def _study(session: Session, job: Job, weights: str, has_model: bool) -> dict[str, Any]:
    """What a study and each of its trials did. `events` is its whole plan. In it a full-batch trial is one Gaussian sum
    with noise 1/μ: exactly equivalent to its T steps with σ = √T/μ."""
    stored = StoredStudy.read(job.study)
    if stored.common is None:
        raise PrivacyError("a study without privacy has no certificate")
    runs = list(session.scalars(select(Job).where(Job.parent_id == job.id).order_by(Job.trial_number)))
    charged = held_on(session, job.id)[0]  # the same amounts on every block
    posts = [find(session, charged, f"settle:{run.id}") for run in runs]
    of_runs = select(Artifact.job_id).where(Artifact.job_id.in_([run.id for run in runs]), Artifact.name == weights)
    handed_out = set(session.scalars(of_runs))
    chosen = next((run for run in runs if run.trial_number == stored.chosen), None)
    if chosen is not None and has_model:  # its model is the study's now
        handed_out.add(chosen.id)
    mechanisms = [MechanismConfig.model_validate(run.mechanism) for run in runs]
    training = stored.common.training
    return {
        "unit": stored.common.unit,
        "relation": job.quote["epsilon"]["relation"],
        "mechanism": None,  # each trial has its own
        "events": job.quote["mechanism"],
        "sampling": {"kind": training.sampling, "sample_rate": training.sample_rate},
        "noise_multiplier": None,
        "gradient_noise_multiplier": None,
        "max_grad_norm": None,
        "records_per_unit": training.records_per_unit,
        "expected_batch_size": training.expected_batch_size,
        "numerics": None,
        "steps": {
            "planned": sum(run.steps for run in runs),
            "started": sum(run.steps_started for run in runs),
            "effective": chosen.step if chosen is not None and has_model else None,
        },
        "study": {
            "search": job.spec["hpo"],
            "seed": stored.seed,  # the seed of the draws; public
            "procedure_epsilon": job.quote["hpo"]["procedure"],
            "final_run_epsilon": job.quote["hpo"]["final"],
            "decision": stored.decision.model_dump(mode="json") if stored.decision else None,
            "chosen": chosen.id if chosen is not None else None,
            "keeps_weights": stored.keep_weights,
            # The trial that released the mean by which all trials centre features; then no other may have one.
            **({"mean": {"run": runs[0].id}} if stored.common.mean_once else {}),
            "runs": [
                {
                    "job": run.id,
                    **{name: (run.trial or {})[name] for name in ("role", "level")},
                    "status": run.status,
                    "mechanism": run.mechanism,
                    "events": mechanism.events.model_dump(mode="json"),
                    "gradient_noise_multiplier": mechanism.training.gradient_noise_multiplier,
                    "numerics": _numerics(session, run),
                    "steps": {"planned": run.steps, "started": run.steps_started},
                    "charge": {"train": post.train, "holdout": post.holdout} if post else {"train": 0, "holdout": 0},
                    "released": {"weights": run.id in handed_out, "metrics": _metrics(session, run.id)},
                    "warnings": run.warnings,
                }
                for run, post, mechanism in zip(runs, posts, mechanisms, strict=True)
            ],
        },
        "drawn": {name: sum(getattr(post, name) for post in posts if post) for name in ("train", "holdout")},
    }


def _audit(session: Session, job: Job) -> dict[str, Any]:
    """What the canaries of an audited job show; nothing if it was not audited, or ended without a model."""
    audited = select(JobEvent.data).where(JobEvent.job_id == job.id, JobEvent.type == "audited")
    said = session.scalars(audited.order_by(JobEvent.seq.desc()).limit(1)).first()
    return {} if said is None else {"audit": said}


def _numerics(session: Session, job: Job) -> dict[str, Any] | None:
    """The numerics of its last attempt; null if none became ready, or if none reported them."""
    ready = select(JobEvent.data).where(JobEvent.job_id == job.id, JobEvent.type == "ready")
    said = session.scalars(ready.order_by(JobEvent.seq.desc()).limit(1)).first()
    return None if said is None else said.get("numerics")


def _side_information(session: Session, job: Job) -> dict[str, Any] | None:
    """The public data set whose gradients the optimizer used without noise, if any. The guarantee depends on its being
    public."""
    named = job.spec["optimizer"].get("public_dataset")
    if named is None:
        return None
    dataset = session.get(Dataset, named)
    if dataset is None:
        raise PrivacyError("the job's side information no longer exists and cannot be named")
    return {"id": dataset.id, "name": dataset.name, "content_hmac": dataset.content_hmac}


def _accountant(job: Job) -> dict[str, Any]:
    from app.privacy.pld import GRID  # noqa: PLC0415

    name = job.quote["epsilon"]["accountant"]
    if name not in WITHIN_A_JOB:
        raise PrivacyError("within a job the accountant is the exact one of full batch, or the PLD")
    return {
        "name": name,
        "library": "dp_accounting",
        "version": version("dp-accounting"),
        "grid": GRID if name == "pld" else None,
    }


def _metrics(session: Session, job_id: str) -> list[dict[str, Any]]:
    released = session.scalars(select(Metric).where(Metric.job_id == job_id).order_by(Metric.name, Metric.step))
    return [
        {"name": each.name, "step": each.step, "on": each.on, "std": each.std, "released_by": each.released_by}
        for each in released
    ]
