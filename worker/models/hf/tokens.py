"""Turns texts into tokens, one text at a time: a function of the text and the model's tokenizer alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import PrivacyError
from core.parts.chat import ChatTemplate
from core.parts.model_folder import TOKENIZER, ModelFolder, UnfitModelError
from core.parts.stored_records import Sequences, StoredPart, Texts
from worker.models.hf.hf_loading import ModelMissingError

CHARACTERS = 64  # read per token that a text may have: longer texts are cut before they are tokenized


class Tokens:
    """A model's tokenizer.json, read by the library `tokenizers`: no code from the folder runs.

    A language model's text ends with the model's end of text, if it has one. The first `max_length` + 1 tokens of a
    longer text are kept; all but the last predict the next token. For a classifier the tokenizer's own marks stay at
    both ends of `max_length` tokens.

    With prompts, a record's tokens are those of its prompt, of its answer and of the end of text, cut as any text.

    Args:
        prompts: records are a prompt and an answer.
        chat: the folder's template writes them.

    Attributes:
        vocabulary: how many tokens the model has.

    Raises:
        ModelMissingError: the file is missing, is not a tokenizer, or has tokens that the model lacks; or the folder's
            chat template cannot be used.
    """

    def __init__(self, folder: ModelFolder, max_length: int, *, prompts: bool = False, chat: bool = False) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - for jobs that need it

        try:
            self._tokenizer: Any = Tokenizer.from_str(folder.content(TOKENIZER).decode())
        except Exception:  # the library raises nothing narrower
            raise ModelMissingError("the model's tokenizer cannot be read") from None
        self._causal = folder.architecture.task == "language_model"
        self._size, self.vocabulary = max_length + self._causal, folder.vocabulary
        # Checked here, where nothing is private yet.
        if max(self._tokenizer.get_vocab().values(), default=0) >= self.vocabulary:
            raise ModelMissingError("the model's tokenizer has tokens that its embedding lacks")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._size)
        end = folder.config.get("eos_token_id")
        self._end: Any = end[0] if isinstance(end, list) and end else end
        if self._end is not None and not (type(self._end) is int and 0 <= self._end < self.vocabulary):
            raise ModelMissingError("the model's end of text is not among its tokens")
        self._prompts = prompts
        try:
            self._chat = ChatTemplate.of(folder) if chat else None
        except (OSError, UnfitModelError):
            raise ModelMissingError("the model's chat template cannot be used") from None

    def ids(self, text: str) -> list[int]:
        """At most `max_length` + 1 ids for a language model, `max_length` for a classifier; at least one.

        A text that the tokenizer cannot encode counts as empty, and a token that the model lacks becomes token 0: an
        error would reveal something about the text.
        """
        return self._known(self._ended(self._encoded(text))) or [0]

    def answered(self, prompt: str, answer: str) -> tuple[list[int], int]:
        """The ids of a prompt and its answer, at most `max_length` + 1 and at least one; and how many are the prompt's.

        A record whose prompt leaves no room, or that the template cannot write, has no token to predict: its loss is 0.
        """
        longest = CHARACTERS * self._size
        prompt, answer = prompt[:longest], answer[:longest]
        if self._chat is not None:
            try:
                text_before, behind = self._chat.written(prompt, answer)
            except UnfitModelError:
                return [0], 1
            first, second = (self._encoded(each, special=False) for each in (text_before, behind))
            ids = [*first, *second]
        else:
            first = self._encoded(prompt)
            ids = self._ended([*first, *self._encoded(answer, special=False)])
        vocabulary_ids = self._known(ids[: self._size])
        return (vocabulary_ids, min(len(first), len(vocabulary_ids))) if vocabulary_ids else ([0], 1)

    def _encoded(self, text: str, *, special: bool = True) -> list[int]:
        """The library's ids; `special`: with the tokenizer's own marks."""
        ids: list[int] = []
        try:
            ids = self._tokenizer.encode(text[: CHARACTERS * self._size], add_special_tokens=special).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: S110 - the library can panic, which is not an Exception
            pass
        return ids

    def _ended(self, ids: list[int]) -> list[int]:
        """With the end of text, if the model has one and there is room."""
        ends = self._causal and self._end is not None and len(ids) < self._size
        return [*ids, self._end] if ends else ids

    def _known(self, ids: list[int]) -> list[int]:
        return [each if 0 <= each < self.vocabulary else 0 for each in ids]

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
        rows: list[NDArray[np.int32]] = []
        y = stored.y.copy()
        for at, text in enumerate(stored.x.texts()):
            poll()
            if self._prompts:
                ids, y[at] = self.answered(*_split(text, int(stored.y[at])))
            else:
                ids = self.ids(text)
            rows.append(np.asarray(ids, dtype=np.int32))
        items = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
        ends = np.cumsum([len(each) for each in rows], dtype=np.int64)
        return replace(stored, x=Sequences(items, ends, self.vocabulary), y=y)


def _split(text: str, size: int) -> tuple[str, str]:
    """The first `size` bytes of a text's UTF-8, a prompt's, and the rest."""
    encoded = text.encode()
    return encoded[:size].decode(), encoded[size:].decode()
