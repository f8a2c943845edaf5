"""Parses the files of a registration, or of a block, in a limited process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.datasets import hashes, resumable, storage
from app.datasets.parsing import Parsers
from app.datasets.resolving import wants_holdout_file
from app.datasets.sizes import declared_slots
from app.formats.asked import ContentKeys, OpeningKeys, ParsedFiles, ParseRequest, SealedPart, SealKey
from app.sandbox.limited import Watch
from app.secrets import load_secrets
from app.settings import Settings
from app.storage.seals import Seals
from core.contracts.dataset_spec import DatasetSpec
from core.errors import Unavailable
from core.parts.damage import DataDamagedError


@dataclass(frozen=True)
class After:
    """The blocks of a data set before one that is read.

    Attributes:
        family: their ids; empty for the first, and where people are not counted.
        people: their files of people, whose records count; empty: no unit of them may come again.
    """

    family: tuple[str, ...] = ()
    people: tuple[SealedPart, ...] = ()


@dataclass(frozen=True)
class Content:
    """A parsed file.

    Attributes:
        folder: its parts, staged.
        parsed: as app.formats.parse answers it; its `contents` are under the keys in use.
        known_as: every name that its contents ever had.
        chain: the keys under which they are named.
        after: the earlier blocks that it was read after.
    """

    folder: Path
    parsed: ParsedFiles
    known_as: set[str]
    chain: Sequence[bytes]
    after: After


def read(
    settings: Settings,
    parsers: Parsers,
    spec: DatasetSpec,
    folder: Path,
    watch: Watch | None = None,
    after: After = After(),
    *,
    earlier_hashes: bool,
) -> Content:
    """Parses the files of a folder into parts under it. Raises as `Parsers.parse`.

    Args:
        spec: the resolved declaration.
        earlier_hashes: what `duplicates.compares_earlier_hashes` says of the owner.
    """
    output = folder / storage.PARTS
    output.mkdir(mode=0o700)
    chain = load_secrets(settings, "data_hmac_key")
    also = {"holdout_file": wants_holdout_file(spec), "edges_file": spec.has_edges_file}
    seals, wanted = Seals(settings), ("file", *(name for name, is_there in also.items() if is_there))
    files = {name: storage.arrived(folder, name) for name in wanted}
    opens, seal = {name: storage.key_of(seals, file) for name, file in files.items()}, seals.new()
    request = ParseRequest(
        spec=spec,
        file=str(files["file"].resolve()),
        holdout_file=str(files["holdout_file"].resolve()) if "holdout_file" in files else None,
        edges_file=str(files["edges_file"].resolve()) if "edges_file" in files else None,
        opens=OpeningKeys(**{name: None if key is None else key.hex() for name, key in opens.items()}),
        seal=None if seal is None else SealKey(key=seal.key.hex(), wrap=seal.wrap.hex()),
        output_dir=str(output.resolve()),
        keys=content_keys(chain),
        slots=declared_slots(spec),
        place=len(after.family),
        earlier=after.people,
        max_unpacked_bytes=settings.max_unpacked_bytes,
        max_unpack_ratio=settings.max_unpack_ratio,
        reserve_bytes=resumable.room_of(settings).set_aside,
        earlier_hashes=earlier_hashes,
    )
    try:
        parsed = parsers.parse(request, watch)
    except DataDamagedError as error:
        raise Unavailable(f"{error}: without them no block can be compared") from None
    known_as = {name for each in parsed.contents for name in hashes.every(each.hmac, chain)}
    contents = tuple(each.model_copy(update={"hmac": hashes.nested(each.hmac, chain)}) for each in parsed.contents)
    return Content(output, parsed.model_copy(update={"contents": contents}), known_as, chain, after)


def content_keys(chain: Sequence[bytes]) -> ContentKeys:
    """Keys for the split and for content hashes: the parsing process gets nothing else of the service's data key.

    Args:
        chain: the data keys, the one in use first. That key splits the data. Content is hashed under the oldest key,
            and then under its successors (app.datasets.hashes).
    """

    def key(purpose: str, secret: bytes) -> str:
        return HKDF(SHA256(), 32, salt=None, info=f"scrimp/v1/data/{purpose}".encode()).derive(secret).hex()

    return ContentKeys(split=key("split", chain[0]), content=key("content", chain[-1]))
