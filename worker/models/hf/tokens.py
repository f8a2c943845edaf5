"""Turns texts into tokens, one text at a time: a function of the text and the model's tokenizer alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import PrivacyError
from app.formats.model_folder import TOKENIZER, ModelFolder
from app.formats.stored import Sequences, StoredPart, Texts
from worker.models.hf.loading import ModelMissingError

CHARACTERS = 64  # read per token that a text may have: longer texts are cut before they are tokenized


class Tokens:
    """A model's tokenizer.json, read by the library `tokenizers`: no code from the folder runs.

    A language model's text ends with the model's end of text, if it has one. The first `max_length` + 1 tokens of a
    longer text are kept; all but the last predict the next token. For a classifier the tokenizer's own marks stay at
    both ends of `max_length` tokens.

    Raises:
        ModelMissingError: the file is missing, is not a tokenizer, or has tokens that the model lacks.
    """

    def __init__(self, folder: ModelFolder, max_length: int) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - for jobs that need it

        try:
            self._tokenizer: Any = Tokenizer.from_str(folder.content(TOKENIZER).decode())
        except Exception:  # the library raises nothing narrower
            raise ModelMissingError("the model's tokenizer cannot be read") from None
        self._causal = folder.architecture.task == "language_model"
        self._size, self._vocabulary = max_length + self._causal, folder.vocabulary
        # Checked here, where nothing is private yet.
        if max(self._tokenizer.get_vocab().values(), default=0) >= self._vocabulary:
            raise ModelMissingError("the model's tokenizer has tokens that its embedding lacks")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._size)
        end = folder.config.get("eos_token_id")
        self._end: Any = end[0] if isinstance(end, list) and end else end
        if self._end is not None and not (type(self._end) is int and 0 <= self._end < self._vocabulary):
            raise ModelMissingError("the model's end of text is not among its tokens")

    def ids(self, text: str) -> list[int]:
        """At most `max_length` + 1 ids for a language model, `max_length` for a classifier; at least one.

        A text that the tokenizer cannot encode counts as empty, and a token that the model lacks becomes token 0: an
        error would reveal something about the text.
        """
        found: list[int] = []
        try:
            found = self._tokenizer.encode(text[: CHARACTERS * self._size]).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: S110 - the library can panic, which is not an Exception
            pass
        if self._causal and self._end is not None and len(found) < self._size:
            found = [*found, self._end]
        return [each if 0 <= each < self._vocabulary else 0 for each in found] or [0]

    def followed(self, text: str) -> tuple[list[int], int | None]:
        """The tokens that a language model reads, 1 to `max_length`, and the next one: the text's own, or its end.

        The next one is None if there is none.
        """
        ids = self.ids(text)
        if len(ids) == 1 or (self._end is None and len(ids) < self._size):
            return ids, None
        return ids[:-1], ids[-1]

    def text(self, token: int) -> str:
        """A token as text."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def of_part(self, stored: StoredPart, poll: Callable[[], None]) -> StoredPart:
        """The part with tokens instead of texts.

        Args:
            poll: called before each text; may raise to stop.
        """
        if not isinstance(stored.x, Texts):
            raise PrivacyError("a Hugging Face model needs texts")
        found: list[NDArray[np.int32]] = []
        for text in stored.x.texts():
            poll()
            found.append(np.asarray(self.ids(text), dtype=np.int32))
        items = np.concatenate(found) if found else np.zeros(0, dtype=np.int32)
        ends = np.cumsum([len(each) for each in found], dtype=np.int64)
        return replace(stored, x=Sequences(items, ends, self._vocabulary))
