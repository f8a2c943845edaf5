"""WRN-16-4 with GroupNorm on CIFAR-10, private: one run as De et al. 2022 train it.

*Unproven on a GPU*: no run of this recipe has been measured. It needs one with 40 GB or more and takes hours.

    make reproduce-group-norm DATA=cifar10.npz                    # x_train, y_train, x_test, y_test
    python -m benchmarks.reproduce.wide_residual cifar10.npz --views 16               # with their augmentation
    python -m benchmarks.reproduce.wide_residual cifar10.npz --steps 10 --batch 16    # see that it starts, anywhere
    python -m benchmarks.reproduce.wide_residual --tiny --views 2                     # ten steps on noise

The file holds bytes: images (n, 32, 32, 3) or (n, 3, 32, 32), and classes from 0 to 9. The paper's accuracy at ε = 8
is 79.5 % with 16 augmentations of each image (random crops from 4 pixels of reflected edge, and flips) and an average
of the parameters. group_norm.py trains the same network on small images, on a processor.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.runs import Data, run
from worker.data.records import DenseRecords

CLASSES = 10
BATCH, CLIP, RATE, STEPS, DELTA = 4096, 1.0, 2.0, 2500, 1e-5
AVERAGED = 0.9999  # decay of the mean of the iterates


def job(epsilon: float, steps: int, batch: int, image: dict[str, int], *, last: bool, views: int) -> dict[str, Any]:
    """The JobSpec, less its data set. `views`: of each image; 0: the image itself."""
    model = {"kind": "cnn", "preset": "wrn16_4", "activation": "relu", "weight_standardization": True}
    crop = {"kind": "crop", "padding": min(4, image["height"] - 1)}
    augmentation = {"views": views, "transforms": [crop, {"kind": "flip"}]} if views else None
    return {
        "augmentation": augmentation,
        "model": model | {"image": image, "channels": "last" if last else "first", "input_scale": 1 / 255},
        "optimizer": {"kind": "dp_sgd", "learning_rate": RATE, "averaging": {"kind": "moving", "decay": AVERAGED}},
        "sampling": {"kind": "poisson", "expected_batch_size": batch},
        "length": {"steps": steps},
        "clipping": {"kind": "flat", "max_grad_norm": CLIP},
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA},
        "evaluation": {"points": 1},
    }


def loaded(path: Path) -> tuple[Data, dict[str, int], bool]:
    """The file's data set, the size of its images, and True if the channels are last."""
    with np.load(path) as arrays:
        x, y, x_test, y_test = (arrays[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    return _data(x, y, x_test, y_test)


def noise() -> tuple[Data, dict[str, int], bool]:
    """Forty-eight random images of 4 × 4, to see that the program runs."""
    drawn = np.random.default_rng(0)
    x, y = drawn.integers(0, 256, (48, 4, 4, 3)), drawn.integers(0, CLASSES, 48)
    return _data(x, y, x, y)


def _data(x: Any, y: Any, x_test: Any, y_test: Any) -> tuple[Data, dict[str, int], bool]:
    last = x.shape[3] in (1, 3)
    height, width, channels = x.shape[1:] if last else (*x.shape[2:], x.shape[1])
    parts = [
        DenseRecords(torch.from_numpy(images.reshape(len(images), -1).astype(np.float32)), torch.from_numpy(labels))
        for images, labels in ((x, y.reshape(-1).astype(np.int64)), (x_test, y_test.reshape(-1).astype(np.int64)))
    ]
    task = {"kind": "classification", "label": "y", "classes": list(range(CLASSES))}
    features = {"kind": "tensor", "array": "x"}
    image = {"height": int(height), "width": int(width), "channels": int(channels)}
    return Data(task, features, parts[0], parts[1], height * width * channels, CLASSES), image, last


def main(arguments: list[str] | None = None) -> None:
    """Runs the recipe and prints its accuracy on the test images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="an npz file")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--views", type=int, default=0, help="of each image; 0: the image itself")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=there, choices=("cpu", "cuda"), help="default: a GPU if there is one")
    parser.add_argument("--steps", type=int, help=f"default: {STEPS:,}")
    parser.add_argument("--batch", type=int, help=f"expected records of a step; default: {BATCH:,}")
    asked = parser.parse_args(arguments)
    if asked.data is None and not asked.tiny:
        parser.error("give the file with the images, or --tiny")
    data, image, last = noise() if asked.tiny else loaded(asked.data)
    steps, batch = (10, 16) if asked.tiny else (asked.steps or STEPS, asked.batch or BATCH)
    done = run(
        data, job(asked.epsilon, steps, batch, image, last=last, views=asked.views), device=torch.device(asked.device)
    )
    print(
        f"accuracy {done.last('accuracy'):.4f} after {done.steps} steps at ε = {done.epsilon:.3g}, {done.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
