"""The folder as a Five Safes RO-Crate: ro-crate-metadata.json, a flat JSON-LD graph.

Written here and not by the library `rocrate`, which would add an HTTP client to the service and stamps the current
time. Only what the certificate, the data set's declaration and the egress say is in it.

    Safe Project    sourceOrganization: the job's purpose and permit
    Safe People     agent: who submitted the job and who asked for the egress, by key; approvers by name
    Safe Data       mainEntity's object: the data set, its controller and legal basis
    Safe Setting    the sandboxed worker as a SoftwareApplication, with its environment's hashes
    Safe Outputs    AssessActions: the privacy accounting (a disclosure check) and each person's sign-off

Sources: RO-Crate 1.1; Five Safes RO-Crate 0.4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.egress.archive import Hashed
from app.egress.manifest import NAME, Manifest
from app.egress.read import CertificateFacts

METADATA = "ro-crate-metadata.json"
SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/5s-crate/0.4"
# https://w3id.org/ro/terms/trusted-workflow-run, as the profile names its terms
TERMS = "https://w3id.org/shp#"
SHA256 = "https://w3id.org/ro/terms/workflow-run#sha256"  # the context of RO-Crate 1.1 has no such term
FORMATS = {
    ".json": "application/json",
    ".html": "text/html",
    ".md": "text/markdown",
    ".safetensors": "application/octet-stream",
}
Json = dict[str, Any]
LICENCE = {
    "@id": "#licence",
    "@type": "CreativeWork",
    "name": "the recipient's agreement with the data set's controller",
    "description": "The service grants no other licence.",
}


def metadata(facts: CertificateFacts, manifest: Manifest, files: Mapping[str, Hashed], submitted_by: str) -> bytes:
    """The text of ro-crate-metadata.json.

    Args:
        manifest: of the egress, before its files are known.
        files: all others of the folder but the manifest.
        submitted_by: the key that submitted the job.
    """
    graph = [
        _descriptor(),
        _root(facts, manifest, files, submitted_by),
        *_project(facts),
        *_people(manifest, submitted_by),
        _data(facts),
        _setting(facts),
        _run(facts, files, submitted_by),
        *_assessments(facts, manifest),
        *(_file(name, hashed) for name, hashed in sorted(files.items())),
        {"@id": NAME, "@type": "File", "name": "signed manifest of all files", "encodingFormat": "application/json"},
        LICENCE,
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Five Safes RO-Crate", "version": "0.4"},
    ]
    context = [f"{SPECIFICATION}/context", {"shp": TERMS, "sha256": SHA256}]
    document = {"@context": context, "@graph": graph}
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def _ref(name: str) -> Json:
    return {"@id": name}


def _refs(names: Sequence[str]) -> object:
    """One value is written without a list, as RO-Crate asks."""
    references = [_ref(name) for name in names]
    return references[0] if len(references) == 1 else references


def _descriptor() -> Json:
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": _ref("./"),
        "conformsTo": _ref(SPECIFICATION),
    }


def _root(facts: CertificateFacts, manifest: Manifest, files: Mapping[str, Hashed], submitted_by: str) -> Json:
    description = (
        f"Files of {facts.job} for {manifest.recipient}, with the proof of what was spent: "
        f"(ε = {facts.epsilon.value:.6g}, δ = {facts.epsilon.delta:g})-differential privacy for one {facts.thing}."
    )
    agreed = [f"#agreement-{each.key_id}" for each in manifest.approvals]
    publisher = {} if facts.governance is None else {"publisher": _ref("#controller")}
    return publisher | {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Egress {manifest.number} of {facts.job}, from the data set {facts.dataset.name}",
        "description": description,
        "datePublished": manifest.made_at,
        "license": _ref("#licence"),
        "author": _ref(f"#{submitted_by}"),
        "identifier": manifest.egress,
        "conformsTo": _ref(PROFILE),
        "hasPart": _refs([*sorted(files), NAME]),
        "mainEntity": _ref("#job"),
        "sourceOrganization": _ref("#project"),
        "mentions": _refs(["#run", "#accounting", *agreed]),
    }


def _project(facts: CertificateFacts) -> list[Json]:
    governed = facts.governance
    purpose = governed.use.purpose if governed is not None and governed.use is not None else None
    permit = governed.use.permit if governed is not None and governed.use is not None else None
    project: Json = {
        "@id": "#project",
        "@type": "Project",
        "name": purpose or "no purpose was declared",
        "identifier": permit or facts.job,
    }
    if governed is None:
        return [project]
    controller = {
        "@id": "#controller",
        "@type": "Organization",
        "name": governed.dataset.controller,
    } | ({"description": governed.dataset.contact} if governed.dataset.contact else {})
    return [project | {"funder": _ref("#controller")}, controller]


def _people(manifest: Manifest, submitted_by: str) -> list[Json]:
    names = {submitted_by: f"holder of {submitted_by}", manifest.asked_by: f"holder of {manifest.asked_by}"}
    names |= {each.key_id: each.person for each in manifest.approvals}
    return [
        {"@id": f"#{key}", "@type": "Person", "name": name, "identifier": key, "memberOf": _ref("#project")}
        for key, name in sorted(names.items())
    ]


def _data(facts: CertificateFacts) -> Json:
    data: Json = {
        "@id": f"#{facts.dataset.id}",
        "@type": "Dataset",
        "name": facts.dataset.name,
        "identifier": facts.dataset.id,
        "description": "It stays with the service: the folder holds no record of it.",
    }
    if facts.governance is None:
        return data
    terms = facts.governance.dataset
    usage = {"usageInfo": terms.legal_basis, "spatialCoverage": terms.region, "temporalCoverage": terms.retention}
    return data | {"provider": _ref("#controller")} | {name: text for name, text in usage.items() if text}


def _setting(facts: CertificateFacts) -> Json:
    hashes = [
        f"{name} {value}"
        for each in facts.environment
        for name, value in (("packages", each.packages), ("code", each.code))
        if value is not None
    ]
    return {
        "@id": "#job",
        "@type": "SoftwareApplication",
        "name": f"Scrimp {facts.code_version}: a differentially private training job in a sandboxed process",
        "version": facts.code_version,
        "description": "; ".join(hashes) or "an earlier release: its environment was not recorded",
    }


def _run(facts: CertificateFacts, files: Mapping[str, Hashed], submitted_by: str) -> Json:
    is_done = facts.status == "succeeded"
    return {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"{facts.job}: {facts.steps.started} of {facts.steps.planned} steps",
        "instrument": _ref("#job"),
        "agent": _ref(f"#{submitted_by}"),
        "object": _ref(f"#{facts.dataset.id}"),
        "result": _refs([name for name in sorted(files) if name.startswith("model/")]),
        "actionStatus": f"http://schema.org/{'CompletedActionStatus' if is_done else 'FailedActionStatus'}",
        "endTime": facts.issued_at,
    }


def _assessments(facts: CertificateFacts, manifest: Manifest) -> list[Json]:
    accounting: Json = {
        "@id": "#accounting",
        "@type": "AssessAction",
        "additionalType": _ref(f"{TERMS}DisclosureCheck"),
        "name": f"privacy accounting: ε = {facts.epsilon.value:.6g} at δ = {facts.epsilon.delta:g}, within the cap",
        "agent": _ref("#job"),
        "object": _ref("./"),
        "result": _ref("certificate.json"),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "endTime": facts.issued_at,
    }
    agreed: list[Json] = [
        {
            "@id": f"#agreement-{each.key_id}",
            "@type": "AssessAction",
            "additionalType": _ref(f"{TERMS}SignOff"),
            "name": f"{each.person} agreed to this egress",
            "agent": _ref(f"#{each.key_id}"),
            "object": _ref("./"),
            "instrument": _ref(NAME),
            "actionStatus": "http://schema.org/CompletedActionStatus",
            "endTime": each.at,
        }
        for each in manifest.approvals
    ]
    return [accounting, *agreed]


def _file(name: str, hashed: Hashed) -> Json:
    ending = name[name.rfind(".") :]
    return {
        "@id": name,
        "@type": "File",
        "name": name,
        "contentSize": str(hashed.size_bytes),
        "sha256": hashed.sha256,
        "encodingFormat": FORMATS.get(ending, "application/octet-stream"),
    }
