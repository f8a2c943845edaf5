"""BERT's tokenizer: splits into words and punctuation, then into the longest known pieces."""

from __future__ import annotations

import unicodedata

MAX_WORD_CHARACTERS = 100
CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B81F), (0x2B820, 0x2CEAF))
CJK_COMPATIBILITY = ((0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


class WordPiece:
    r"""Ids of a text's pieces, between [CLS] and [SEP].

    Args:
        vocabulary: vocab.txt, one piece per line.
        lowercase: lower-cases texts and removes accents.
        max_tokens: the most ids, including the two around the text.

    Source: Devlin et al. 2019, "BERT"; the reference's tokenization.py.

    >>> WordPiece("[UNK]\n[CLS]\n[SEP]\ncat\n##s", lowercase=True, max_tokens=8).ids("Cats!")
    [1, 3, 4, 0, 2]
    """

    def __init__(self, vocabulary: str, *, lowercase: bool, max_tokens: int) -> None:
        pieces = vocabulary.rstrip("\n").split("\n")
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._lowercase, self._max_tokens = lowercase, max_tokens
        self._unknown, self._cls, self._sep = (self._ids[name] for name in ("[UNK]", "[CLS]", "[SEP]"))

    @property
    def words(self) -> list[str]:
        """The pieces that are words by themselves."""
        return [piece for piece in self._ids if not piece.startswith(("[", "##"))] or ["a"]

    def ids(self, text: str) -> list[int]:
        """The ids of a text's pieces, at most `max_tokens`."""
        found: list[int] = []
        for word in self._words(text):
            if len(found) >= self._max_tokens - 2:
                break
            found += self._pieces(word)
        return [self._cls, *found[: self._max_tokens - 2], self._sep]

    def _words(self, text: str) -> list[str]:
        spaced = "".join(_spaced(c) for c in text)
        if self._lowercase:
            spaced = "".join(c for c in unicodedata.normalize("NFD", spaced.lower()) if unicodedata.category(c) != "Mn")
        return "".join(f" {c} " if _is_punctuation(c) else c for c in spaced).split()

    def _pieces(self, word: str) -> list[int]:
        """Greedily takes the longest piece from the left; one unknown id if a part of the word has no piece."""
        if len(word) > MAX_WORD_CHARACTERS:
            return [self._unknown]
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._ids), None)
            if end is None:
                return [self._unknown]
            found.append(self._ids[prefix + word[start:end]])
            start = end
        return found


def _spaced(c: str) -> str:
    code = ord(c)
    if c in "\t\n\r" or unicodedata.category(c) == "Zs":
        return " "
    if code in (0, 0xFFFD) or unicodedata.category(c).startswith("C"):
        return ""
    return f" {c} " if any(low <= code <= high for low, high in CJK + CJK_COMPATIBILITY) else c


def _is_punctuation(c: str) -> bool:
    return (c.isascii() and c.isprintable() and not c.isalnum() and c != " ") or unicodedata.category(c).startswith("P")
