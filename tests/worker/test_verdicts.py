"""Verdicts of self-tests: what names them, who may vouch, and when."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from core.contracts.devices import Device
from tests.worker.support import Supervisor, dense, run_child, run_thread, spec, start_of, stored_part
from tests.worker.test_preconditioned import dp2
from tests.worker.test_self_test import MLP, SHAPE
from worker.attempt import verdicts
from worker.attempt.policy import policy_of
from worker.attempt.verdicts import FILE, Hearing, Verdicts, key_of
from worker.messages import Alive, Failed, Finished, Part, ProtocolError, Ready, Start, Verdict
from worker.training import self_test

PASSED = Verdict(self_test="passed")
GPU = Device(kind="cuda", index=0, name="A", memory_bytes=2**30)


def start(**changes: Any) -> dict[str, Any]:
    return start_of(spec(model=MLP, **changes), SHAPE)


def stored(folder: Path) -> dict[str, Any]:
    x, y = dense(100, 5, 3)
    sides = {"train": slice(80), "holdout": slice(80, 100)}
    return {name: stored_part(folder / f"{name}.npz", x[side], y[side]) for name, side in sides.items()}


def message(made: dict[str, Any]) -> Start:
    return Supervisor(made).message()


def test_what_a_self_test_depends_on_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rate or number of steps is the same test, and so are other data of this shape."""

    def key(made: dict[str, Any], device: Device | None = None) -> str:
        return key_of(message(made), device)

    first = key(start())
    assert key(start(optimizer={"kind": "dp_sgd", "learning_rate": 0.7})) == first == key(start() | {"job_id": "job_2"})
    other_data = start(dataset="ds_2") | {"task": {"kind": "classification", "label": "z", "classes": ["a", "b", "c"]}}
    assert key(other_data) == first == key(start() | {"shape": SHAPE | {"records_holdout": 7}}, GPU)
    others = [
        key(start_of(spec(model={"kind": "mlp", "hidden": [16]}), SHAPE)),
        key(start_of(spec(model=MLP), SHAPE | {"features": 6})),
        key(start_of(spec(model=MLP), SHAPE | {"records_train": 81})),
        key(start(runtime={"dtype": "float64"})),
        key(start(clipping={"engine": "opacus"})),
        key(start(clipping={"kind": "per_layer"})),
        key(start(optimizer=dp2("dp2_rmsprop"))),
        key(start() | {"device": "cuda"}, GPU),
        key(start() | {"device": "cuda"}, GPU.model_copy(update={"driver": "550"})),
        key(start() | {"fitted_rows": 48}),
        key(start() | {"threads": 3}),
        key(start(runtime={"threads": 3})),
    ]
    for fact in ("_machine", "code", "libraries"):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(verdicts, fact, lambda *_packages, fact=fact: f"another {fact}")
            others.append(key(start()))
    assert first not in others and len(set(others)) == len(others)


def test_verdicts_are_kept_for_good_and_by_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for _ in range(2):
        Verdicts(path).note("a" * 64)
    path.write_text(path.read_text() + "b" * 30)  # torn by a crash
    Verdicts(path).note("c" * 64)
    Verdicts(path).note("c" * 64)
    kept = Verdicts(path)
    assert kept.has("a" * 64) and not kept.has("b" * 30) and kept.has("c" * 64)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text().count("a" * 64) == 1


def test_a_verdict_that_cannot_be_kept_harms_nobody(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path / "gone" / FILE)
    kept.note("a" * 64)
    assert not kept.has("a" * 64)


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_BYTES", 3 * 65)
    kept = Verdicts(tmp_path / FILE)
    for number in range(9):
        kept.note(f"{number:064d}")
        assert kept.has(f"{number:064d}") and (tmp_path / FILE).stat().st_size <= 4 * 65


def hearing(tmp_path: Path, made: Start) -> Hearing:
    return Hearing(Verdicts(tmp_path / FILE), made, None)


def test_the_first_message_alone_can_vouch(tmp_path: Path) -> None:
    """A process sends it before it opens a part, so none that a part's content took over can."""
    made = message(start())
    for before in (Alive(), Verdict(self_test="one_record"), Verdict(self_test="public_data")):
        late = hearing(tmp_path, made)
        late.hear(before)
        with pytest.raises(ProtocolError, match="first"):
            late.hear(PASSED)
        assert not late.known
    assert hearing(tmp_path, made).hear(PASSED) and hearing(tmp_path, made).known
    again = hearing(tmp_path, made)
    again.hear(PASSED)
    with pytest.raises(ProtocolError):
        again.hear(PASSED)


def test_a_verdict_is_of_the_passes_that_fitted(tmp_path: Path) -> None:
    made = message(start())
    hearing(tmp_path, made).hear(Verdict(self_test="passed", fitted_rows=48))
    assert not hearing(tmp_path, made).known
    assert hearing(tmp_path, made.model_copy(update={"fitted_rows": 48})).known


def test_an_attempt_that_read_a_mean_does_not_vouch(tmp_path: Path) -> None:
    """Its file comes from a process that read private data."""
    made = message(start()).model_copy(update={"mean": Part(path="/nowhere", sha256="0" * 64)})
    assert hearing(tmp_path, made).hear(PASSED) and not hearing(tmp_path, made).known


@pytest.mark.parametrize("public", [False, True])
def test_an_attempt_says_its_verdict_before_it_opens_a_part(tmp_path: Path, public: bool) -> None:
    """Its parts are not there yet: they come while it waits for the answer, and none of them would be found before."""
    away, there = tmp_path / "away", tmp_path / "there"
    away.mkdir()

    class Late(Supervisor):
        def answer(self, said: Any) -> Any:
            if isinstance(said, Verdict):
                assert self.seen == [] and not there.exists()
                away.rename(there)
            return super().answer(said)

    parts = {name: part | {"path": str(there / f"{name}.npz")} for name, part in stored(away).items()}
    job = spec(model=MLP, **({"privacy": None, "evaluation": None} if public else {}))
    supervisor = Late(start_of(job, SHAPE, parts=parts, output_dir=tmp_path, public=public))
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished)
    (said,) = supervisor.of(Verdict)
    assert said.self_test == ("public_data" if public else "passed") and supervisor.seen[0] == said


def test_where_the_test_does_not_pass_the_verdict_comes_first_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "holds", lambda plan: plan.numerics.rows_per_pass == 1)
    supervisor = Supervisor(start())
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged", "there is no part"
    assert supervisor.of(Verdict) == [Verdict(self_test="one_record")] and not supervisor.of(Ready)


def test_the_sandbox_of_an_attempt_has_no_way_to_the_file(tmp_path: Path) -> None:
    policy = policy_of(message(start() | {"output_dir": str(tmp_path / "storage" / "out")}), 2**30)
    roots = [*policy.files.readable, *policy.files.writable]
    assert not any((tmp_path / FILE).is_relative_to(root) for root in roots)


def test_a_process_tests_once(tmp_path: Path) -> None:
    """And its verdict is that of the next one, too."""
    made = start_of(spec(model=MLP), SHAPE, parts=stored(tmp_path), output_dir=tmp_path)
    told = [hearing(tmp_path, message(made)) for _ in range(2)]
    supervisor = Supervisor(made)
    assert isinstance(run_child(supervisor).last, Finished) and supervisor.seen[0] == PASSED
    assert not told[0].known and told[0].hear(supervisor.seen[0]) and told[1].known
