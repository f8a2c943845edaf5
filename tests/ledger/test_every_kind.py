"""Every kind of certificate passes every tool that reads one: verify, recompute, explain, and Node's verifier.

What kinds there are follows from the documents that a certificate is made of: each of their classes, each choice, and
each member that may be left out. A new one without a certificate here fails.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from app.ledger import signing_keys
from app.ledger.certificate_documents import Body
from app.ledger.signer import public_key
from app.ledger.transparency.heads import Heads
from core.contracts.filter_names import FILTERS
from core.contracts.stored_documents import ReleasedBy
from scrimp.audit_bundle import Verdict, examine
from scrimp.certificate_page import Signer, page
from scrimp.explain import declared, explained
from scrimp.key_history import Trust
from scrimp.recompute import body_of, recompute
from scrimp.signatures import problem_of
from scrimp.transparency import Required
from tests.datasets.conftest import new_api
from tests.ledger.issued import KEY, KINDS, Issuer
from tests.node import by_node, needs_node

TRUSTED = public_key(KEY)
# What no certificate can have, and why.
NEVER = {
    **dict.fromkeys(("NoisyCount.cutoff is there", "NoisyCount.ranks is there"), "a count is neither ranking nor loss"),
    "NoisySum.classes is there": "a sum has no cells",
    **dict.fromkeys(
        (
            "GridOracle",
            "CertifiedStudy.procedure_epsilon is left out",
            "CertifiedStudy.final_run_epsilon is left out",
            "Charge.unit is left out",
            "NumericsReport.self_test = public_data",
        ),
        "of public data, on which no job has a certificate",
    ),
    "Body.issued_at is left out": "each is issued at some time",
    "CertifiedRun.role is left out": "each trial has a role",
}


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[dict[str, Path]]:
    """The file of a certificate of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    api = new_api(folder / "home", migrated_database)
    signing_keys.publish(api.db, KEY)
    issuer = Issuer(api, Heads(folder / "heads"))
    files = {}
    for number, kind in enumerate(KINDS):
        files[kind] = folder / f"{number}.json"
        files[kind].write_text(json.dumps(issuer.document(kind)))
    yield files
    api.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_tool_reads_every_kind(issued: dict[str, Path], kind: str) -> None:
    """As the commands call them; `tests/ledger/test_required.py` and `test_explain.py` run these."""
    document, required = json.loads(issued[kind].read_text()), Required(checkpoint=True)
    assert problem_of(document, TRUSTED) is None
    assert (problem_of(document, TRUSTED, required) is None) == (kind != "without a checkpoint")
    assert recompute(document, TRUSTED, kind) == 0
    body = body_of(document)
    said = dict(explained(body))
    assert said["What left the service"] and said["Composition"] and said["How to read it"]
    assert said["Numbers and randomness"][0].startswith("noise: a Gaussian over the reals"), "also of a study"
    if body["released"].get("answers"):
        assert said["Mechanism"][0].startswith("one release of sums") and "histogram age" in said["Mechanism"][2]
    assert "How to check it" in page(body, Signer(TRUSTED, True)) and declared(body)[0] > 0
    assert (kind in ("blocks", "retired block", "moved")) == isinstance(body["ledger"], list)


def test_a_certificate_names_the_submitter_s_graph(issued: dict[str, Path], tmp_path: Path) -> None:
    """A reader who has the file finds that it is the one."""
    graph, other = tmp_path / "small.pt2", tmp_path / "other.pt2"
    graph.write_bytes(b"a graph")
    other.write_bytes(b"another graph")
    path = issued["own graph"]
    findings = examine([path, graph, other], Trust((TRUSTED,)))
    assert [each.verdict for each in findings] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.FAULT]
    assert findings[1].checks[0][2].startswith("is the graph at whose weights training began")
    assert hashlib.sha256(b"a graph").hexdigest() in str(explained(body_of(json.loads(path.read_text()))))
    changed = json.loads(path.read_text())
    changed["certificate"]["graph_sha256"] = hashlib.sha256(b"another graph").hexdigest()
    assert problem_of(changed, TRUSTED) is not None
    if shutil.which("node"):
        done = by_node(path, "--public-key", TRUSTED, graph)
        assert done.returncode == 0 and "is the graph at whose weights training began" in done.stdout
        assert by_node(path, "--public-key", TRUSTED, other).returncode == 1
    assert not any("graph_sha256" in json.loads(issued[kind].read_text())["certificate"] for kind in ("users", "mean"))


@needs_node
@pytest.mark.parametrize("kind", KINDS)
def test_another_language_verifies_every_kind(issued: dict[str, Path], kind: str) -> None:
    path, checkpoint = issued[kind], () if kind == "without a checkpoint" else ("--require-checkpoint",)
    done = by_node(path, "--public-key", TRUSTED, *checkpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("signed     certificate of ")


def test_there_is_a_certificate_of_each_kind(issued: dict[str, Path]) -> None:
    bodies = [json.loads(path.read_text())["certificate"] for path in issued.values()]
    seen = {each for body in bodies for each in contained(Body.model_validate(body))}
    assert {"Body", "CertifiedStudy", "Finding"} <= seen
    assert possible(Body) - seen == set(NEVER), "a new kind needs a certificate, or a reason"
    assert {body["filter"]["kind"] for body in bodies} == set(FILTERS)
    assert {body["status"] for body in bodies} == {"succeeded", "cancelled", "failed"}
    released = {each["released_by"] for body in bodies for each in body["released"]["metrics"]}
    assert released == set(get_args(ReleasedBy)) - {"public_data"}, "all scores here are of private parts"


# --- What documents can say, and what one says ---


def is_repeated(model: type[BaseModel]) -> bool:
    """True for a part of the specification, which a certificate repeats: its choices are none of the certificate's."""
    return model.__module__.startswith(("core.contracts.", "app.hpo.")) and model.__module__ != "core.contracts.base"


def alternatives(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows: classes, None and single literals."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin is Literal:
        yield from (Literal[each] for each in get_args(annotation))
    elif origin in (Union, UnionType, tuple, list, dict):
        for each in get_args(annotation):
            yield from alternatives(each)
    elif annotation is not Ellipsis:
        yield annotation


def possible(model: type[BaseModel]) -> set[str]:
    """Classes, choices and optional members that a document may have."""
    found, known, open_ = set[str](), {model}, [model]
    while open_:
        model = open_.pop()
        found.add(model.__name__)
        for name, field in () if is_repeated(model) else model.model_fields.items():
            allowed = list(alternatives(field.annotation))
            choices = [get_args(each)[0] for each in allowed if get_origin(each) is Literal]
            found |= {f"{model.__name__}.{name} = {each}" for each in choices}
            if type(None) in allowed:
                found |= {f"{model.__name__}.{name} is {said}" for said in ("there", "left out")}
            more = {each for each in allowed if isinstance(each, type) and issubclass(each, BaseModel)} - known
            known |= more
            open_ += more
    return found


def contained(document: BaseModel) -> Iterator[str]:
    """The same of one document."""
    model = type(document)
    yield model.__name__
    if is_repeated(model):
        return
    for name, field in model.model_fields.items():
        value = getattr(document, name)
        allowed = list(alternatives(field.annotation))
        if any(get_origin(each) is Literal and get_args(each)[0] == value for each in allowed):
            yield f"{model.__name__}.{name} = {value}"
        if type(None) in allowed:
            yield f"{model.__name__}.{name} is {'left out' if value is None else 'there'}"
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]:
            if isinstance(each, BaseModel):
                yield from contained(each)
