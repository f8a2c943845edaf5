"""Witnesses: processes elsewhere that cosign checkpoints, and refuse a ledger that lacks what they saw.

The relay sends them each new checkpoint with a proof that it follows from the one that they signed last. With
`SCRIMP_WITNESS_REQUIRED` a job or a charge is admitted only if every witness's newest checkpoint is the newest one
here, and a job runs only if every witness has seen its hold.

Sources: C2SP tlog-witness (the protocol) and tlog-cosignature.
"""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from app.ledger.transparency import notes
from app.ledger.transparency.attestations import NotAuthentic
from app.settings import Settings
from core.errors import TransientError

logger = logging.getLogger(__name__)
TIMEOUT_S = 5.0
LONGEST = 64 * 1024  # bytes of an answer
TRIES = 3
Proof = Callable[[int], list[str]]


class Contradiction(Exception):
    """A witness has signed a history that this ledger lacks: the database was rewound or rewritten."""


class Away(TransientError):
    """A witness does not answer."""


@dataclass(frozen=True)
class Witness:
    """One witness: its address and its key."""

    url: str
    key: notes.WitnessKey

    @classmethod
    def parse(cls, text: str) -> Witness:
        """Reads "URL VERIFIER-KEY". Raises ValueError if it is malformed."""
        url, _, key = text.strip().partition(" ")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"a witness is given as 'URL VERIFIER-KEY', not as {text!r}")
        return cls(url.rstrip("/"), notes.WitnessKey.parse(key))

    def newest(self, dataset_id: str) -> notes.Checkpoint | None:
        """The newest checkpoint that it says it signed, verified; None if it signed none.

        Raises:
            TransientError: it does not answer, or not with what it signed.
        """
        status, text = self._ask("GET", f"/checkpoint/{quote(f'{notes.NAME}/{dataset_id}', safe='')}", None)
        if status == 404:
            return None
        try:
            if status != 200:
                raise NotAuthentic(f"it answered {status}")
            cosigned = notes.cosigned(text, self.key)
        except NotAuthentic as error:
            raise TransientError(f"the witness {self.key.name}: {error}") from None
        if cosigned.dataset != dataset_id:
            raise TransientError(f"the witness {self.key.name} answered with another ledger's checkpoint")
        return cosigned

    def send(self, note: str, proof: Proof) -> str:
        """Has a checkpoint cosigned.

        Args:
            proof: from an earlier size, that this checkpoint follows from it; raises ValueError where none can be.

        Returns:
            The cosignature's line.

        Raises:
            Contradiction: it has signed what does not precede this checkpoint.
            TransientError: it does not answer, or not with a cosignature.
        """
        checkpoint = notes.read(note)
        seen = self.newest(checkpoint.dataset)
        old = 0 if seen is None else seen.size
        for _ in range(TRIES):
            if old > checkpoint.size:
                raise Contradiction(f"the witness {self.key.name} has seen {old} entries")
            path = proof(old) if old else []
            body = "\n".join([f"old {old}", *path, "", note])
            status, text = self._ask("POST", "/add-checkpoint", body)
            if status == 409 and text.strip().isdecimal():
                old = int(text)  # another relay was faster
                continue
            if status == 422:
                raise Contradiction(f"the witness {self.key.name} has seen another history of {old} entries")
            if status != 200:
                break
            try:
                notes.cosigned(note + text, self.key)
            except NotAuthentic:
                break
            return text
        raise TransientError(f"the witness {self.key.name} did not cosign")

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, parts.path + path, None if body is None else body.encode())
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST).decode()
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            raise Away(f"the witness {self.key.name} does not answer: {type(error).__name__}") from None
        finally:
            connection.close()


def configured(settings: Settings) -> list[Witness]:
    """The witnesses in the settings. Raises ValueError if one is malformed."""
    return [Witness.parse(each) for each in settings.witnesses]


def required(settings: Settings) -> tuple[Witness, ...]:
    """The witnesses without which nothing is admitted.

    Raises:
        ValueError: one is malformed, or a witness is required and none is given.
    """
    if not settings.witness_required:
        return ()
    witnesses = tuple(configured(settings))
    if not witnesses:
        raise ValueError("SCRIMP_WITNESS_REQUIRED is set, and SCRIMP_WITNESSES names none")
    return witnesses
