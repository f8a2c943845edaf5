"""Texts become tokens, one text at a time: a function of the text and of the model's tokenizer alone."""

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

CHARACTERS = 64  # of a text are read for each token that it may have: a longer one is cut before it is tokenized


class Tokens:
    """A model's tokenizer.json, read by the library `tokenizers`: no code of the folder's is run.

    A text for a language model ends with the model's end of text, where it has one. Of a longer one the first
    `max_length` + 1 tokens are kept, all but the last of which predict the next; for a classifier the tokenizer's own
    marks stay at both ends of `max_length`.

    Raises:
        ModelMissingError: there is no such file, it is no tokenizer, or it has tokens that the model does not have.
    """

    def __init__(self, folder: ModelFolder, max_length: int) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - for jobs that need it

        try:
            self._tokenizer: Any = Tokenizer.from_str(folder.content(TOKENIZER).decode())
        except Exception:  # the library raises nothing narrower
            raise ModelMissingError("the model's tokenizer cannot be read") from None
        self._causal = folder.architecture.task == "language_model"
        self._size, self._vocabulary = max_length + self._causal, folder.vocabulary
        # Looked at here, where nothing is private yet.
        if max(self._tokenizer.get_vocab().values(), default=0) >= self._vocabulary:
            raise ModelMissingError("the model's tokenizer is not that of its embedding")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._size)
        end = folder.config.get("eos_token_id")
        self._end: Any = end[0] if isinstance(end, list) and end else end
        if self._end is not None and not (type(self._end) is int and 0 <= self._end < self._vocabulary):
            raise ModelMissingError("the model's end of text is not among its tokens")

    def ids(self, text: str) -> list[int]:
        """At most `max_length` + 1 of a language model's, `max_length` of a classifier's; at least one.

        Of a text that the tokenizer has no tokens for there are none, and a token that the model does not have is its
        first: an error would tell of the text.
        """
        found: list[int] = []
        try:
            found = self._tokenizer.encode(text[: CHARACTERS * self._size]).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: S110 - the library panics too, which is no Exception
            pass
        if self._causal and self._end is not None and len(found) < self._size:
            found = [*found, self._end]
        return [each if 0 <= each < self._vocabulary else 0 for each in found] or [0]

    def followed(self, text: str) -> tuple[list[int], int | None]:
        """What a language model reads of a text, at most `max_length` tokens and at least one, and the one behind it:
        the text's own next, or its end. None where there is no such one."""
        ids = self.ids(text)
        if len(ids) == 1 or (self._end is None and len(ids) < self._size):
            return ids, None
        return ids[:-1], ids[-1]

    def text(self, token: int) -> str:
        """A token as text."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def of_part(self, stored: StoredPart, poll: Callable[[], None]) -> StoredPart:
        """The part with tokens in place of its texts.

        Args:
            poll: called before each text; may raise to stop.
        """
        if not isinstance(stored.x, Texts):
            raise PrivacyError("a Hugging Face model reads texts")
        found: list[NDArray[np.int32]] = []
        for text in stored.x.texts():
            poll()
            found.append(np.asarray(self.ids(text), dtype=np.int32))
        items = np.concatenate(found) if found else np.zeros(0, dtype=np.int32)
        ends = np.cumsum([len(each) for each in found], dtype=np.int64)
        return replace(stored, x=Sequences(items, ends, self._vocabulary))
