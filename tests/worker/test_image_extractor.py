"""EfficientNet-Lite0 as an extractor: the architecture, how records become images, and attempts with its features."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import scrimp
from core.contracts.extractor import ImageInput
from core.parts.damage import DataDamagedError
from core.parts.part_files import save_part
from core.parts.stored_records import StoredPart, Texts
from tests.worker.extractor import write_extractor, write_image_extractor
from tests.worker.support import Supervisor, parts_of, run_thread, spec, start_of
from worker.extractors import features
from worker.extractors.efficientnet import EfficientNet, Encoder, SameConv
from worker.extractors.extractor_files import ExtractorMissingError
from worker.extractors.features import extracted
from worker.messages import Finished

GRAY = ImageInput(height=8, width=6, channels=1, input_scale=1 / 255)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full architecture with random weights, at 32 pixels."""
    made = tmp_path_factory.mktemp("models") / "e"
    write_image_extractor(made)
    return made


def sha256_of(folder: Path) -> str:
    return hashlib.sha256((folder / "extractor.json").read_bytes()).hexdigest()


def images(n: int = 5, image: ImageInput = GRAY) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, image.numbers)).astype(np.float32)


@pytest.mark.parametrize(("variant", "published"), [(0, 4_652_008), (1, 5_416_680), (2, 6_092_072)])
def test_the_architecture_is_the_reference_s(variant: int, published: int) -> None:
    with torch.device("meta"):
        encoder = Encoder(f"efficientnet_lite{variant}")
        shape = encoder(torch.empty(1, 3, 224, 224)).shape
    assert shape == (1, 1280)
    classifier = 1280 * 1000 + 1000
    assert sum(each.numel() for each in encoder.parameters()) + classifier == published
    assert not any(isinstance(each, nn.Dropout) for each in encoder.modules())


@pytest.mark.parametrize(("size", "stride", "kernel"), [(8, 2, 3), (7, 2, 3), (9, 2, 5), (5, 1, 5)])
def test_padding_is_the_reference_s(size: int, stride: int, kernel: int) -> None:
    """As TensorFlow's SAME: ⌈size / stride⌉ places, the odd zero at the end."""
    conv = SameConv(1, 1, kernel, stride)
    nn.init.ones_(conv.weight)
    made = conv(torch.ones(1, 1, size, size))[0, 0]
    places = -(-size // stride)
    total = max((places - 1) * stride + kernel - size, 0)
    ones = np.pad(np.ones(size), (total // 2, total - total // 2))
    line = torch.tensor([ones[at * stride : at * stride + kernel].sum() for at in range(places)])
    torch.testing.assert_close(made, torch.outer(line, line).float())


def test_how_an_array_is_an_image(folder: Path) -> None:
    sha256 = sha256_of(folder)
    last = ImageInput(height=8, width=6, channels=3)
    first = ImageInput(height=8, width=6, channels=3, layout="first")
    x = images(1, last)[0] / 255
    turned = x.reshape(8, 6, 3).transpose(2, 0, 1).ravel()
    one, other = EfficientNet(folder, sha256, last)(x), EfficientNet(folder, sha256, first)(turned)
    assert torch.equal(one, other) and one.shape == (1280,) and bool(one.isfinite().all())
    assert float((EfficientNet(folder, sha256, last)(turned) - one).norm()) > 0.01 * float(one.norm())
    gray = ImageInput(height=8, width=6, channels=1)
    flat = x.reshape(8, 6, 3)[:, :, 0]
    alike = EfficientNet(folder, sha256, last)(np.repeat(flat[:, :, None], 3, axis=2).ravel())
    assert torch.equal(EfficientNet(folder, sha256, gray)(flat.ravel()), alike), "one channel becomes three"
    bytes_ = ImageInput(height=8, width=6, channels=1, input_scale=1 / 255)
    torch.testing.assert_close(
        EfficientNet(folder, sha256, bytes_)(255 * flat.ravel()), EfficientNet(folder, sha256, gray)(flat.ravel())
    )


def test_features_do_not_depend_on_the_other_records(folder: Path, tmp_path: Path) -> None:
    def made(x: np.ndarray, name: str) -> Any:
        part = StoredPart(x=x, y=np.zeros(len(x)))
        return extracted(part, name * 64, folder, sha256_of(folder), tmp_path / name, lambda: None, GRAY).x

    x = images()
    whole = made(x, "0")
    assert np.array_equal(made(x[::-1], "1"), whole[::-1]) and np.array_equal(made(x[2:3], "2")[0], whole[2])


def test_the_cache_is_bounded_and_knows_how_images_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "KEPT", 3)
    steps: list[int] = []

    def made(image: ImageInput) -> Any:
        part = StoredPart(x=images(2), y=np.zeros(2))
        return extracted(part, "0" * 64, folder, sha256_of(folder), tmp_path / "c", lambda: steps.append(1), image).x

    scales = [GRAY.model_copy(update={"input_scale": scale}) for scale in (0.001, 0.002, 0.003, 0.004)]
    first = made(scales[0])
    old, new = tmp_path / "c" / "old.part", tmp_path / "c" / "new.part"
    unnamed, renaming = tmp_path / "c" / "k.0.arrow.index", tmp_path / "c" / "k.1.arrow.index"
    for path in (old, new, unnamed, renaming):
        path.write_bytes(b"")
    for path in (old, unnamed, *(tmp_path / "c").glob("*.arrow.index")):
        if path != renaming:
            os.utime(path, (0, 0))
    assert not np.array_equal(made(scales[1]), first)
    made(scales[2])
    made(scales[0])
    assert len(steps) == 6
    made(scales[3])
    assert len(list((tmp_path / "c").glob("*.arrow"))) == 3
    assert new.exists() and not old.exists(), "of a process that was killed"
    assert renaming.exists() and not unnamed.exists(), "of one that was killed between two names"
    assert len(list((tmp_path / "c").glob("*.arrow.index"))) == 4, "an index that has its part stays"
    assert np.array_equal(made(scales[0]), first) and len(steps) == 8, "what was used is kept"
    made(scales[1])
    assert len(steps) == 10, "what was not is gone"


def test_what_is_no_image_is_refused(folder: Path, tmp_path: Path) -> None:
    sha256 = sha256_of(folder)
    numbers, texts = StoredPart(x=images(2), y=np.zeros(2)), StoredPart(x=Texts.of(["a"]), y=np.zeros(1))
    wrong = GRAY.model_copy(update={"height": 9})
    for part, image in ((numbers, wrong), (numbers, None), (texts, GRAY)):
        with pytest.raises(DataDamagedError):
            extracted(part, "0" * 64, folder, sha256, tmp_path, lambda: None, image)
    of_texts = write_extractor(tmp_path / "texts")
    with pytest.raises(ExtractorMissingError):
        EfficientNet(tmp_path / "texts", of_texts, GRAY)
    with pytest.raises(ExtractorMissingError):
        EfficientNet(folder, "0" * 64, GRAY)


def test_a_linear_probe_from_images_to_the_model(folder: Path, tmp_path: Path) -> None:
    x, y = images(20), np.arange(20) % 2
    x[y == 1] *= 0.2
    stored = {}
    for name, n in (("train", 20), ("holdout", 8)):
        digest = save_part(tmp_path / name, StoredPart(x=x[:n], y=y[:n]))
        stored[name] = {"path": str(tmp_path / name), "sha256": digest}
    shape = {"records_train": 20, "records_holdout": 8, "features": 48, "outputs": 2, "sparse": False}
    extractor = {"name": "e", "sha256": sha256_of(folder), "features": 1280, "image": GRAY.model_dump()}
    slow = {"kind": "dp_sgd", "learning_rate": 0.001}
    job = spec(model={"kind": "linear", "extractor": extractor}, optimizer=slow, privacy=None)
    start = start_of(job, shape, public=True, output_dir=tmp_path)
    more = {"extractor_dir": str(folder), "parts": parts_of(stored, cache_dir=str(tmp_path / "features"))}
    supervisor = Supervisor(start | more)
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished)
    assert supervisor.metrics["accuracy", 10]["value"] == 1.0
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["tensors"]["weight"] == [2, 1280] and card["extractor"] | extractor == card["extractor"]
    assert f"model.predict([[0.0] * {GRAY.numbers}])" in card["usage"]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "e").symlink_to(folder)
    loaded = scrimp.load_model(tmp_path, tmp_path / "models")
    assert [each["class"] for each in loaded.predict(x.reshape(-1, 6, 8))] == y.tolist()
    with pytest.raises(ValueError, match="SCRIMP_MODELS_ROOT"):
        scrimp.load_model(tmp_path).predict(x)
