"""How an attempt's stored parts are loaded: through the job's extractor or its model's tokenizer, if it has one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from core.contracts.dataset_spec import NodeColumns, Task
from core.contracts.extractor import ExtractorRef, Words
from core.contracts.job_spec import LinearModel
from core.errors import PrivacyError
from core.parts.part_files import open_part
from core.parts.part_pieces import joined
from core.parts.part_reader import PartFile
from core.parts.sealed import DataKey
from core.parts.stored_records import StoredPart
from core.parts.table_cells import scaled, standardised
from worker.attempt.confined import cacheable_bytes
from worker.data.joined import AnyPart, join
from worker.data.loaded_parts import MappedPart, block_of, check, load_stored, open_stored
from worker.data.secret_slots import Block
from worker.extractors.extractor_files import ExtractorMissingError
from worker.extractors.features import AT_ONCE, Kept, cached, extracted, pieces_of
from worker.extractors.words import hashed_words
from worker.messages import Part, Shape, Start
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tokens import Tokens
from worker.training import self_test
from worker.training.plan import Plan

FEATURES = "features"  # a folder in the attempt's scratch folder, which its ranks share


@dataclass(frozen=True)
class JoinedParts:
    """Stored parts, joined.

    Attributes:
        blocks: each part's share of a full batch.
    """

    whole: AnyPart
    blocks: tuple[Block, ...]


def loader(start: Start, loading: Callable[[], None], plan: Plan) -> Callable[[Sequence[Part]], JoinedParts]:
    """The function that loads stored parts, and joins them."""
    load = _loader(start, loading, plan)

    def load_all(parts: Sequence[Part]) -> JoinedParts:
        loaded = [load(each) for each in parts]
        blocks = tuple(block_of(each, part.rows) for each, part in zip(loaded, parts, strict=True))
        return JoinedParts(join(loaded), blocks)

    return load_all


def _loader(start: Start, loading: Callable[[], None], plan: Plan) -> Callable[[Part], AnyPart]:
    """The function that loads a stored part, through the job's extractor or its model's tokenizer if it has one.

    A part too large for memory stays on disk.
    """
    model = plan.model
    if isinstance(model, HfTuning) and not model.of_images:
        tokens = Tokens(model.folder, model.spec.max_length, prompts=model.prompts, chat=model.spec.chat)
        return _tokenized(start, loading, plan, tokens)
    if isinstance(start.features, NodeColumns) and start.features.tree is not None and not plan.in_memory:
        raise PrivacyError("a job on a graph whose trees do not fit in memory was admitted")
    extractor, again = extractor_of(start), plan.exceeds(cacheable_bytes())
    if extractor is None:
        load_or_open = load_stored if plan.in_memory else partial(open_stored, again=again)
        shape = start.shape.model_copy(update={"sparse": True}) if plan.sparse_table else start.shape
        return lambda part: load_or_open(part, shape, partial(_declared, start, sparse=plan.sparse_table))
    cache = Kept(Path(tempfile.gettempdir()) / FEATURES, on_disk=not plan.in_memory, again=again)
    if extractor.words is not None:
        return _words(start, loading, extractor, cache)
    if start.extractor_dir is None or extractor.sha256 is None:
        raise ExtractorMissingError("this worker has no models root")
    folder, sha256 = Path(start.extractor_dir), extractor.sha256
    image = extractor.image

    def load(part: Part) -> AnyPart:
        tested = (lambda _: None) if start.data_public else self_test.require_repeating
        stored = _to_extract(part, start)
        sealing = _sealing(cache, part)
        features = extracted(stored, part.sha256, folder, sha256, _cache(part), loading, image, tested, sealing)
        return _as_part(
            features, start.shape.model_copy(update={"features": plan.model.features, "sparse": False}), start.task
        )

    return load


def _words(
    start: Start, loading: Callable[[], None], extractor: ExtractorRef, cache: Kept
) -> Callable[[Part], AnyPart]:
    words, sha256 = extractor.words or Words(), extractor.sha256 or ""
    shape = start.shape.model_copy(update={"features": words.buckets, "sparse": True})

    def load(part: Part) -> AnyPart:
        stored = _to_extract(part, start)
        hashed = hashed_words(stored, part.sha256, sha256, words, _cache(part), loading, _sealing(cache, part))
        return _as_part(hashed, shape, start.task)

    return load


def _tokenized(start: Start, loading: Callable[[], None], plan: Plan, tokens: Tokens) -> Callable[[Part], AnyPart]:
    """Texts are read in pieces, and only their tokens stay: in memory, or in the scratch folder of this attempt."""
    shape = start.shape.model_copy(update={"features": tokens.vocabulary, "sparse": True})
    scratch = Path(tempfile.gettempdir()) / FEATURES
    cache = Kept(on_disk=True, again=plan.exceeds(cacheable_bytes()))

    def load(part: Part) -> AnyPart:
        texts = _to_extract(part, start)

        def made(poll: Callable[[], None]) -> Iterator[StoredPart]:
            for piece in pieces_of(texts, AT_ONCE):
                check(piece, start.shape)
                yield tokens.of_part(piece, poll)

        if plan.in_memory:
            return _as_part(joined(list(made(loading))), shape, start.task)
        cache_name = f"{part.sha256}/tokens"  # of this attempt alone, which has one tokenizer
        return _as_part(cached(texts, cache_name, scratch, made, loading, _sealing(cache, part)), shape, start.task)

    return load


def _cache(part: Part) -> Path:
    if part.cache_dir is None:
        raise PrivacyError("a part whose features are extracted has no cache of its own")
    return Path(part.cache_dir)


def _sealing(cache: Kept, part: Part) -> Kept:
    """Features are sealed as their part is."""
    seal = part.seal
    return replace(cache, seal=None if seal is None else DataKey(bytes.fromhex(seal.key), bytes.fromhex(seal.wrap)))


def _to_extract(part: Part, start: Start) -> StoredPart | PartFile:
    """A part of texts or images: on disk, read in pieces; one of before in memory."""
    file = open_part(part.path, part.sha256, part.key)
    return load_stored(part, start.shape) if file is None else file


def _declared(start: Start, stored: StoredPart, *, sparse: bool = False) -> StoredPart:
    """Declared features of a table's cells, and a target in its declared range."""
    return standardised(scaled(stored, start.features, sparse=sparse), start.task)


def _as_part(stored: StoredPart | PartFile, shape: Shape, task: Task) -> AnyPart:
    """Features with their labels, checked against the public sizes: at once, or as they are read."""

    def checked(stored: StoredPart) -> StoredPart:
        check(stored, shape)
        return standardised(stored, task)

    return MappedPart(stored, checked) if isinstance(stored, PartFile) else checked(stored)


def extractor_of(start: Start) -> ExtractorRef | None:
    return start.spec.model.extractor if isinstance(start.spec.model, LinearModel) else None
