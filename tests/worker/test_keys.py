"""Every key of an attempt: it is of the job's secret and of its purpose, and nothing public moves what it draws.

PLACES lists every place that draws from a key. A place that is missing there fails, as does one that draws from another
key than the list says: a constant one, another purpose's, a later segment's.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from app.secrets import at_epoch
from core.contracts.stored_documents import SaltedSteps
from core.parts.stored_records import StoredPart
from tests.worker.support import ROOT, Supervisor, dense, keys_of, run_thread, spec, start_of
from tests.worker.test_adaptive import adaptive_start
from tests.worker.test_center import start as centred_start
from tests.worker.test_joined import attempt
from tests.worker.test_planted import start_for
from worker.attempt import start as real
from worker.attempt.start import NoiseSecrets
from worker.messages import Finished
from worker.noise.attempt_keys import Purpose, public_key_of_seed
from worker.noise.generator import KeyedStream
from worker.training.plan import Plan
from worker.training.self_test import PUBLIC_KEY

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
SALT = "s0"
# Who draws, and from which keys. "public": a key that everyone knows, for what must reveal nothing of private records'
# masks, views and draws.
PLACES: dict[str, set[str]] = {
    "worker/metrics/scores.py _noised": {"release"},
    "worker/models/dropout.py Masks.begin": {"dropout", "public dropout"},  # public: of canaries and public records
    "worker/models/hf/hf_model.py HfTuning.init": {"init"},
    "worker/models/initial.py keyed_normals": {"init", "self-test"},
    "worker/models/matrix_factorization.py MatrixFactorization.init": {"init", "self-test"},
    "worker/models/views.py Views._kept": {"views", "public views"},
    "worker/models/views.py Views._random": {"views", "public views"},  # public: of canaries, and in the self-test
    "worker/statistics/base.py Noise.add": {"release"},
    "worker/statistics/frequent_values.py frequent_values": {"release"},
    "worker/training/plan.py Plan.count_release": {"noise"},
    "worker/training/plan.py Plan.gradient_release": {"noise"},
    "worker/training/plan.py Plan.order": {"order"},
    "worker/training/plan.py Plan.sampler": {"sampler"},
    "worker/training/rehearsal.py rehearse": {"self-test"},
    "worker/training/side.py PublicSide._drawn": {"public sampler"},
}
# Models from folders and their tokens' views run in tests/hf, passes on a GPU in test_gpu.py, public records in
# test_public_side.py, queries of categories in tests/statistics/test_categories.py.
ELSEWHERE = {
    place
    for place in PLACES
    if any(word in place for word in ("hf/", "_kept", "rehearsal", "side.py", "frequent_values"))
}
DRAWING = {"KeyedStream", "GaussianGenerator", "KeyedInit", "KeyedDropout", "RandomOrder", "PoissonSampler"}
DRAWING |= {"CyclicSampler", "GaussianRelease", "CorrelatedRelease", "CountRelease"}
OTHER_SOURCES = {"default_rng", "manual_seed", "urandom", "token_bytes", "token_hex", "randbits", "getrandbits"}
OTHER_SOURCES |= {"Random", "SystemRandom", "rand", "randn", "randint", "randperm", "bernoulli", "multinomial"}
# Randomness without a key, and why it is none of a job's.
UNKEYED = {
    "core/parts/sealed.py": "the public salt of a sealed file",
    "app/formats/slot_order.py": "the places of a stored part: the system's random bits, drawn once and written down",
    "core/privacy/score_histogram.py": "simulated releases of a released histogram, from a public seed",
    "worker/attempt/output_files.py": "names of temporary files",
    "worker/attempt/auditor.py": "which finished steps a worker computes again: its choice is public",
    "worker/clipping/gpu_check.py": "public numbers, which a GPU and the processor clip",
    "worker/cluster/alone.py": "a token of Ray on loopback, for one command: never stored",
    "worker/cluster/links.py": "keys and serial numbers of ranks' certificates, for one attempt: never stored",
    "worker/extractors/encoder.py": "public examples, for the self-test",
    "worker/extractors/features.py": "names of temporary files",
    "worker/extractors/feature_lock.py": "names of temporary files",
    "worker/models/hf/root_mean_square.py": "public examples, for the self-test",
    "worker/training/rehearsal.py": "public records",
    "worker/training/self_test.py": "public records",
}


# --- The jobs ---

SHAPE = {"records_train": 60, "records_holdout": 12, "features": 4, "outputs": 2, "sparse": False}
POISSON = {"kind": "poisson", "expected_batch_size": 16}
FULL = {"kind": "full_batch"}
MLP = {"kind": "mlp", "hidden": [4], "dropout": 0.5}
IMAGE = {"height": 8, "width": 8, "channels": 1}
CNN = {"kind": "cnn", "preset": "conv5", "image": IMAGE}
VIEWS = {"views": 2, "transforms": [{"kind": "crop", "padding": 2}]}


Job = tuple[dict[str, Any], StoredPart, StoredPart | None]


def on_columns(start: dict[str, Any]) -> Job:
    """The job on random columns of its shape."""
    sizes = start["shape"]
    n = sizes["records_train"]
    x, y = dense(n + sizes["records_holdout"], sizes["features"], sizes["outputs"])
    return start, StoredPart(x[:n], y[:n]), StoredPart(x[n:], y[n:])


def network(**changes: Any) -> dict[str, Any]:
    asked = {"model": MLP, "length": {"steps": 10}, "sampling": POISSON, "evaluation": {"noise_mu": 0.5, "points": 1}}
    return start_of(spec(**(asked | changes)), SHAPE)


def images(**changes: Any) -> dict[str, Any]:
    asked = {"model": CNN, "augmentation": VIEWS, "evaluation": None, "length": {"steps": 2}, "sampling": FULL}
    return start_of(spec(**(asked | changes)), SHAPE | {"features": 64})


def audited() -> tuple[dict[str, Any], StoredPart]:
    return start_for("columns", audit={"canaries": 100, "kind": "records"}, model=MLP, length={"steps": 2})


def ranked() -> tuple[dict[str, Any], StoredPart]:
    evaluation = {"noise_mu": 1.0, "points": 1, "ranking": {"k": 3}, "on": "train"}
    start, part = start_for("sequences", length={"steps": 2})
    start["spec"] |= {"evaluation": evaluation}
    declared = {"what": "ranking", "account": "train", "cutoff": 3, "sensitivity": 1.0}
    start["mechanism"]["releases"] = [declared | {"noise_mu": 1.0, "times": 1, "records": len(part.y)}]
    return start, part


CYCLIC = {"sampling": {"kind": "cyclic", "batches": 4}, "noise": {"decay": 0.5}, "evaluation": None}
CENTRED = {"model": {"kind": "linear", "center": {"max_norm": 2.0, "noise_mu": 0.5}}}
JOBS: dict[str, Callable[[], Job]] = {
    "network": lambda: on_columns(network()),
    "cyclic, correlated": lambda: on_columns(network(**CYCLIC)),
    "adaptive": lambda: on_columns(adaptive_start(evaluation=None, length={"steps": 2})),
    "centred": lambda: on_columns(centred_start(spec(**CENTRED))),
    "views": lambda: on_columns(images()),
    "audited": lambda: (*audited(), None),
    "audited views": lambda: on_columns(images(audit={"canaries": 100, "kind": "records"})),
    "ratings": lambda: (*start_for("ratings", length={"steps": 2}), None),
    "ranked": lambda: (*ranked(), None),
}


@dataclass
class Seen:
    """What leaves an attempt, and who drew from which keys."""

    model: bytes = b""
    scores: dict[Any, Any] = field(default_factory=dict)
    drawn: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def names_of(keys: dict[str, str]) -> dict[bytes, str]:
    named = {bytes.fromhex(keys[f"{purpose}_key"]): purpose for purpose in PURPOSES}
    named |= {public_key_of_seed(0, purpose): f"public {purpose}" for purpose in PURPOSES}
    return named | {PUBLIC_KEY: "self-test"}


def place() -> str:
    """The function outside of worker/noise that made the stream."""
    frame = sys._getframe(2)
    while frame is not None and "/worker/noise/" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    return f"{Path(frame.f_code.co_filename).relative_to(ROOT)} {frame.f_code.co_qualname}"


def ran(job: str, folder: Path, keys: dict[str, str] | None = None, **public: Any) -> Seen:
    """One attempt under these keys; `public` changes its start message."""
    start, train, holdout = JOBS[job]()
    made: Supervisor = attempt(folder, start | public, [train], [] if holdout is None else [holdout])
    made.segments = [{"from_step": 1, "recorded": []} | (keys or keys_of(SALT))]
    seen, names, whole = Seen(), names_of(made.segments[0]), KeyedStream.__init__

    def init(self: KeyedStream, key: bytes | None) -> None:
        seen.drawn[place()].add(names.get(key or b"", "unknown"))
        whole(self, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedStream, "__init__", init)
        ended = run_thread(made)
    assert isinstance(ended.last, Finished), ended.last
    seen.model, seen.scores = (folder / "model.safetensors").read_bytes(), made.metrics
    return seen


# --- The list ---


def used(folder: Path, names: set[str], *, called: bool) -> set[str]:
    """The file and function of every use, or call, of these names."""

    def walk(node: ast.AST, path: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = (*path, child.name) if isinstance(child, ast.FunctionDef | ast.ClassDef) else path
            what = getattr(child, "func", None) if called else child
            if getattr(what, "id", getattr(what, "attr", None)) in names:
                yield ".".join(inner)
            yield from walk(child, inner)

    trees = {file.relative_to(ROOT): ast.parse(file.read_text()) for file in folder.rglob("*.py")}
    return {f"{file} {function}" for file, tree in trees.items() for function in walk(tree, ())}


def test_every_place_that_draws_is_on_the_list() -> None:
    found = used(ROOT / "worker", DRAWING, called=True)
    assert {each for each in found if not each.startswith("worker/noise/")} == set(PLACES)


def test_nothing_else_is_random() -> None:
    folders = [ROOT / each for each in ("worker", "app/formats", "core/parts", "core/privacy")]
    found = {each.split()[0] for folder in folders for each in used(folder, OTHER_SOURCES, called=False)}
    assert found == set(UNKEYED)


def drawn_by_all(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for number, job in enumerate(JOBS):
        for who, keys in ran(job, folder / str(number)).drawn.items():
            found[who] |= keys
    return found


def test_each_place_draws_from_its_own_keys(tmp_path: Path) -> None:
    assert drawn_by_all(tmp_path) == {who: keys for who, keys in PLACES.items() if who not in ELSEWHERE}


# --- Each purpose ---

# The job of which each key changes something: its model or, for "release", its scores.
DEPENDS: dict[Purpose, str] = dict.fromkeys(PURPOSES, "network") | {"views": "views"}


def require_dependence(purpose: Purpose, folder: Path) -> None:
    """What is published depends on this key, and the same job under another name and id gives the same."""
    job, keys = DEPENDS[purpose], keys_of(SALT)
    one = ran(job, folder / "one")
    other = ran(job, folder / "other", keys | {f"{purpose}_key": keys_of("another")[f"{purpose}_key"]})
    named = JOBS[job]()[0]["spec"] | {"name": "renamed", "dataset": "ds_2"}
    renamed = ran(job, folder / "renamed", job_id="job_2", spec=named)
    what = "scores" if purpose == "release" else "model"
    assert getattr(one, what) != getattr(other, what)
    assert renamed.scores == one.scores
    assert weights(renamed.model) == weights(one.model)


def weights(model: bytes) -> bytes:
    """Without the header, which names the job."""
    return model[8 + int.from_bytes(model[:8], "little") :]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_leaves_depends_on_each_key_and_on_no_name(purpose: Purpose, tmp_path: Path) -> None:
    require_dependence(purpose, tmp_path)


CONSTANTS: dict[str, Callable[[Purpose], bytes]] = {
    "constant": lambda _purpose: bytes(range(1, 33)),
    "public": lambda purpose: public_key_of_seed(0, purpose),
}


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_constant_key_is_found(purpose: Purpose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant for each key: the plan takes one that everyone knows. Both the list and the published numbers tell.

    Attack (Reliability): A derived key, such as that of the secret order, is a public constant
    Now: each place that draws from a key, or derives one, is on a list; a constant key is found at each
    Also: tests/architecture/test_derived_keys.py::test_a_constant_key_is_found
    """
    honest, key = Plan._key, CONSTANTS["public" if purpose in ("order", "sampler") else "constant"](purpose)
    monkeypatch.setattr(Plan, "_key", lambda self, keys, what: key if what == purpose else honest(self, keys, what))
    with pytest.raises(AssertionError):
        require_dependence(purpose, tmp_path)
    drawn = ran(DEPENDS[purpose], tmp_path / "listed").drawn
    assert any(keys - PLACES[who] for who, keys in drawn.items())


# --- The supervisor ---

SECRETS = {"k1": bytes(range(1, 33)), "k2": bytes(range(2, 34))}
SEGMENT = SaltedSteps(from_step=1, salt="ab" * 32, key_id="k1")


def sent(segment: SaltedSteps = SEGMENT, secret: bytes = SECRETS["k1"], current: str = "k1") -> dict[str, str]:
    """The keys that the supervisor of an attempt sends."""
    keys = NoiseSecrets(SECRETS | {"k1": secret}, current).keys(segment)
    return {name.removesuffix("_key"): key for name, key in dict(keys).items()}


def require_secret(purpose: Purpose) -> None:
    """The key depends on the server's secret and the segment's salt, on each alone; it is nobody else's."""
    key = sent()[purpose]
    assert key != sent(secret=bytes(range(3, 35)))[purpose]
    assert key != sent(secret=at_epoch(SECRETS["k1"], "ep_1"))[purpose]
    assert key != sent(SEGMENT.model_copy(update={"salt": "cd" * 32}))[purpose]
    assert key != sent(SEGMENT.model_copy(update={"key_id": "k2"}), secret=SECRETS["k1"])[purpose]
    assert key == sent(SEGMENT.model_copy(update={"from_step": 9}), current="k2")[purpose]
    assert list(sent().values()).count(key) == 1
    assert bytes.fromhex(key) not in names_of(keys_of(SALT))


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_key_is_of_the_secret_and_the_salt(purpose: Purpose) -> None:
    require_secret(purpose)


def test_the_key_of_a_checkpoint_is_of_the_secret_and_the_salt_and_no_attempt_has_it() -> None:
    def key(segment: SaltedSteps = SEGMENT, secret: bytes = SECRETS["k1"]) -> bytes:
        return NoiseSecrets(SECRETS | {"k1": secret}, "k1").checkpoint_key(segment)

    assert key() == key(SEGMENT.model_copy(update={"from_step": 9}))
    assert key() != key(secret=bytes(range(3, 35))) and key() != key(secret=at_epoch(SECRETS["k1"], "ep_1"))
    assert key() != key(SEGMENT.model_copy(update={"salt": "cd" * 32}))
    assert key() != key(SEGMENT.model_copy(update={"key_id": "k2"}), secret=SECRETS["k1"])
    assert key().hex() not in sent().values()


@pytest.mark.every_case
@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("mutant", ["constant", "of the salt alone", "of the secret alone", "another purpose's"])
def test_a_key_of_something_else_is_found(purpose: Purpose, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = real.derive_key
    others: dict[str, Callable[[bytes, str, bytes], bytes]] = {
        "constant": lambda _secret, _key_id, _salt: bytes(range(1, 33)),
        "of the salt alone": lambda _secret, key_id, salt: honest(bytes(range(9, 41)), key_id, salt, purpose),
        "of the secret alone": lambda secret, key_id, _salt: honest(secret, key_id, b"\0" * 32, purpose),
        "another purpose's": lambda secret, key_id, salt: honest(
            secret, key_id, salt, next(each for each in PURPOSES if each != purpose)
        ),
    }

    def derive(secret: bytes, key_id: str, salt: bytes, what: str) -> bytes:
        return others[mutant](secret, key_id, salt) if what == purpose else honest(secret, key_id, salt, what)

    monkeypatch.setattr(real, "derive_key", derive)
    with pytest.raises(AssertionError):
        require_secret(purpose)


def test_epochs_of_a_secret_differ() -> None:
    """A restored database draws from other keys than the one that was lost."""
    one, other = SECRETS.values()
    found = {at_epoch(secret, epoch) for secret in (one, other) for epoch in (None, "ep_1", "ep_2")}
    assert len(found) == 6 and np.all([len(each) == 32 for each in found])
