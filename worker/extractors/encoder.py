"""Any encoder or language model of transformers that makes one vector from a text or an image: frozen, one at a time.

transformers' own classes compute; no code and no pickle from an extractor's folder ever runs. Needs the extra `hf`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

from core.contracts.architectures import POSITIONS
from core.contracts.extractor import EncoderManifest, ImageInput
from worker.extractors.extractor_files import ExtractorMissingError, loading, read_extractor
from worker.extractors.pixels import pixels, random_images
from worker.models.hf import hf_loading as loading_hf
from worker.models.hf.tokens import CHARACTERS

UNUSED = ("pooler.",)  # tensors that hidden states do not depend on, which a folder may lack


class EncoderStates:
    """record → its pooled hidden states, float32 (d,).

    Guarantee: a record's features are a function of this record and the extractor's files alone. Each record goes
    through the encoder by itself and unpadded. In a batch, rounding would depend on the neighbours. That is small, but
    summed over all records it can exceed what the noise covers. Evaluation mode switches dropout off.

    Args:
        folder: the extractor's.
        sha256: its manifest's, as admitted.
        image: how a record's numbers form an image; None: records are texts.

    Raises:
        ExtractorMissingError: a file is missing or differs from the manifest, or the manifest differs; transformers has
            no such model, or cannot run it; its positions depend on texts of before, or are fewer than the tokens that
            are read; or records are of the other kind.
    """

    def __init__(self, folder: Path, sha256: str, image: ImageInput | None) -> None:
        with loading():
            manifest, files = read_extractor(folder, sha256)
            if not isinstance(manifest, EncoderManifest) or (manifest.image is None) != (image is None):
                raise ValueError("this extractor does not read these records")
            self._manifest, self._image = manifest, image
            self._model = _loaded(json.loads(files["config.json"]), files["model.safetensors"])
            self._tokens = _Tokens(files["tokenizer.json"].decode(), manifest.max_tokens) if image is None else None
            # Otherwise it would fail at the first text that is long enough or has such a token, which would be private.
            if self._tokens is not None:
                embedded: int = self._model.get_input_embeddings().num_embeddings
                if self._tokens.vocabulary > embedded:
                    raise ValueError("the tokenizer has tokens that the encoder does not know")
                if (manifest.max_tokens or 0) > _positions(self._model.config.get_text_config()):
                    raise ExtractorMissingError("`max_tokens` is more tokens than the encoder has positions")
            for example in self.examples(np.random.default_rng(0)):
                if self(example).shape != (manifest.features,):
                    raise ValueError("the manifest's sizes are not the encoder's")

    @property
    def features(self) -> int:
        """d."""
        return self._manifest.features

    def __call__(self, record: Any) -> Tensor:
        with torch.no_grad():
            output = self._model(**self._inputs(record), output_hidden_states=self._manifest.layer is not None)
            layer = self._manifest.layer
            states: Tensor = output.last_hidden_state if layer is None else output.hidden_states[layer]
            vector = self._pooled(states[0].float())
            return F.normalize(vector, dim=0) if self._manifest.normalize else vector

    def examples(self, generator: np.random.Generator) -> list[Any]:
        """Random public records: images; or texts, one short, one of half the tokens that are read, one too long."""
        if self._image is not None:
            return random_images(generator, self._image)
        if self._tokens is None or self._manifest.max_tokens is None:
            raise ValueError("an extractor of texts has a tokenizer")
        longest = self._manifest.max_tokens
        return [" ".join(generator.choice(self._tokens.words, size)) for size in (2, max(3, longest // 2), 2 * longest)]

    def _inputs(self, record: Any) -> dict[str, Tensor]:
        if self._tokens is not None:
            return {"input_ids": torch.tensor([self._tokens.ids(record)])}
        image, reads = self._image, self._manifest.image
        if image is None or reads is None:
            raise ValueError("an extractor of images knows their form")
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (reads.mean, reads.std))
        return {"pixel_values": (pixels(record, image, reads.size) - mean) / std}

    def _pooled(self, states: Tensor) -> Tensor:
        """(T, d) → (d,). A convolutional network's (d, h, w) are its places' states."""
        if states.dim() == 3:
            states = states.flatten(1).mT
        if self._manifest.pooling == "mean":
            return states.mean(dim=0)
        return states[0 if self._manifest.pooling == "cls" else -1]


class _Tokens:
    """tokenizer.json, read by the library `tokenizers`."""

    def __init__(self, document: str, max_tokens: int | None) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - for extractors that need it

        if max_tokens is None:
            raise ValueError("an extractor of texts has a largest number of tokens")
        try:
            self._tokenizer: Any = Tokenizer.from_str(document)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError("the tokenizer cannot be read") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self._characters = CHARACTERS * max_tokens
        vocabulary: Mapping[str, int] = self._tokenizer.get_vocab()
        self.vocabulary = max(vocabulary.values(), default=0) + 1
        self.words = [piece for piece in sorted(vocabulary) if piece.isascii() and piece.isalnum()] or ["a"]

    def ids(self, text: str) -> list[int]:
        """At least one id. A text that the library cannot encode counts as empty: an error would tell about it."""
        ids: list[int] = []
        try:
            ids = self._tokenizer.encode(text[: self._characters]).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: S110 - the library can panic, which is not an Exception
            pass
        return ids or [0]


def _loaded(document: dict[str, Any], weights: bytes) -> Any:
    """transformers' own class for the config's `model_type`, without a head."""
    try:
        base = loading_hf.base_class(document["model_type"])
        config = base.config.from_dict({name: value for name, value in document.items() if name in base.settings})
        with loading_hf.quiet():
            model, report = base.model.from_pretrained(
                None,
                config=config,
                state_dict={name: value.float() for name, value in safetensors.torch.load(weights).items()},
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
    except Exception as error:  # a config may make transformers raise anything
        raise ValueError("transformers cannot load this encoder") from error
    missing = [name for name in report["missing_keys"] if not name.startswith(UNUSED)]
    if missing or report["mismatched_keys"] or report["error_msgs"]:
        raise ValueError("the weights do not fit the encoder's class")
    if loading_hf.remembers(model):
        raise ExtractorMissingError("the encoder's `dynamic` positions depend on other texts: use another encoder")
    return model.eval().requires_grad_(False)


def _positions(config: Any) -> float:
    """How many its class says that it has; infinite where positions are relative, and none is the last."""
    sizes = (getattr(config, name, None) for name in POSITIONS)
    return min((each for each in sizes if isinstance(each, int) and each > 0), default=math.inf)
