"""Private tuning of language models on Brown text. `make reproduce-language`.

    python -m benchmarks.reproduce.language [--only small | smol | cost]

Brown stands in for TinyPTB and E2E. Finished runs are kept in benchmarks/reports/reproduce/language.json.gz; delete it
to begin anew.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.memory import forget_peak, resident_mib
from benchmarks.reproduce import language_data, language_report
from benchmarks.reproduce.language_data import LENGTH, MODELS, SMALL, SMOL
from benchmarks.reproduce.runs import REPORTS, Data, Kept, best, run
from core.contracts.hf import HfModel
from core.parts import model_folder
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import unclipped_engine
from worker.metrics.scores import frequency_groups
from worker.models.hf.hf_model import HfTuning
from worker.noise.gaussian import GaussianRelease

KEPT = REPORTS / "language.json.gz"
EPSILON, DELTA = 3.0, 1e-5
STILL = {"kind": "dp_sgd", "learning_rate": 1e-12}
SMALL_SCORED, SEEDS = 400, (0, 1, 2)
SMALL_RUN = {"batch": 256, "steps": 40}
TUNED: dict[str, dict[str, Any]] = {
    "lora": {"path": SMALL, "tuning": "lora", "max_length": LENGTH, "lora": {"rank": 1}},
    "head": {"path": SMALL, "tuning": "head", "max_length": LENGTH},
}
RATES: dict[str, dict[str, tuple[float, ...]]] = {
    "lora": {"dp_sgd": (0.03, 0.1, 1.0), "dp_adam": (0.003, 0.01), "dp_adambc": (0.003, 0.01)},
    "head": {"dp_sgd": (0.1, 0.3), "dp_adam": (0.0003, 0.001), "dp_adambc": (0.0003, 0.001)},
}
SMOL_LENGTH, SMOL_SCORED = 32, 100
SMOL_RATES = (0.01, 0.03)
SMOL_TRIAL, SMOL_RUN = {"batch": 64, "steps": 10}, {"batch": 128, "steps": 30}


def job(model: dict[str, Any], optimizer: dict[str, Any], batch: int, steps: int, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"kind": "hf"} | model,
        "optimizer": optimizer,
        "privacy": {"target_epsilon": EPSILON, "target_delta": DELTA},
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": batch},
        "length": {"steps": steps},
        "evaluation": {"points": 1, "by_frequency": True},
    } | changes


def small_runs(kept: Kept) -> None:
    """What is there before; then by tuning and optimizer each rate, then the best one with other seeds."""
    language_data.small()
    of: list[Data] = []

    def score(name: str, what: dict[str, Any], seed: int = 0) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            of[:] = of or [language_data.data(SMALL, LENGTH, SMALL_SCORED)]
            return run(of[0], what, seed=seed).kept()

        return kept.get({"run": f"small, {name}", "job": what, "seed": seed}, answer)

    score("before", job(TUNED["head"], STILL, 1, 10))
    for tuning, by_optimizer in RATES.items():
        chosen = []
        for kind, rates in by_optimizer.items():
            asked = [job(TUNED[tuning], {"kind": kind, "learning_rate": rate}, **SMALL_RUN) for rate in rates]
            chosen.append(best([(each, score(tuning, each)) for each in asked], "loss", highest=False)[0])
        for seed, what in itertools.product(SEEDS[1:], chosen):
            score(tuning, what, seed)


def smol_runs(kept: Kept) -> None:
    """LoRA of rank 1 at the values of SmolLM2-135M, at ε = 3: two rates in few steps, then the better one in more."""
    language_data.smol()
    of: list[Data] = []

    def answer(what: dict[str, Any]) -> dict[str, Any]:
        of[:] = of or [language_data.data(SMOL, SMOL_LENGTH, SMOL_SCORED)]
        return run(of[0], what).kept()

    def lora(optimizer: dict[str, Any], batch: int, steps: int, **changes: Any) -> dict[str, Any]:
        asked = {"path": SMOL, "tuning": "lora", "max_length": SMOL_LENGTH}
        model = asked | {"lora": {"rank": 1, "alpha": 2.0, "targets": ["v_proj"]}}
        return job(model, optimizer, batch, steps, runtime={"physical_batch_size": 4}, **changes)

    before = lora(STILL, 1, 10)
    kept.get({"run": "smol, before", "job": before}, lambda: answer(before))
    tried = []
    for rate in SMOL_RATES:
        asked = lora({"kind": "dp_adam", "learning_rate": rate}, **SMOL_TRIAL)
        tried.append((rate, kept.get({"run": "smol, a trial", "job": asked}, lambda asked=asked: answer(asked))))
    rate, _ = best(tried, "loss", highest=False)
    asked = lora({"kind": "dp_adam", "learning_rate": rate}, **SMOL_RUN)
    kept.get({"run": "smol, lora", "job": asked}, lambda: answer(asked))


def counts(kept: Kept) -> None:
    """How many tokens of each group are scored: groups are joined by it."""
    sizes = {SMALL: (LENGTH, SMALL_SCORED), SMOL: (SMOL_LENGTH, SMOL_SCORED)}
    for path, (length, scored) in sizes.items():
        if (MODELS / path / "model.safetensors").exists():
            kept.get(
                {"counts": path, "scored": scored, "length": length},
                lambda path=path, length=length, scored=scored: _counts(path, length, scored),
            )


def _counts(path: str, length: int, scored: int) -> dict[str, Any]:
    spec = HfModel(path=path, max_length=length)
    model, of = HfTuning(model_folder.read(MODELS, path), spec, ()), language_data.data(path, length, scored)
    groups = frequency_groups(model.predicted(of.train)[0], model.vocabulary)
    ids = model.predicted(of.holdout)[0]
    return {name: int(torch.isin(ids, torch.tensor(places)).sum()) for name, places in groups.items()}


def costs(kept: Kept) -> None:
    """A step's processor time and memory, private and not, one after the other."""
    language_data.smol()
    for rank, targets, length in ((1, ["v_proj"], 32), (8, ["q_proj", "v_proj"], 32), (8, ["q_proj", "v_proj"], 64)):
        lora = {"rank": rank, "targets": targets}
        asked = {"path": SMOL, "tuning": "lora", "max_length": length, "lora": lora}
        kept.get({"cost": "smol", "lora": lora, "length": length}, lambda asked=asked: _cost(asked))


def _cost(asked: dict[str, Any], rows: int = 4, rounds: int = 5) -> dict[str, Any]:
    """Of `rows` records: seconds of each round, and by how many MiB a pass exceeds what is held before it."""
    spec = HfModel.model_validate(asked)
    model = HfTuning(model_folder.read(MODELS, spec.path), spec, (), rows_per_pass=rows)
    batch = language_data.few(spec.path, spec.max_length, rows)
    parameters = model.init(bytes(range(32)))
    private = Bookkeeping(model.module(), model.record_losses, rows=rows, kind="flat", max_grad_norm=1.0)
    plain = unclipped_engine(model)
    release = GaussianRelease(bytes(range(32)), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=rows)
    total, steps = plain.private_sum(parameters, batch), itertools.count(1)
    parts: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain.private_sum(parameters, batch),
        "private": lambda: private.private_sum(parameters, batch),
        "noise": lambda: release.release(total, next(steps), 0, 1.0),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    peaks: dict[str, list[float]] = {name: [] for name in parts}
    for round_ in range(rounds + 1):
        for name, part in parts.items():
            ctypes.CDLL(None).malloc_trim(0)  # what is free goes back: a pass has to ask for all that it needs
            forget_peak()
            held, began = resident_mib("VmRSS"), time.process_time()
            part()
            if round_:  # the first one touches its memory for the first time
                times[name].append(time.process_time() - began)
                peaks[name].append(resident_mib("VmHWM") - held)
    trained = sum(value.numel() for value in parameters.values())
    return {"rows": rows, "trained": trained, "seconds": times, "mib": peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"cost": costs, "smol": smol_runs, "small": small_runs}
    parser.add_argument("--only", choices=list(parts))
    only = parser.parse_args().only
    torch.set_num_threads(1)
    kept = Kept(KEPT)
    for name, part in parts.items():
        if only in (None, name):
            part(kept)
            counts(kept)
            language_report.write(kept.entries)


if __name__ == "__main__":
    main()
