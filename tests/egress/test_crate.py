"""The RO-Crate of an egress against docs/five-safes.ttl, read by pyshacl; planted faults are found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyshacl
import pytest
from rdflib import Graph

from tests.egress.conftest import World
from tests.egress.test_two_persons import Persons

SHAPES = Path(__file__).parents[2] / "docs" / "five-safes.ttl"
# What the crate uses of the context of RO-Crate 1.1, which lies on the network: these are terms of schema.org there.
OF_SCHEMA = [
    "about",
    "actionStatus",
    "additionalType",
    "agent",
    "author",
    "contentSize",
    "description",
    "datePublished",
    "encodingFormat",
    "endTime",
    "funder",
    "hasPart",
    "identifier",
    "instrument",
    "license",
    "mainEntity",
    "memberOf",
    "mentions",
    "name",
    "object",
    "provider",
    "publisher",
    "result",
    "sourceOrganization",
    "spatialCoverage",
    "temporalCoverage",
    "usageInfo",
    "version",
    "AssessAction",
    "CreateAction",
    "CreativeWork",
    "Dataset",
    "Organization",
    "Person",
    "Project",
    "SoftwareApplication",
]
CONTEXT = {term: f"http://schema.org/{term}" for term in OF_SCHEMA} | {
    "File": "http://schema.org/MediaObject",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
}
Crate = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:rdflib", "ignore::DeprecationWarning:pyshacl")


def faults_of(crate: Crate) -> str:
    """What pyshacl says of a crate; "" if it conforms."""
    read = crate | {"@context": [CONTEXT, *crate["@context"][1:]]}
    graph = Graph().parse(data=json.dumps(read), format="json-ld", publicID="https://example.org/crate/")
    conforms, _, text = pyshacl.validate(graph, shacl_graph=str(SHAPES), advanced=True)
    return "" if conforms else str(text)


def entity(crate: Crate, name: str) -> dict[str, Any]:
    (found,) = [each for each in crate["@graph"] if each["@id"] == name]
    return found  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def crate(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Crate:
    folder = shared.made(shared.first, tmp_path_factory.mktemp("crate"))
    found: Crate = json.loads((folder / "ro-crate-metadata.json").read_text())
    return found


def test_a_crate_conforms(crate: Crate) -> None:
    assert faults_of(crate) == ""
    base, own = crate["@context"]
    assert base == "https://w3id.org/ro/crate/1.1/context"
    used = {term for each in crate["@graph"] for term in (*each, *([] if "@type" not in each else [each["@type"]]))}
    assert used - CONTEXT.keys() - own.keys() == {"@id", "@type"}, "every term is one that the context has"


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("ro-crate-metadata.json", "conformsTo"),
        ("./", "conformsTo"),
        ("./", "datePublished"),
        ("./", "license"),
        ("./", "hasPart"),
        ("./", "sourceOrganization"),
        ("./", "mainEntity"),
        ("#project", "identifier"),
        ("#job", "version"),
        ("#run", "agent"),
        ("#run", "object"),
        ("#run", "endTime"),
        ("#run", "actionStatus"),
        ("#accounting", "additionalType"),
        ("#accounting", "agent"),
        ("certificate.json", "encodingFormat"),
    ],
)
def test_what_is_missing_is_found(crate: Crate, name: str, member: str) -> None:
    forged = copy.deepcopy(crate)
    del entity(forged, name)[member]
    assert faults_of(forged) != ""


def _data_leaves(crate: Crate) -> None:
    entity(crate, "./")["hasPart"].append(entity(crate, "#run")["object"])


def _unchecked(crate: Crate) -> None:
    entity(crate, "./")["mentions"] = [{"@id": "#run"}, {"@id": "#job"}]


def _hidden(crate: Crate) -> None:
    crate["@graph"].append({"@id": "more.csv", "@type": "File", "name": "more.csv", "encodingFormat": "text/csv"})


def _open(crate: Crate) -> None:
    entity(crate, "#accounting")["actionStatus"] = "http://schema.org/PotentialActionStatus"


def _by_nobody(crate: Crate) -> None:
    entity(crate, "#run")["agent"] = {"@id": "#job"}


@pytest.mark.parametrize("fault", [_data_leaves, _unchecked, _hidden, _open, _by_nobody])
def test_what_is_not_safe_is_found(crate: Crate, fault: Callable[[Crate], None]) -> None:
    forged = copy.deepcopy(crate)
    fault(forged)
    assert faults_of(forged) != ""


def test_two_persons_sign_off(settings: Any, tmp_path: Path) -> None:
    world = Persons(settings)
    try:
        world.name_both()
        asked = world.ask(world.first).json()
        assert world.agree(asked["approval"], world.ben).status_code == 200
        world.let_out()
        text = (world.fetch(world.first, tmp_path) / "ro-crate-metadata.json").read_text()
    finally:
        world.close()
    crate: Crate = json.loads(text)
    assert faults_of(crate) == ""
    signed = [each for each in crate["@graph"] if each.get("additionalType") == {"@id": "https://w3id.org/shp#SignOff"}]
    assert len(signed) == 2
    for member in ("agent", "instrument"):
        forged = copy.deepcopy(crate)
        entity(forged, signed[0]["@id"])[member] = {"@id": "#job"}
        assert faults_of(forged) != "", member
