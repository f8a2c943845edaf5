"""/dashboard/signing-keys: which key signed from when until when, and which is revoked, as a time line.

Under a root it is what the root signed, as GET /v1/signing-keys/history sends it; without one, what relays published.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.db.database import Database
from app.db.models import SigningKey
from app.ledger.root_history import Period, history_of
from app.secrets import SecretError
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Page
from core.errors import Unavailable
from core.ids import now

router = APIRouter(prefix=f"{HOME}/signing-keys", include_in_schema=False, route_class=PageRoute)
WIDTH, LEAST = 1000.0, 4.0  # of the picture, and of a bar in it


@dataclass(frozen=True)
class Bar:
    """A key in the picture: where its time begins and how long it is; and the same of the time that is not trusted."""

    period: Period
    x: float
    width: float
    revoked_x: float | None
    revoked_width: float

    @property
    def id(self) -> str:
        """How certificates' hints and `GET /v1/signing-keys` begin: 16 digits of the key's SHA-256."""
        return hashlib.sha256(base64.b64decode(self.period.public_key)).hexdigest()[:16]


@router.get("")
@Page("every key")
def signing_keys_page(request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """Shows the history of the signing keys."""
    try:
        history = history_of(settings)
    except SecretError as error:
        raise Unavailable(error.message) from None
    at = now()
    periods = published(db) if history is None else history.keys
    bars, root = drawn(periods, at), settings.signing_root
    return render(request, "signing_keys.html", viewer=viewer, bars=bars, history=history, root=root, at=at)


def published(db: Database) -> list[Period]:
    """The keys that a relay published, each until the next one; none is signed for."""
    with db.read() as session:
        rows = session.scalars(select(SigningKey).order_by(SigningKey.first_used_at, SigningKey.id)).all()
    ends = [later.first_used_at for _, later in pairwise(rows)]
    return [
        Period.model_validate(
            {"public_key": row.public_key, "from": row.first_used_at, "until": until, "revoked_from": None}
        )
        for row, until in zip(rows, [*ends, None], strict=bool(rows))
    ]


def drawn(periods: Sequence[Period], at: datetime) -> list[Bar]:
    """The bars, the newest key first, from the first key's beginning until now, or until the last end that is known."""
    if not periods:
        return []
    begin = min(each.start for each in periods)
    last = max(at, *(each.until or each.start for each in periods))
    scale = WIDTH / max(1.0, (last - begin).total_seconds())

    def place(when: datetime) -> float:
        return min(max((when - begin).total_seconds() * scale, 0.0), WIDTH - LEAST)

    def bar(period: Period) -> Bar:
        x, end_x = place(period.start), ((period.until or at) - begin).total_seconds() * scale
        revoked = None if period.revoked_from is None else max(x, place(period.revoked_from))
        width = max(LEAST, end_x - x)
        return Bar(period, x, width, revoked, 0.0 if revoked is None else max(LEAST, x + width - revoked))

    return [bar(each) for each in reversed(periods)]
