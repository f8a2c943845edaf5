"""Linear models and MLPs in numpy, in float64, with the worker's answers (tests compare the two).

    linear   f = W (x − mean) (+ b)
    mlp      a chain of such layers on s·x, with tanh or max(0, ·) between them

Of two classes the answers may undo the clipping of their training (`clip_ratios` among the tensors).

Texts are hashed as the service hashes them: words of two letters or more in lower case, their n-grams, MurmurHash3
modulo `buckets`, counts or presence, divided by the Euclidean norm (scikit-learn's HashingVectorizer).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scrimp.cells import require_columns, shown, text_number

if TYPE_CHECKING:
    from scrimp.specs import TableFeatures

Floats = npt.NDArray[np.float64]
WORD = re.compile(r"\b\w\w+\b")
MASK = 0xFFFFFFFF
LARGEST = 3.4e38  # finite in single precision
SLOPE = 0.05  # of answers between the ends of the flat range
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class NoTensorsError(ValueError):
    """Bytes that are no safetensors file."""


def tensors(content: bytes) -> dict[str, Floats]:
    """The tensors of a safetensors file: 8 bytes of length, a JSON header, numbers.

    Raises:
        NoTensorsError: it is none.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
        header.pop("__metadata__", None)
        return {name: _tensor(body, **span) for name, span in header.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise NoTensorsError("these bytes are no safetensors file") from None


def _tensor(body: bytes, dtype: str, shape: list[int], data_offsets: list[int]) -> Floats:
    start, end = data_offsets
    return np.frombuffer(body[start:end], dtype=TYPES[dtype]).reshape(shape).astype(np.float64)


@dataclass(frozen=True)
class Model:
    """A linear model or an MLP with its weights; see scrimp.loading.LoadedModel."""

    card: Mapping[str, Any]
    tensors: Mapping[str, Floats]

    def predict(self, records: Iterable[Any], top: int = 10) -> list[dict[str, Any]]:
        """One answer for each record; see scrimp.loading.LoadedModel."""
        if isinstance(records, str | bytes | Mapping):
            raise ValueError("give a list of records, not a single one")
        outputs = [self._outputs(record, at) for at, record in enumerate(records)]
        if self.card["task"]["kind"] != "classification":
            return [{"value": _finite(_in_unit(float(each[0]), self.card["task"].get("range")))} for each in outputs]
        return [_classes(each, self._answers(each), self.card["task"]["classes"], top) for each in outputs]

    def _answers(self, outputs: Floats) -> Floats:
        """The outputs whose softmax is answered: those of two classes undo the clipping of their training."""
        ratios = self.tensors.get("clip_ratios")
        if ratios is None:
            return outputs
        half = answer_logit(float(outputs[1] - outputs[0]), ratios) / 2.0
        return np.array([-half, half])

    def _outputs(self, record: Any, at: int) -> Floats:
        (weight, bias), *rest_layers = self.layers
        if self._words is not None:
            sums = np.zeros(len(weight))
            for bucket, value in _hashed(_text(record, at), self._words):
                sums += weight[:, bucket] * value
        else:
            x = self._inputs(record, weight.shape[1], at) - self.tensors.get("mean", np.float64(0.0))
            with np.errstate(invalid="ignore", over="ignore"):
                sums = weight @ (x * self.scale)
        sums = sums + bias
        for weight, bias in rest_layers:
            with np.errstate(invalid="ignore", over="ignore"):
                sums = weight @ (np.tanh(sums) if self.activation == "tanh" else np.maximum(sums, 0.0)) + bias
        return sums

    @cached_property
    def layers(self) -> list[tuple[Floats, Floats]]:
        """Weight and bias of each linear layer, first to last. Of an MLP they are numbered, with gaps for what lies
        between them."""
        prefixes = [name.removesuffix("weight") for name in self.tensors if name.endswith("weight")]
        return [
            (weight := self.tensors[f"{prefix}weight"], self.tensors.get(f"{prefix}bias", np.zeros(len(weight))))
            for prefix in sorted(prefixes, key=lambda prefix: int(prefix.rstrip(".") or 0))
        ]

    @property
    def scale(self) -> float:
        """What multiplies every feature: `input_scale` of an MLP, else 1."""
        return float(self._settings.get("input_scale", 1.0))

    @property
    def activation(self) -> str:
        """`tanh` or `relu`, between the layers of an MLP."""
        return str(self._settings.get("activation", "tanh"))

    @property
    def _settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.card["model"] if self.card["kind"] == "mlp" else {}
        return settings

    def _inputs(self, record: Any, width: int, at: int) -> Floats:
        """A record's numbers, rounded to float32 as the worker reads them."""
        if self._table is None:
            return _numbers(record, self.card["features"].get("columns"), width, at)
        from scrimp.tables import features_of

        return np.array(features_of(record, self._table, at), dtype=np.float32).astype(np.float64)

    @cached_property
    def _table(self) -> TableFeatures | None:
        if self.card["features"]["kind"] != "table":
            return None
        from scrimp.specs import TableFeatures

        return TableFeatures.model_validate(self.card["features"])

    @property
    def _words(self) -> Mapping[str, Any] | None:
        """How texts are hashed; None if records are numbers."""
        extractor, features = self.card.get("extractor"), self.card["features"]
        words: Mapping[str, Any] | None = extractor["words"] if extractor is not None else None
        return features if words is None and features["kind"] == "hashed_text" else words


def answer_logit(score: float, ratios: Floats) -> float:
    """The logit that undoes the clipping, with the worker's numbers (core.privacy.two_class_answers): strictly rising.

    >>> round(answer_logit(-2.197, np.array([5.0, 5.0])), 3)
    -0.774
    """
    first, second = np.log(ratios)
    rise, fall = min(first - np.logaddexp(0.0, -score), 0.0), min(second - np.logaddexp(0.0, score), 0.0)
    low, high = flat_range(ratios)
    return float(rise - fall + SLOPE * (np.clip(score, low, high) - (low + high) / 2.0))


def flat_range(ratios: Floats) -> tuple[float, float]:
    """Between these scores both classes' gradients are cut. Two zeros: nowhere."""
    if min(ratios) > 1.0:
        low, high = -math.log(ratios[0] - 1.0), math.log(ratios[1] - 1.0)
        if low < high:
            return low, high
    return 0.0, 0.0


def _classes(outputs: Floats, answers: Floats, classes: list[Any], top: int) -> dict[str, Any]:
    if not np.isfinite(answers).all():
        return {"class": None, "probabilities": {}}
    shares = np.exp(answers - answers.max())
    shares /= shares.sum()
    best = np.argsort(-shares, kind="stable")[:top]
    return {
        "class": classes[int(outputs.argmax())],
        "probabilities": {str(classes[at]): float(shares[at]) for at in best.tolist()},
    }


def _in_unit(output: float, ends: list[float] | None) -> float:
    """A prediction in the target's unit, within its declared range, which the model learned as [−1, 1]."""
    if ends is None:
        return output
    low, high = ends
    return low + (min(max(output, -1.0), 1.0) + 1.0) / 2.0 * (high - low)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(record: Any, names: list[str] | None, width: int, at: int) -> Floats:
    """A record of columns or of a tensor as its numbers, rounded to float32 as the worker reads them."""
    if isinstance(record, Mapping) and names is not None:
        require_columns(record, names, at)
        record = [record[name] for name in names]
    cells = record.ravel().tolist() if isinstance(record, np.ndarray) else record
    if not isinstance(cells, list | tuple) or len(cells) != width:
        raise ValueError(f"records/{at}: a record of this model must be {width} numbers")
    return np.array([_number(cell, place, names, at) for place, cell in enumerate(cells)], dtype=np.float32).astype(
        np.float64
    )


def _number(cell: Any, place: int, names: list[str] | None, at: int) -> float:
    """A cell's number; raises ValueError with the cell's place if it is none."""
    plain = cell.item() if isinstance(cell, np.generic) else cell
    with suppress(ValueError):
        plain = text_number(plain) if isinstance(plain, str) and names is not None else plain
    if isinstance(plain, int | float) and not isinstance(plain, bool) and abs(plain) < LARGEST:
        return float(plain)
    column = f"cell {place}" if names is None else f"column {names[place]!r}"
    name = place if names is None else names[place]
    raise ValueError(
        f"records/{at}/{name}: {column} must be a number, finite in single precision, and is {shown(cell)}"
    )


def _text(record: Any, at: int) -> str:
    if not isinstance(record, str):
        raise ValueError(f"records/{at}: a record of this model must be a text")
    return str(record)


def _hashed(text: str, words: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """The buckets of a text's n-grams with their values, normalized."""
    counts = Counter(bucket_of(gram, words["buckets"]) for gram in _grams(WORD.findall(text.lower()), words["ngrams"]))
    values = {bucket: 1.0 if words["binary"] else float(count) for bucket, count in counts.items()}
    norm = math.sqrt(math.fsum(value * value for value in values.values()))
    for bucket, value in values.items():
        yield bucket, value / norm


def _grams(words: list[str], between: list[int]) -> Iterator[str]:
    shortest, longest = between
    for length in range(shortest, longest + 1):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def bucket_of(gram: str, buckets: int) -> int:
    """The feature of a hashed word: signed MurmurHash3, without its sign, modulo `buckets`."""
    signed = murmur3(gram.encode())
    signed -= (signed >> 31) << 32
    # |−2³¹| is no 32-bit integer: scikit-learn takes another remainder for it.
    return (2**31 - buckets) % buckets if signed == -(2**31) else abs(signed) % buckets


def murmur3(data: bytes, seed: int = 0) -> int:
    """MurmurHash3, 32 bits, for x86: Appleby 2011.

    >>> murmur3(b"hello")
    613153351
    """
    h = seed
    ends = len(data) & ~3
    for at in range(0, ends, 4):
        h ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        h = (((h << 13 | h >> 19) & MASK) * 5 + 0xE6546B64) & MASK
    h ^= _mixed(int.from_bytes(data[ends:], "little"))
    h ^= len(data)
    h = ((h ^ h >> 16) * 0x85EBCA6B) & MASK
    h = ((h ^ h >> 13) * 0xC2B2AE35) & MASK
    return h ^ h >> 16


def _mixed(k: int) -> int:
    k = (k * 0xCC9E2D51) & MASK
    return (((k << 15 | k >> 17) & MASK) * 0x1B873593) & MASK
