"""Signed privacy certificates: one for every job that spent privacy, enough to recompute its ε by hand.

    {"certificate": body, "signature": base64, "public_key": base64, "algorithm": "Ed25519", "envelope": DSSE envelope}

The signature is over the canonical JSON of the body: sorted keys, no spaces, UTF-8. The envelope holds the same body
and the delivered files' hashes for readers that are not this service (app.ledger.transparency.attestations); a body of
version 1 has none. ε is the PLANNED one even if the job stopped early: a figure computed at the stopping time would be
no guarantee. The charged amounts stand beside it. `ledger` holds the newest signed checkpoint too, and proofs that the
job's entries are in its tree (app.ledger.transparency.checkpoints). For a job on blocks of a data set it is a list of
their ledgers: each was charged the same amounts, and no other was charged.

A job on public data gets no certificate: no privacy is claimed. Nor does a job that never started a private step: its
hold was voided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

from pydantic import ValidationError
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.declared_version import governance
from app.db.models import Artifact, Certificate, Dataset, Job, JobEvent, LedgerCheckpoint, LedgerEntry, Metric
from app.hpo.stored_study import StoredStudy
from app.ledger import meaning
from app.ledger.accounts import filter_for, find
from app.ledger.block_accounts import held_on, label_of, records_of
from app.ledger.certificate_documents import (
    Accountant,
    Body,
    Cap,
    CertifiedQuote,
    CertifiedRun,
    CertifiedStudy,
    Content,
    FilterName,
    Governed,
    LedgerSettled,
    MeanOf,
    ReadyNumerics,
    Releases,
    RunSteps,
    Sampling,
    Signed,
    Steps,
    Version,
    WhatRan,
)
from app.ledger.memos import Memo
from app.ledger.repository import dataset_with_account
from app.ledger.signer import Signer, public_key, sign_and_store
from app.ledger.transparency import attestations, certificate_signatures, checkpoints, notes
from core.contracts.base import WITHIN_A_JOB, AccountantName
from core.contracts.blocks import ALL
from core.contracts.event_kinds import EventType
from core.contracts.graph import GraphModel
from core.contracts.job_spec import JobSpec
from core.contracts.kinds import rule_of
from core.contracts.optimizers import PublicSideSettings
from core.contracts.stored_documents import ReleasedNumber
from core.errors import Conflict, NotFound, PrivacyError
from core.ids import rfc3339, whole_second
from core.privacy.canary_bound import Finding
from core.privacy.mechanism import MechanismConfig
from core.privacy.numerics import NumericsReport
from core.privacy.prices import Charge, Units
from core.privacy.profile import Profile, profile_of


def issue(
    db: Database, job_id: str, key: Signer, code_version: str, announce: Callable[[Session], None] = lambda _: None
) -> bool:
    """Signs and stores the certificate of a settled job, once.

    Args:
        announce: called in the transaction that stores it.

    Returns:
        True if it was issued now. False if it exists already, or if there is nothing to certify.

    Raises:
        NotFound: no such job.
        Conflict: `wrong-state`, the job has not settled.
        Unavailable, TransientError: as `sign_and_store`.
    """
    with db.read() as session:
        loss = _profile(session, job_id)

    def draft() -> _Unsigned | None:
        with db.read() as session:
            ledgers = tuple(held_on(session, job_id))
            newest = _notes(session, ledgers)
            issuing = _Issuing(job_id, code_version, public_key(key), loss, ledgers, newest, whole_second())
            job = session.get(Job, job_id)
            if job is None:
                raise NotFound("there is no such job")
            content = _content_of(session, job, issuing)
        return None if content is None else _Unsigned(issuing, *content, announce)

    return sign_and_store(db, draft, key) is not None


def _profile(session: Session, job_id: str) -> Profile | None:
    """Computes the privacy profile of a job's plan; None of a job without privacy. It may take seconds where batches
    are sampled."""
    job = session.get(Job, job_id)
    quoted = CertifiedQuote.of(job.quote) if job is not None else None
    if job is None or quoted is None or quoted.epsilon is None:
        return None
    events = quoted.mechanism if job.study is not None else MechanismConfig.model_validate(job.mechanism).events
    return None if events is None else profile_of(events, quoted.epsilon.value)


@dataclass(frozen=True)
class _Issuing:
    """What a certificate says that its job's rows do not.

    Attributes:
        signer: the public key that will sign it.
        loss: the profile of the job's plan.
        ledgers: the data sets on which the job holds or held; no more come once it has settled.
        notes: the newest checkpoint of each ledger, by data set.
    """

    job_id: str
    code_version: str
    signer: str
    loss: Profile | None
    ledgers: Sequence[str]
    notes: Mapping[str, str]
    issued_at: datetime


@dataclass(frozen=True)
class _Unsigned:
    """A certificate's body, as JSON, and the hashes of its files, as they were read."""

    issuing: _Issuing
    body: object
    files: Mapping[str, str]
    announce: Callable[[Session], None]

    def signed(self, key: Signer) -> Signed:
        return sign(self.body, key, self.files)

    def store(self, session: Session, signed: Signed) -> bool:
        # Locked: if two relays run at once, the second sees the first one's certificate.
        job = session.get_one(Job, self.issuing.job_id, with_for_update={"key_share": True})
        if _content_of(session, job, self.issuing) != (self.body, self.files):
            return False
        session.add(
            Certificate(
                job_id=self.issuing.job_id,
                body=signed.model_dump(mode="json"),
                signature=signed.signature,
                issued_at=self.issuing.issued_at,
            )
        )
        session.flush()
        attestations.keep(session, attestations.Envelope.model_validate(signed.envelope))
        self.announce(session)
        return True


def _content_of(session: Session, job: Job, issuing: _Issuing) -> tuple[object, Mapping[str, str]] | None:
    """The body, as JSON, and the delivered files' hashes; None if there is nothing to certify, or nothing any more."""
    if (job.mechanism is None and job.study is None) or not issuing.ledgers:
        return None
    entries = [find(session, each, f"settle:{job.id}") for each in issuing.ledgers]
    settled = [each for each in entries if each is not None]
    if len(settled) < len(issuing.ledgers):
        raise Conflict("wrong-state", "the job has not settled: there is nothing to certify yet")
    if settled[0].kind == "void" or session.get(Certificate, job.id) is not None:
        return None
    files = _delivered(session, job)
    return _body(session, job, settled, files, issuing).model_dump(mode="json"), files


def _notes(session: Session, dataset_ids: Sequence[str]) -> dict[str, str]:
    query = select(LedgerCheckpoint).where(LedgerCheckpoint.dataset_id.in_(dataset_ids))
    return {each.dataset_id: each.note for each in session.scalars(query)}


def sign(body: object, signing_key: Signer, files: Mapping[str, str]) -> Signed:
    """The signed document of a body.

    Args:
        body: as JSON.
        files: name → SHA-256 of what the job delivered.
    """
    envelope = attestations.seal(attestations.statement(body, files), signing_key)
    sealed = envelope.model_dump(mode="json", by_alias=True)
    return certificate_signatures.sign(body, signing_key).model_copy(update={"envelope": sealed})


def verify(document: object, public_key: str | None = None) -> bool:
    """Returns True if all signatures are valid, and the envelope holds this body.

    Args:
        document: a certificate as it was issued: JSON, of whatever origin.
        public_key: base64 of the trusted key. Without it the document's own key is used: this proves that the document
            is intact, not who signed it.
    """
    try:
        signed = Signed.model_validate(document)
        version = Version.model_validate(signed.certificate).version
    except ValidationError:
        return False
    if not certificate_signatures.holds(signed, public_key):
        return False
    if version == 1:  # issued before there were envelopes
        return signed.envelope is None
    try:
        statement = attestations.opened(signed.envelope, signed.public_key)
    except attestations.NotAuthentic:
        return False
    return statement.predicate == signed.certificate


def _delivered(session: Session, job: Job) -> dict[str, str]:
    """The SHA-256 of each file that the job delivered, by name; of trials whose weights are kept as TRIAL/NAME."""
    files = {each.name: each.sha256 for each in session.scalars(select(Artifact).where(Artifact.job_id == job.id))}
    if job.study is not None and StoredStudy.read(job.study).keep_weights:
        trials = select(Artifact).join(Job, Job.id == Artifact.job_id).where(Job.parent_id == job.id)
        files |= {f"{each.job_id}/{each.name}": each.sha256 for each in session.scalars(trials)}
    return files


def _body(session: Session, job: Job, entries: list[LedgerEntry], files: Mapping[str, str], issuing: _Issuing) -> Body:
    settled = entries[0]  # the same amounts on every block
    if any((each.kind, each.train, each.holdout) != (settled.kind, settled.train, settled.holdout) for each in entries):
        raise PrivacyError("the job was settled differently on its blocks")
    dataset = session.get_one(Dataset, job.dataset_id)
    account = dataset_with_account(session, settled.dataset_id)[1]
    spec, quoted = JobSpec.model_validate(job.spec), CertifiedQuote.of(job.quote)
    if quoted.epsilon is None or issuing.loss is None:
        raise PrivacyError("a job without privacy has no certificate")
    weights = spec.delivers
    released = weights in files
    ledgers = _ledgers(session, job, spec, entries, issuing)
    blocks = [] if isinstance(ledgers, LedgerSettled) else [each.block for each in ledgers if each.block is not None]
    charge = Charge(train=settled.train, holdout=settled.holdout, unit=filter_for(account.filter, account.order).unit)
    if job.study is None:
        ran = _training(session, job, spec, released)
    else:  # its trials have drawn on its hold; the settlement covers the rest
        ran, drawn = _study(session, job, spec, quoted, issuing.ledgers[0], released)
        totals = {"train": charge.train + drawn.train, "holdout": charge.holdout + drawn.holdout}
        charge = charge.model_copy(update=totals)
    side = _side_information(session, spec)
    reports = [ran.numerics] if ran.study is None else [run.numerics for run in ran.study.runs]
    return Body(
        certificate_id=job.id,
        job=job.id,
        status=job.status,
        dataset=_content(dataset),
        side_information=side,
        governance=_governance(session, job, spec),
        **dict(ran),
        accountant=_accountant(quoted.epsilon.accountant),
        epsilon=quoted.epsilon,
        resolved=quoted.resolved,
        charge=charge,
        filter=FilterName(kind=account.filter, order=account.order),
        cap=Cap(epsilon=account.cap_epsilon, delta=account.cap_delta),
        ledger=ledgers,
        released=_delivered_kind(session, job, spec, released),
        warnings=tuple(job.warnings),
        code_version=issuing.code_version,
        **_digests(spec, files.get(weights)),
        graph_sha256=spec.model.sha256 if isinstance(spec.model, GraphModel) else None,
        issued_at=rfc3339(issuing.issued_at),
        threat_model=meaning.threat_model(ran.unit, reach=spec.model.reach),
        assumptions=meaning.assumptions(ran.unit, ran.records_per_unit, side.name if side is not None else None),
        composition=meaning.composition(account.filter, settled.dataset_id, blocks),
        profile=issuing.loss,
        environment=meaning.environment(reports),
    )


def _delivered_kind(session: Session, job: Job, spec: JobSpec, released: bool) -> Releases:
    """What left the attempt: the file that its kind delivers, and scores."""
    left = {rule_of(spec.kind).released: released}
    return Releases.model_validate({"weights": False, "metrics": _metrics(session, job.id)} | left)


def _digests(spec: JobSpec, sha256: str | None) -> dict[str, str | None]:
    """The SHA-256 of the file that the job delivered, in the member of its kind."""
    return {"model_sha256": None, rule_of(spec.kind).certified: sha256}


def _governance(session: Session, job: Job, spec: JobSpec) -> Governed | None:
    terms = governance(session, job)
    return None if terms is None else Governed(dataset=terms, use=spec.use)


def _content(dataset: Dataset) -> Content:
    return Content(id=dataset.id, name=dataset.name, content_hmac=dataset.content_hmac)


def _ledgers(
    session: Session, job: Job, spec: JobSpec, entries: list[LedgerEntry], issuing: _Issuing
) -> LedgerSettled | tuple[LedgerSettled, ...]:
    """The ledger that was charged; with blocks all of theirs. The guarantee is about the units of these alone."""
    ledgers = [_settled(session, job, each, issuing) for each in entries]
    paid = [session.get_one(Dataset, each.dataset_id) for each in entries]
    records = [records_of(session, each.id) for each in paid]
    if spec.blocks == ALL:
        if [each.id for each in records] != [job.dataset_id]:
            raise PrivacyError("this job has paid on blocks that its specification does not name")
        if paid == records:
            return ledgers[0]
    elif {label_of(block) for block in records} != set(spec.blocks):
        raise PrivacyError("this job has paid on other blocks than its specification names")
    return tuple(
        ledger.model_copy(update={"block": label_of(block), "dataset": block.id, "content_hmac": block.content_hmac})
        for block, ledger in zip(paid, ledgers, strict=True)
    )


def _settled(session: Session, job: Job, entry: LedgerEntry, issuing: _Issuing) -> LedgerSettled:
    """The entry that settled the job. With the newest signed checkpoint, and proofs that the job's entries are in it:
    hold, settlement, its trials' posts.

    Without them if it does not reach the settlement, if an entry is missing, or if another key signed it: a certificate
    with such a checkpoint would never verify.
    """
    settled = LedgerSettled(entry_seq=entry.seq, balance_after=Memo.of(entry.memo).balances, head=entry.hash)
    note = issuing.notes.get(entry.dataset_id)
    if note is None or not notes.is_signed(note, issuing.signer):
        return settled
    size = notes.read(note).size
    if size < entry.seq:
        return settled
    runs = select(Job.id).where(or_(Job.id == job.id, Job.parent_id == job.id))
    entry_query = select(LedgerEntry.seq, LedgerEntry.hash).where(
        LedgerEntry.dataset_id == entry.dataset_id, LedgerEntry.job_id.in_(runs), LedgerEntry.seq <= size
    )
    entries = [(row.seq, row.hash) for row in session.execute(entry_query.order_by(LedgerEntry.seq))]
    try:
        proofs = checkpoints.proofs(session, entry.dataset_id, entries, size)
    except ValueError:
        return settled
    return settled.model_copy(update={"checkpoint": note, "proofs": tuple(proofs)})


def _training(session: Session, job: Job, spec: JobSpec, has_model: bool) -> WhatRan:
    """What a job that trains once did."""
    mechanism = MechanismConfig.model_validate(job.mechanism)
    training = mechanism.training
    return WhatRan(
        unit=mechanism.unit,
        relation=mechanism.relation,
        mechanism=mechanism,
        events=mechanism.events,
        sampling=Sampling(kind=training.sampling, sample_rate=training.sample_rate),
        noise_multiplier=training.noise_multiplier,
        gradient_noise_multiplier=training.gradient_noise_multiplier,
        max_grad_norm=training.max_grad_norm,
        records_per_unit=training.records_per_unit,
        expected_batch_size=training.expected_batch_size,
        numerics=_numerics(session, job),
        audit=None if spec.audit is None else _audit(session, job),
        steps=Steps(planned=training.steps, started=job.steps_started, effective=job.step if has_model else None),
    )


def _study(
    session: Session, job: Job, spec: JobSpec, quoted: CertifiedQuote, charged: str, has_model: bool
) -> tuple[WhatRan, Units]:
    """What a study and each of its trials did, and what these have drawn on its hold.

    Args:
        charged: one of its ledgers: the same amounts are on every block's.
    """
    stored = StoredStudy.read(job.study)
    if stored.common is None or quoted.mechanism is None or quoted.hpo is None or quoted.epsilon is None:
        raise PrivacyError("a study without privacy has no certificate")
    if spec.study is None:
        raise TypeError("this job is not a study")
    runs = list(session.scalars(select(Job).where(Job.parent_id == job.id).order_by(Job.trial_number)))
    posts = [find(session, charged, f"settle:{run.id}") for run in runs]
    of_runs = select(Artifact.job_id).where(
        Artifact.job_id.in_([run.id for run in runs]), Artifact.name == spec.delivers
    )
    handed_out = set(session.scalars(of_runs))
    chosen_run = next((run for run in runs if run.trial_number == stored.chosen), None)
    if chosen_run is not None and has_model:  # its model is the study's now
        handed_out.add(chosen_run.id)
    training = stored.common.training
    study = CertifiedStudy(
        search=spec.study,
        seed=stored.seed,
        procedure_epsilon=quoted.hpo.procedure,
        final_run_epsilon=quoted.hpo.final,
        decision=stored.decision,
        chosen=chosen_run.id if chosen_run is not None else None,
        keeps_weights=stored.keep_weights,
        mean=MeanOf(run=runs[0].id) if stored.common.mean_once else None,
        runs=tuple(_run(session, run, post, run.id in handed_out) for run, post in zip(runs, posts, strict=True)),
    )
    started = sum(run.steps_started for run in runs)
    effective = chosen_run.step if chosen_run is not None and has_model else None
    totals = WhatRan(
        unit=stored.common.unit,
        relation=quoted.epsilon.relation,
        mechanism=None,
        events=quoted.mechanism,
        sampling=Sampling(kind=training.sampling, sample_rate=training.sample_rate),
        noise_multiplier=None,
        gradient_noise_multiplier=None,
        max_grad_norm=None,
        records_per_unit=training.records_per_unit,
        expected_batch_size=training.expected_batch_size,
        numerics=None,
        steps=Steps(planned=sum(run.steps for run in runs), started=started, effective=effective),
        study=study,
    )
    paid = [post for post in posts if post]
    return totals, Units(train=sum(each.train for each in paid), holdout=sum(each.holdout for each in paid))


def _run(session: Session, run: Job, post: LedgerEntry | None, has_model: bool) -> CertifiedRun:
    mechanism = MechanismConfig.model_validate(run.mechanism)
    return CertifiedRun(
        job=run.id,
        role=run.trial.role if run.trial else None,
        level=run.trial.level if run.trial else None,
        status=run.status,
        mechanism=mechanism,
        events=mechanism.events,
        gradient_noise_multiplier=mechanism.training.gradient_noise_multiplier,
        numerics=_numerics(session, run),
        steps=RunSteps(planned=run.steps, started=run.steps_started),
        charge=Units(train=post.train, holdout=post.holdout) if post else Units(train=0, holdout=0),
        released=Releases(weights=has_model, metrics=_metrics(session, run.id)),
        warnings=tuple(run.warnings),
    )


def _audit(session: Session, job: Job) -> Finding | None:
    """What the canaries of an audited job show; None if it was not audited, or ended without a model."""
    event = _last_event(session, job, "audited")
    return None if event is None else Finding.model_validate(event)


def _numerics(session: Session, job: Job) -> NumericsReport | None:
    """The numerics of its last attempt; None if none became ready, or if none reported them."""
    event = _last_event(session, job, "ready")
    return None if event is None else ReadyNumerics.model_validate(event).numerics


def _last_event(session: Session, job: Job, kind: EventType) -> object:
    query = select(JobEvent.data).where(JobEvent.job_id == job.id, JobEvent.type == kind)
    return session.scalars(query.order_by(JobEvent.seq.desc()).limit(1)).first()


def _side_information(session: Session, spec: JobSpec) -> Content | None:
    """The public data set whose gradients the optimizer used without noise, if any. The guarantee depends on its being
    public."""
    if not isinstance(spec.optimizer, PublicSideSettings):
        return None
    dataset = session.get(Dataset, spec.optimizer.public_dataset)
    if dataset is None:
        raise PrivacyError("the job's side information no longer exists and cannot be named")
    return _content(dataset)


def _accountant(name: AccountantName) -> Accountant:
    from core.privacy.pld import GRID  # noqa: PLC0415

    if name not in WITHIN_A_JOB:
        raise PrivacyError(
            "within a job the accountant is the exact one of full batch, the PLD, or of a selection the Rényi one"
        )
    grid = GRID if name == "pld" else None
    return Accountant(name=name, library="dp_accounting", version=version("dp-accounting"), grid=grid)


def _metrics(session: Session, job_id: str) -> tuple[ReleasedNumber, ...]:
    released = session.scalars(select(Metric).where(Metric.job_id == job_id).order_by(Metric.name, Metric.step))
    return tuple(ReleasedNumber.model_validate(each, from_attributes=True) for each in released)
