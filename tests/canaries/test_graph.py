"""The kind `gcn`: nodes that others read, in attempts of this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from core.contracts.dataset_spec import DatasetSpec, NodeColumns
from core.contracts.neighbourhoods import Tree
from core.parts import nodes
from core.privacy import events
from core.privacy.slot_numbers import default_slots
from scrimp.audit.audit_statistics import Finding, examine, quantile_thresholds
from scrimp.audit.audited_kinds import KINDS
from scrimp.audit.claimed_curve import claim_of
from scrimp.audit.planting import plant
from scrimp.audit.run import SPREAD, job_spec
from tests.e2e.faulty_attempt import a_reader_too_many
from tests.formats.files import parsed
from tests.worker.support import Supervisor, keys_of, run_direct, start_of
from worker.data.records import DenseRecords

KIND = next(kind for kind in KINDS if kind.name == "gcn")
LEVEL, CANARIES = 1e-4, 600


def audited(folder: Path) -> Finding:
    """The audit of one attempt, on a file that the service's own code read."""
    planted = plant(KIND, "graph", CANARIES, folder, np.random.default_rng(5))
    spec = DatasetSpec.model_validate(planted.spec)
    assert isinstance(spec.features, NodeColumns)
    found, parts = parsed(folder, planted.spec, planted.file)
    assert found["warnings"] == []
    columns, tree = len(spec.features.columns), Tree(hops=1, neighbours=1)
    part, records = parts["train"], planted.spec["privacy"]["records"]
    x = nodes.read(np.asarray(part.x), columns, spec.features.keep, tree)
    places = default_slots(records)
    shape = {
        "records_train": records,
        "records_holdout": 0,
        "slots": {"train": {"units": places, "rows": places}},
        "features": x.shape[1],
        "outputs": 1,
        "sparse": False,
    }
    start = start_of(job_spec(KIND, "ds_1", records), shape)
    segment = {"from_step": 1, **keys_of("graph"), "recorded": []}
    read = DenseRecords(torch.from_numpy(x), torch.from_numpy(part.y))
    outcome, _ = run_direct(Supervisor(start, [segment]), read, None)
    assert outcome.steps == KIND.steps
    values = outcome.parameters[KIND.released].double().numpy().ravel()
    event = events.noisy_sums(1.0, KIND.noise_multiplier, KIND.steps).model_dump(mode="json")
    claim = claim_of(event, 20.0, 1e-5)
    thresholds = quantile_thresholds(values[planted.decoys], claim.mu, SPREAD)
    scores = values[planted.places]
    return examine(scores[planted.inside], scores[~planted.inside], thresholds, claim, LEVEL)


def test_a_node_reveals_no_more_than_is_charged_and_not_much_less(tmp_path: Path) -> None:
    finding = audited(tmp_path)
    assert finding.stands and 0.3 < finding.lower_mu < 2.0


def test_a_reader_too_many_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "children", nodes.children)  # as it was, at the end
    a_reader_too_many()
    finding = audited(tmp_path)
    assert not finding.stands and finding.lower_mu > 2.0
