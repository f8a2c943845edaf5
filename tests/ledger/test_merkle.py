"""The tree against RFC 6962's definition, its published vectors, and the reader's own checks."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from app.ledger.transparency import notes
from app.ledger.transparency.attestations import NotAuthentic
from app.ledger.transparency.ledger_tree import TILE, Tree
from core.merkle import Frontier, leaf
from scrimp.transparency import COSIGNATURE, Key, Note, NotProven, follows, includes, root_of, signed_bytes

# The tests of Certificate Transparency's reference implementation: eight leaves, and the roots of 1 … 8 of them.
INPUTS = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
# The example of Go's package note.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
MESSAGE = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
SIGNED = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
# The example of C2SP's tlog-cosignature.
BEHIND_THE_SOFA = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "\u2014 example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)


def tree(leaves: Sequence[bytes], tiles: dict[int, bytes] | None = None) -> Tree:
    return Tree(lambda low, high: leaves[low:high], tiles or {})


def test_the_published_roots() -> None:
    leaves = [leaf(bytes.fromhex(each)) for each in INPUTS]
    grown = Frontier()
    for size, root in enumerate(ROOTS, start=1):
        grown.add(leaves[size - 1])
        assert tree(leaves).root(size).hex() == grown.root().hex() == root_of(leaves[:size]).hex() == root
    assert Frontier().root() == root_of([])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 33, 64, 100])
def test_each_proof_of_a_small_tree_holds_and_no_other(size: int) -> None:
    leaves = [leaf(bytes([k])) for k in range(size)]
    of, root = tree(leaves), root_of(leaves)
    for index in range(size):
        path = of.inclusion(index, size)
        assert includes(index, size, leaves[index], path, root)
        assert not includes(index, size, leaves[index - 1], path, root) or size == 1
        for at in range(len(path)):
            flipped = [*path[:at], bytes([path[at][0] ^ 1]) + path[at][1:], *path[at + 1 :]]
            assert not includes(index, size, leaves[index], flipped, root)
        assert not includes(index, size, leaves[index], [*path, root], root)
    for old in range(1, size + 1):
        path, before = of.consistency(old, size), root_of(leaves[:old])
        assert follows(old, before, size, root, path)
        assert not follows(old, root_of([*leaves[: old - 1], leaf(b"another")]), size, root, path)
        assert not follows(old, before, size, leaf(b"another"), path)
        for at in range(len(path)):
            flipped = [*path[:at], bytes([path[at][0] ^ 1]) + path[at][1:], *path[at + 1 :]]
            assert not follows(old, before, size, root, flipped)


def test_a_large_tree_reads_few_leaves() -> None:
    """Of 10,000 leaves at most two tiles are read, once the whole tiles' roots are known."""
    leaves = [leaf(k.to_bytes(4)) for k in range(10_000)]
    first = tree(leaves)
    root = first.root(len(leaves))
    assert root == root_of(leaves) and len(first.made) == len(leaves) // TILE
    asked: list[int] = []

    def read(low: int, high: int) -> Sequence[bytes]:
        asked.append(high - low)
        return leaves[low:high]  # the last tile is not whole

    for index in (0, 255, 256, 5_000, 9_983, 9_984, 9_999):
        asked.clear()
        of = Tree(read, first.made)
        assert of.root(len(leaves)) == root and includes(
            index, len(leaves), leaves[index], of.inclusion(index, len(leaves)), root
        )
        assert sum(asked) <= 2 * TILE and not of.made
    for old in (1, 256, 257, 5_000, 9_999):
        asked.clear()
        of = Tree(read, first.made)
        assert follows(old, root_of(leaves[:old]), len(leaves), root, of.consistency(old, len(leaves)))
        assert sum(asked) <= 2 * TILE


def test_there_is_no_proof_of_what_is_not_there() -> None:
    of = tree([leaf(b"")] * 3)
    for index in (-1, 3):
        with pytest.raises(ValueError, match="no leaf"):
            of.inclusion(index, 3)
    for old in (0, 4):
        with pytest.raises(ValueError, match="does not follow"):
            of.consistency(old, 3)


def test_keys_and_signatures_are_those_of_signed_notes() -> None:
    peter = Key.parse(PETER)
    assert str(peter) == PETER
    blob = base64.b64decode(SIGNED)
    assert blob[:4] == peter.id
    Ed25519PublicKey.from_public_bytes(peter.raw).verify(blob[4:], signed_bytes(MESSAGE, peter.kind, 0))
    with pytest.raises(NotProven):
        Key.parse(PETER.replace("c74f20a3", "c74f20a4"))
    sofa = Note.parse(BEHIND_THE_SOFA)
    assert (sofa.origin, sofa.size, len(sofa.root), len(sofa.signatures)) == (
        "example.com/behind-the-sofa",
        20_852_163,
        32,
        1,
    )


def test_what_the_service_signs_the_reader_opens() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    said = notes.Checkpoint("ds_1", 7, leaf(b"root"))
    note = notes.sign(said, key)
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    assert notes.opened(note, public) == said
    found, reader = Note.parse(note), Key.parse(notes.verifier_key(key.public_key()))
    assert (found.origin, found.size, found.root) == ("scrimp.example.org/ledger/ds_1", 7, said.root)
    assert found.signed_by(reader) == 0
    assert found.signed_by(Key.parse(notes.verifier_key(other.public_key()))) is None
    assert found.signed_by(Key(reader.name, COSIGNATURE, reader.raw)) is None
    for at in range(len(note.encode())):
        flipped = bytearray(note.encode())
        flipped[at] ^= 1
        text = bytes(flipped).decode(errors="replace")
        with pytest.raises(NotAuthentic):
            notes.opened(text, public)
        with pytest.raises(NotProven):
            require_signed(text, reader)


def require_signed(text: str, key: Key) -> None:
    if Note.parse(text).signed_by(key) is None:
        raise NotProven("not signed")
