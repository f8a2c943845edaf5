"""A run that ends without a word is resumed; what it began stays charged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from scrimp import engine
from scrimp.engine import checkpoint, training
from tests.engine.models import CROSS, drawn, flat, mlp

DATA = drawn(60, 10)


class StoppedError(Exception):
    """The machine went away."""


def run(path: Path, steps: int = 40, rate: float = 0.05) -> engine.Result:
    asked = engine.Settings(
        optimizer=engine.DpAdam(learning_rate=rate), batch_size=20, checkpoint=path, progress=None, records=60
    )
    torch.manual_seed(0)
    return engine.train(mlp(), CROSS, DATA, target_epsilon=2.0, delta=1e-5, steps=steps, settings=asked)


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the process' run within a block."""
    calls = iter(range(1, 1000))
    take = training.take

    def stopping(*args: object) -> object:
        if next(calls) == step:
            raise StoppedError
        return take(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "take", stopping)


def test_a_resumed_run_pays_for_what_it_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.npz"
    with monkeypatch.context() as patch:
        stop_at(12, patch)  # blocks have two steps: 10 updates are saved, and two more were begun
        with pytest.raises(StoppedError):
            run(path)
    taken = []
    take = training.take
    monkeypatch.setattr(training, "take", lambda *args: taken.append(args[0]) or take(*args))
    report = run(path).report
    assert (report.steps, report.lost_steps) == (40, 2) and taken == list(range(11, 39))
    assert report.epsilon.value <= 2.0
    again = run(path)  # a finished run takes no step
    assert again.report == report and len(taken) == 28


def test_a_state_resumes_to_the_bit(tmp_path: Path) -> None:
    """What is written is the state: parameters and moments, and the finished model of the file is the returned one."""
    path = tmp_path / "run.npz"
    first = run(path)
    second = run(path)
    values = [flat(dict(each.model.named_parameters())) for each in (first, second)]
    assert torch.equal(*values)


def test_no_key_and_no_record_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    derive = training.Keys.of
    monkeypatch.setattr(training.Keys, "of", lambda self, purpose: keys.append(derive(self, purpose)) or keys[-1])
    path = tmp_path / "run.npz"
    run(path)
    kept = path.read_bytes()
    assert keys and not any(key in kept or key.hex().encode() in kept for key in keys)
    with np.load(path, allow_pickle=False) as arrays:
        names = {name.split("/")[0] for name in arrays.files}
        assert names == {"plan", "at", "parameters", "state"}
        assert json.loads(str(arrays["at"])) == {"started": 40, "step": 40}


def test_another_run_s_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    run(path)
    with pytest.raises(engine.MisusedError, match="of a run with another"):
        run(path, steps=41)
    with pytest.raises(engine.MisusedError, match="of a run with another"):
        run(path, rate=0.06)


def test_a_write_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.npz"
    run(path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(path, "plan", checkpoint.Saved(0, 0, {}, {}))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_bar_counts_steps(tmp_path: Path) -> None:
    import io

    out = io.StringIO()
    asked = engine.Settings(batch_size="all", progress=out)
    engine.train(mlp(), CROSS, DATA, target_epsilon=2.0, delta=1e-5, steps=3, settings=asked)
    assert out.getvalue().endswith("step 3 of 3\n") and out.getvalue().count("\r") == 3
