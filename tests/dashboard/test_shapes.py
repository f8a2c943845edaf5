"""A job's page shows what a model of a table learned: to those who may download it, and the audit log knows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable

from sqlalchemy import func, select

from app.db.models import Artifact, AuditEntry
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import XSS, Everything, Scene

AGE = {"columns": ["age"], "places": [["below 30", XSS]], "outputs": ["score of yes"], "values": [[-0.25, 0.25]]}
PAIR = {
    "columns": ["age", "sex"],
    "places": [["below 30", "from 30"], ["f", "m"]],
    "outputs": ["score of yes"],
    "values": [[1.5, -2.5, 0.0, 1.0]],
}


def add_file(scene: Scene, job_id: str, name: str, content: bytes) -> None:
    path = scene.settings.storage_root / "jobs" / job_id / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    stored = str(path.relative_to(scene.settings.storage_root))
    digest = hashlib.sha256(content).hexdigest()
    row = Artifact(job_id=job_id, name=path.name, sha256=digest, size_bytes=len(content), path=stored)
    with scene.db.write() as session:
        session.merge(row)


def test_a_page_shows_functions_of_columns(
    whole: tuple[Scene, Everything], signed_in: Callable[[str], Browser]
) -> None:
    scene, ids = whole
    add_file(
        scene, ids.succeeded, "model.json", json.dumps({"kind": "linear", "shape_functions": [AGE, PAIR]}).encode()
    )
    with scene.db.read() as session:
        of_cards = select(func.count()).select_from(AuditEntry).where(AuditEntry.action == "artifact.downloaded")
        before = session.scalar(of_cards) or 0
    page = signed_in("analyst").get(f"/dashboard/jobs/{ids.succeeded}")
    assert page.status_code == 200 and "What the model learned" in page.text
    assert "what age adds to the score of yes" in page.text.lower() and XSS not in page.text
    (table,) = re.findall(r"<caption>age with sex: score of yes</caption>(.*?)</table>", page.text, re.DOTALL)
    assert re.findall(r'<td class="num">([^<]*)</td>', table) == ["1.5", "-2.5", "0", "1"]
    folded = re.findall(r'<details class="more" id="(?:shape-0|pair-1)-fold"><summary>([^<]*)</summary>', page.text)
    assert folded == ["age", "age with sex: score of yes"], "a table of forty columns is forty lines high"
    with scene.db.read() as session:
        assert session.scalar(of_cards) == before + 1


def test_a_card_of_another_kind_shows_nothing(
    whole: tuple[Scene, Everything], signed_in: Callable[[str], Browser]
) -> None:
    scene, ids = whole
    for content in (b"{}", b"no JSON", json.dumps({"shape_functions": [{"columns": 3}]}).encode()):
        add_file(scene, ids.succeeded, "model.json", content)
        page = signed_in("analyst").get(f"/dashboard/jobs/{ids.succeeded}")
        assert page.status_code == 200 and "What the model learned" not in page.text
