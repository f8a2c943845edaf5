"""The recipe for a GPU is a valid job, for images with their channels first or last."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.reproduce.wide_residual import BATCH, STEPS, _data, job
from core.contracts.job_spec import CnnModel, JobSpec


@pytest.mark.parametrize("last", [False, True])
def test_the_recipe_is_a_job(last: bool) -> None:
    shape = (4, 6, 5, 3) if last else (4, 3, 6, 5)
    x, y = np.zeros(shape, dtype=np.uint8), np.zeros((4, 1), dtype=np.uint8)
    data, image, found = _data(x, y, x, y)
    assert found == last and image == {"height": 6, "width": 5, "channels": 3}
    asked = JobSpec.model_validate(job(8.0, STEPS, BATCH, image, last=found, views=16) | {"dataset": "ds_x"})
    assert isinstance(asked.model, CnnModel) and asked.model.size.numbers == data.features_count == 90
    assert asked.views == 16 and asked.augmentation is not None
    assert [each.kind for each in asked.augmentation.transforms] == ["crop", "flip"]
