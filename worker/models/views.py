"""Random views of a pass's records: several of each, one after the other, as further rows of the pass.

A record's loss is the mean over its views, so its gradient is the mean of theirs; it is measured and clipped as one.
Views are keyed by step and by the record's place in the logical batch, as the masks of dropout are: neither P, nor the
number of ranks, nor another record changes them, and what runs replays. Like those masks they need a secret key
(worker.noise.fills).

Source: De et al. 2022, "Unlocking high-accuracy differentially private image classification through scale".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from core.contracts.augmentation import Augmentation, Crop, DropWords, Erase, Flip, Transform
from core.contracts.hf import HfModel
from core.contracts.job_spec import Model as Requested
from core.contracts.model_settings import ImageForm
from core.errors import PrivacyError
from worker.data.passes import moved
from worker.data.records import DenseRecords, SparseRecords
from worker.data.sequence_records import SequenceRecords
from worker.noise.attempt_keys import public_key_of_seed
from worker.noise.fills import KeyedDropout
from worker.noise.generator import KeyedStream

R = TypeVar("R")
Losses = Callable[[nn.Module, R], Tensor]


class Views:
    """K views of each record.

    Args:
        settings: K and the transforms.
        form: how a record's numbers form an image; None: records are texts.
        length: of a text, the tokens that the model reads.
    """

    def __init__(self, settings: Augmentation, form: ImageForm | None, length: int = 0) -> None:
        self.each, self._transforms, self._form, self._length = settings.views, tuple(settings.transforms), form, length
        self._key: bytes | None = None
        self._step = self._first = 0
        self._still = False

    @classmethod
    def of_job(cls, settings: Augmentation | None, model: Requested) -> Views | None:
        """The views of a job's records; None: only the records themselves."""
        if settings is None or not settings.changes:
            return None
        return cls(settings, model.pixels(), model.max_length if isinstance(model, HfModel) else 0)

    def begin(self, key: bytes, step: int) -> None:
        """Begins a step's query, under a key of purpose "views"."""
        self._key, self._step = key, step
        self.begin_pass(0)

    def begin_pass(self, first: int) -> None:
        """The next pass's records are the batch's from place `first` on: a rank skips the passes of the others."""
        self._first = first

    @contextmanager
    def still(self) -> Iterator[None]:
        """Gives every record the same K views, of a public key: for results of a record that its place must not change,
        on public records."""
        state, self._still = (self._key, self._step), True
        self._key, self._step = public_key_of_seed(0, "views"), 0
        try:
            yield
        finally:
            (self._key, self._step), self._still = state, False

    def of(self, records: Any) -> Any:
        """The views of a pass's P records: K P records, those of one record one after the other.

        Raises:
            PrivacyError: no step has begun, or the records are of another kind.
        """
        if self._key is None:
            raise PrivacyError("a record has no views before a step begins")
        if isinstance(records, DenseRecords) and self._form is not None:
            return self._of_images(records, self._form)
        if isinstance(records, SequenceRecords) and self._form is None:
            return self._of_texts(records)
        if isinstance(records, SparseRecords) and self._form is None:
            return self._of_words(records)
        raise PrivacyError("records of this kind have no views")

    def _of_images(self, records: DenseRecords, form: ImageForm) -> DenseRecords:
        flat = records.tensors[0].repeat_interleave(self.each, dim=0)
        sides = (form.height, form.width)
        last = form.channels_last
        images = flat.unflatten(1, (*sides, form.channels) if last else (form.channels, *sides))
        images = images.movedim(-1, 1) if last else images
        for number, transform in enumerate(self._transforms):
            images = _changed(images, transform, moved(self._words(number, len(records)), images.device))
        images = images.movedim(1, -1) if last else images
        return records.repeated(images.flatten(1), self.each)

    def _of_texts(self, records: SequenceRecords) -> SequenceRecords:
        stays = np.ones((len(records) * self.each, self._length), dtype=bool)
        for number, transform in enumerate(self._transforms):
            if isinstance(transform, DropWords):
                stays &= self._kept(number, transform.rate, len(records))
        return records.kept(stays, self.each)

    def _of_words(self, records: SparseRecords) -> SparseRecords:
        (transform,) = self._transforms
        if not isinstance(transform, DropWords):
            raise PrivacyError("hashed words are no image")
        return records.dropped(self._random(0, len(records)).view(np.uint64), self.each, transform.rate)

    def _words(self, transform: int, records: int) -> Tensor:
        """31 random bits twice for each view, int64 (K records, 2)."""
        halves = self._random(transform, records).view(np.uint32).reshape(-1, 2) >> 1
        hashed: NDArray[np.int64] = halves.astype(np.int64)
        return torch.from_numpy(hashed)

    def _random(self, transform: int, records: int) -> NDArray[np.int64]:
        """64 random bits for each view, (K records,)."""
        stream, count = KeyedStream(self._key), self.each
        if self._still:
            return np.tile(stream.words(0, transform, 0, 0, count), records)
        return stream.words(self._step, transform, 0, self._first * count, records * count)

    def _kept(self, transform: int, rate: float, records: int) -> NDArray[np.bool_]:
        """True for each token that a view keeps: (K records, length)."""
        stream, count = KeyedDropout(self._key, rate), self.each
        if self._still:
            mask = stream.mask(0, transform, (count, self._length))
            return np.tile(mask.numpy() > 0.0, (records, 1))
        shape, first = (records * count, self._length), self._first * count
        return stream.mask(self._step, transform, shape, first_record=first).numpy() > 0.0


def averaged(losses: Losses[R], views: Views | None) -> Losses[R]:
    """Each record's loss: the mean over its views, (n,)."""
    if views is None:
        return losses

    def over_views(module: nn.Module, records: R) -> Tensor:
        losses_of_views = losses(module, views.of(records))
        mean: Tensor = losses_of_views.unflatten(0, (-1, views.each)).mean(dim=1)
        return mean

    return over_views


def stilled(views: Views | None) -> Any:
    """See Views.still; nothing without views."""
    return nullcontext() if views is None else views.still()


def rows_of(views: Views | None) -> int:
    """How many rows of a pass belong to one record."""
    return 1 if views is None else views.each


def _changed(images: Tensor, transform: Transform, words: Tensor) -> Tensor:
    """The images (n, C, h, w), each by its own random words (n, 2)."""
    match transform:
        case Crop():
            return _cropped(images, transform, words)
        case Flip():
            mirrored = words[:, :1] & 1  # (n, 1)
            places = _places(images.shape[3], images.device)
            return _taken(images, columns=torch.where(mirrored == 1, images.shape[3] - 1 - places, places))
        case Erase():
            return _erased(images, transform.side, words)
        case DropWords():
            raise PrivacyError("an image has no words")


def _cropped(images: Tensor, crop: Crop, words: Tensor) -> Tensor:
    """Each image moved by up to `padding` pixels in both directions."""
    shifts = words % (2 * crop.padding + 1) - crop.padding  # (n, 2)
    lines = [_places(size, images.device) + shifts[:, at, None] for at, size in enumerate(images.shape[2:])]
    if crop.fill == "reflect":
        rows, columns = (_mirrored(each, size) for each, size in zip(lines, images.shape[2:], strict=True))
        return _taken(images, rows, columns)
    inside = [(each >= 0) & (each < size) for each, size in zip(lines, images.shape[2:], strict=True)]
    rows, columns = (each.clamp(0, size - 1) for each, size in zip(lines, images.shape[2:], strict=True))
    inside_image = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return torch.where(inside_image, _taken(images, rows, columns), 0.0)


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places outside 0 … size − 1 mirrored at the edge, which is not repeated."""
    return size - 1 - (size - 1 - places.abs()).abs()


def _erased(images: Tensor, side: int, words: Tensor) -> Tensor:
    """Each image with a square of zeros at a random place."""
    inside = []
    for at, size in enumerate(images.shape[2:]):
        first = words[:, at, None] % (size - side + 1)
        places = _places(size, images.device)
        inside.append((places >= first) & (places < first + side))
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None, :], 0.0, images)


def _taken(images: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """Each image's pixels from these rows (n, h) and columns (n, w)."""
    if rows is not None:
        images = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return images if columns is None else images.gather(3, columns[:, None, None, :].expand(images.shape))


def _places(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device)
