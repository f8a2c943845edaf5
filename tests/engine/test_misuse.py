"""What people get silently wrong: each is an error that says so, or right by construction."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scrimp import engine
from scrimp.engine.draws import Draws
from scrimp.engine.model import Sums, tried
from tests.engine.models import CROSS, Centred, Token, drawn, flat, mlp
from worker.data.secret_slots import Slotted
from worker.models.dropout import Dropout

DATA = drawn(60, 10)


def private(model: nn.Module, loss: Any = CROSS, **how: Any) -> engine.Private:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    settings = engine.LoopSettings(**how)
    return engine.make_private(model, loss, optimizer, sample_rate=0.2, noise_multiplier=1.0, settings=settings)


def weights(model: nn.Module) -> Tensor:
    return flat(dict(model.named_parameters()))


class Block(nn.Module):
    """Runs a function of itself and its input; `parts` are its layers."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


class Running(nn.Module):
    """Keeps a running mean of what passes through, and uses it nowhere: it would leave with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def two() -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(10, 10), nn.Linear(10, 3)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (
        lambda: nn.Sequential(two()[0], nn.BatchNorm1d(10), two()[1]),
        r"1 \(BatchNorm1d\): it mixes records",
    ),
    "sync batch norm": (lambda: nn.Sequential(nn.SyncBatchNorm(10), two()[1]), r"0 \(SyncBatchNorm\)"),
    "a mean over the batch": (lambda: nn.Sequential(two()[0], Centred(), two()[1]), "depends on other records"),
    "a running mean": (lambda: nn.Sequential(Running(), two()[1]), "0.mean: this buffer changes"),
    "torch's recurrent layers": (lambda: Block(lambda m, x: m.cell(x)[0], cell=nn.LSTM(10, 3)), r"cell \(LSTM\)"),
    "torch's attention": (
        lambda: Block(lambda m, x: m.out(m.a(x, x, x)[0]), a=nn.MultiheadAttention(10, 2), out=two()[1]),
        r"a \(MultiheadAttention\)",
    ),
    "a weight by hand": (
        lambda: Block(lambda m, x: m.out(x @ m.one.weight + m.one(x)), one=two()[0], out=two()[1]),
        "is not autograd's",
    ),
    "masks of its own": (
        lambda: Block(lambda m, x: m.out(F.dropout(m.one(x), 0.5)), one=two()[0], out=two()[1]),
        "draws random numbers by itself",
    ),
    "masks of channels": (lambda: nn.Sequential(two()[0], nn.AlphaDropout(0.5), two()[1]), r"1 \(AlphaDropout\)"),
    "weight norm": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(two()[0]), two()[1]), "parametrized"),
    "bags": (lambda: Block(lambda m, x: m.bag((x > 0).long()), bag=nn.EmbeddingBag(11, 3)), r"bag \(EmbeddingBag\)"),
    "renormalized embeddings": (
        lambda: Block(lambda m, x: m.e((x > 0).long()).sum(1), e=nn.Embedding(11, 3, max_norm=1.0)),
        "max_norm",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_mixes_or_has_no_exact_gradient_is_refused_by_name(name: str) -> None:
    make, said = REFUSED[name]
    model = make()
    before, (_, step) = weights(model), private(model)
    with pytest.raises(engine.PrivacyError, match=said):
        step(DATA)
    assert torch.equal(weights(model), before) and step.steps == 0


def test_batch_norm_with_frozen_statistics_is_exact() -> None:
    """A common way to fine-tune: its statistics are public, and its scale and shift are trained."""
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, 3))
    model[1].eval()
    statistics = copy.deepcopy(dict(model[1].named_buffers()))
    _, step = private(model)
    step(DATA)
    assert step.report(1e-5).formed == ("1 (BatchNorm1d)",)
    assert all(torch.equal(each, statistics[name]) for name, each in model[1].named_buffers())


def test_a_layer_of_one_s_own_needs_nothing() -> None:
    model = nn.Sequential(nn.Unflatten(1, (2, 5)), Token(5), nn.Flatten(), nn.Linear(15, 3))
    _, step = private(model)
    step(DATA)
    assert step.report(1e-5).formed == ("1 (Token)",)


def test_what_may_not_share_a_pass_has_passes_of_its_own() -> None:
    """A path that is chosen by numbers: exact, a record at a time, and the report says why."""

    def chosen(m: Any, x: Tensor) -> Tensor:
        return m.one(x) if bool((x.sum() > 0).item()) else m.one(-x)  # type: ignore[no-any-return]

    model = Block(chosen, one=nn.Linear(10, 3))
    with pytest.raises(engine.UnfitLayerError, match="depends on other records"):  # a sum over all rows, in a pass of 3
        tried(model, CROSS, (DATA[0][:1], DATA[1][:1]), Sums(16, engine.LoopSettings()))
    sorted_by = Block(lambda m, x: m.one(x.topk(10, dim=1).values), one=nn.Linear(10, 3))
    found = tried(sorted_by, CROSS, (DATA[0][:1], DATA[1][:1]), Sums(16, engine.LoopSettings()))
    assert found.rows_per_pass == 1 and any(each.startswith("topk") for each in found.unlisted)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.CrossEntropyLoss(), "reduction='none'"),
        (F.cross_entropy, "no number for each record"),
        (lambda output, target: output, "no number for each record"),
    ],
)
def test_a_loss_that_adds_records_up_is_refused(loss: Any, said: str) -> None:
    _, step = private(mlp(), loss)
    with pytest.raises(engine.MisusedError, match=said):
        step(DATA)


def test_a_step_needs_the_whole_data_each_time() -> None:
    _, step = private(mlp())
    with pytest.raises(TypeError):
        step()  # type: ignore[call-arg]
    step(DATA)
    with pytest.raises(engine.MisusedError, match="takes all of the data"):
        step(tuple(each[:32] for each in DATA))
    with pytest.raises(engine.MisusedError, match="DataLoader"):
        step(DataLoader(TensorDataset(*DATA), 10))
    assert step.steps == 1


def test_more_data_than_declared_is_refused() -> None:
    _, step = private(mlp(), records=3)
    many = drawn(200, 10)
    with pytest.raises(engine.MisusedError, match="more records than places"):
        step(many)


def test_a_data_set_of_items_gives_the_same_as_tensors() -> None:
    class Items(Dataset[Any]):
        def __len__(self) -> int:
            return len(DATA[0])

        def __getitem__(self, at: int) -> tuple[Tensor, int]:
            return DATA[0][at], int(DATA[1][at])

    model = mlp().double()
    found, wanted = (
        flat(engine.clipped_sum(model, CROSS, each, max_grad_norm=0.3, rows=64).values)
        for each in (Items(), TensorDataset(*DATA))
    )
    assert torch.allclose(found, wanted, rtol=0, atol=1e-10)  # their rows differ, and with them the last bits


def test_a_batch_of_any_size_is_one_step() -> None:
    """Gradient accumulation is what a step does by itself: the size of passes changes the sum by rounding alone."""
    model = mlp().double()
    data = DATA[0].double(), DATA[1]
    one, many = (
        flat(engine.clipped_sum(model, CROSS, data, max_grad_norm=0.3, rows=64, physical_batch_size=size).values)
        for size in (2, 64)
    )
    assert torch.allclose(one, many, rtol=0, atol=1e-10)


def test_the_optimizer_moves_within_a_step_alone() -> None:
    model = mlp()
    optimizer, step = private(model)
    step(DATA)
    CROSS(model(DATA[0]), DATA[1]).mean().backward()
    before = weights(model)
    with pytest.raises(engine.MisusedError, match="within step"):
        optimizer.step()
    with pytest.raises(engine.MisusedError, match="gradient of another loss"):
        step(DATA)
    assert torch.equal(weights(model), before) and step.steps == 1
    optimizer.zero_grad()
    step(DATA)
    assert step.steps == 2 and all(each.grad is None for each in model.parameters())


def test_evaluation_between_steps_changes_nothing() -> None:
    """The engine's copy keeps the mode in which training began."""
    moved = []
    for switch in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 3), nn.Dropout(0.5))
        _, step = private(model)
        step(DATA)
        if switch:
            model.eval()
        assert step._ready is not None and any(isinstance(each, Dropout) for each in step._ready.tried.module.modules())
        assert all(each.training for each in step._ready.tried.module.modules())
        step(DATA)
        moved.append(step.steps)
    assert moved == [2, 2]


def test_a_model_in_evaluation_mode_is_refused() -> None:
    _, step = private(mlp().eval())
    with pytest.raises(engine.MisusedError, match=r"model.train\(\)"):
        step(DATA)


def test_a_second_engine_on_the_same_parameters_is_refused_while_the_first_lives() -> None:
    model = mlp()
    held = private(model)
    with pytest.raises(engine.MisusedError, match="has an engine already"):
        private(model)
    with pytest.raises(engine.MisusedError, match="has an engine already"):
        engine.train(model, CROSS, DATA, target_epsilon=1.0, delta=1e-5, steps=1)
    del held
    private(model)


def test_a_model_that_changed_is_refused() -> None:
    def added(model: Any) -> None:
        model.append(nn.Linear(3, 3))

    def frozen(model: Any) -> None:
        model[0].weight.requires_grad_(False)

    def wider(model: Any) -> None:
        model[0] = nn.Linear(10, 24, bias=False)

    def patched(model: Any) -> None:
        model[0].forward = lambda x: x

    for change in (added, frozen, wider, patched):
        model = mlp()
        _, step = private(model)
        step(DATA)
        change(model)
        with pytest.raises(engine.MisusedError, match="changed after make_private"):
            step(DATA)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, other = mlp(), nn.Linear(3, 3)
    how: Any = {"sample_rate": 0.1, "noise_multiplier": 1.0}
    with pytest.raises(engine.MisusedError, match="not the model's"):
        engine.make_private(model, CROSS, torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1), **how)
    with pytest.raises(engine.MisusedError, match=r"does not move 0\.bias"):
        engine.make_private(model, CROSS, torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], 0.1), **how)
    with pytest.raises(engine.MisusedError, match="LBFGS"):
        engine.make_private(model, CROSS, torch.optim.LBFGS(model.parameters()), **how)
    optimizer, step = private(model)
    optimizer.add_param_group({"params": list(other.parameters())})
    with pytest.raises(engine.MisusedError, match="not the model's"):
        step(DATA)


def test_what_moves_a_schedule_moves_the_step() -> None:
    model = mlp()
    optimizer, step = private(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    step(DATA)
    schedule.step()
    before = weights(model)
    step(DATA)
    assert torch.equal(weights(model), before)  # at a rate of 0


def test_dropout_is_keyed_by_row_and_call_and_by_no_seed_of_torch() -> None:
    """One layer in two places draws two masks; and what a user seeds changes none of them."""
    drop = nn.Dropout(0.5)
    model = Block(lambda m, x: m.out(m.drop(m.drop(x))), drop=drop, out=nn.Linear(10, 3))
    found = tried(model, CROSS, (DATA[0][:1], DATA[1][:1]), Sums(64, engine.LoopSettings()))
    (masks,) = found.masks
    masks.begin(bytes(range(32)), 1)
    ones = torch.ones(16, 10)
    torch.manual_seed(1)
    first, second = masks.next(0, ones), masks.next(0, ones)
    masks.begin(bytes(range(32)), 1)
    torch.manual_seed(2)
    assert torch.equal(masks.next(0, ones), first) and not torch.equal(first, second)
    assert len({tuple(row) for row in first.tolist()}) > 12  # each record has its own
    assert type(model.drop) is nn.Dropout  # the user's model is as it was


def test_parameters_beside_dropout_are_refused() -> None:
    """The forward would run again for them, under other masks."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.drop, self.out = nn.Parameter(torch.zeros(10)), nn.Dropout(0.5), nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.drop(x + self.shift))  # type: ignore[no-any-return]

    _, step = private(Both())
    with pytest.raises(engine.UnfitLayerError, match="parameters of its own and dropout"):
        step(DATA)


def test_a_step_returns_nothing_and_what_is_not_finite_adds_nothing() -> None:
    broken = DATA[0].clone()
    broken[5] = torch.inf
    _, step = private(mlp())
    assert step((broken, DATA[1])) is None
    total = engine.clipped_sum(mlp(), CROSS, (broken[5:6], DATA[1][5:6]), max_grad_norm=1.0, rows=4)
    assert all(not each.any() for each in total.values.values())


def test_a_sum_s_arithmetic_follows_from_its_rows_and_its_release_pays_for_rounding() -> None:
    few, many = (
        engine.clipped_sum(mlp(), CROSS, (DATA[0][:count], DATA[1][:count]), max_grad_norm=0.3, rows=64)
        for count in (3, 60)
    )
    assert few.slack == many.slack > 1.0
    assert "tensor" not in repr(few)  # a log or a notebook shows no private number
    with pytest.raises(engine.MisusedError, match="more records than rows"):
        engine.clipped_sum(mlp(), CROSS, DATA, max_grad_norm=0.3, rows=59)


def test_records_get_rows_that_no_caller_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the file, a record less would move all others to other places of a kernel."""
    seen = []
    injected = Slotted.injected.__func__  # type: ignore[attr-defined]

    def watched(cls: Any, *args: Any) -> Slotted[Any]:
        made: Slotted[Any] = injected(cls, *args)
        seen.append(tuple(made.occupants[:]))
        return made

    monkeypatch.setattr(Slotted, "injected", classmethod(watched))
    for _ in range(2):
        engine.clipped_sum(mlp(), CROSS, DATA, max_grad_norm=0.3, rows=64)
    assert len(set(seen)) == 2 and {len(each) for each in seen} == {64}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_step_cannot_be_copied(copied: Callable[[Any], Any]) -> None:
    """A copy would have the same keys: the same noise, on another sum. Their difference would have none."""
    _, step = private(mlp())
    with pytest.raises(engine.MisusedError, match="would draw the same noise"):
        copied(step)


def test_a_fork_takes_no_step() -> None:
    _, step = private(mlp())
    step(DATA)
    child = os.fork()
    if child == 0:
        try:
            step(DATA)
        except engine.MisusedError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_threads_take_one_step_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has noise of its own: a number of a step is drawn for once."""
    taken: list[int] = []
    _, step = private(mlp())
    step(DATA)
    rows = Draws.rows

    def slow(self: Draws, number: int, records: Any) -> Any:
        taken.append(number)
        threading.Event().wait(0.05)  # lets another thread come between, if one can
        return rows(self, number, records)

    monkeypatch.setattr(Draws, "rows", slow)
    threads = [threading.Thread(target=step, args=(DATA,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [2, 3, 4, 5] and step.steps == 5
