"""A job's page shows how near synthetic rows are to the noisy tables: to those who may download it, and the audit log
knows."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlalchemy import func, select

from app.db.models import AuditEntry
from core.synthetic.utility_file import ColumnUtility, PairUtility, UtilityFile
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import XSS, Everything, Scene
from tests.dashboard.test_shapes import add_file

FILE = UtilityFile(
    rows=1200,
    records=990.5,
    target="ill",
    one_way=(
        ColumnUtility(column="ill", error=0.01234, noise=0.02, cells=()),
        ColumnUtility(column=XSS, error=0.05, noise=0.004, cells=()),
    ),
    two_way=(PairUtility(columns=("ill", XSS), error=0.0711, noise=0.063),),
)
TITLE = "How near the rows are"


def test_a_page_shows_errors_of_columns_and_pairs(
    whole: tuple[Scene, Everything], signed_in: Callable[[str], Browser]
) -> None:
    scene, ids = whole
    add_file(scene, ids.succeeded, "utility.json", FILE.model_dump_json().encode())
    shown = select(func.count()).select_from(AuditEntry).where(AuditEntry.action == "artifact.downloaded")
    with scene.db.read() as session:
        before = session.scalar(shown) or 0
    page = signed_in("analyst").get(f"/dashboard/jobs/{ids.succeeded}")
    assert page.status_code == 200 and TITLE in page.text and XSS not in page.text
    assert "1\u202f200 rows against" in page.text
    assert numbers(page.text, "Errors of columns") == ["0.05", "0.004", "0.012", "0.02"]
    assert numbers(page.text, "Errors of pairs of columns") == ["0.071", "0.063"] and "1 pair of columns" in page.text
    with scene.db.read() as session:
        assert session.scalar(shown) == before + 1


def numbers(page: str, name: str) -> list[str]:
    (table,) = re.findall(rf'aria-label="{name}">(.*?)</table>', page, re.DOTALL)
    return re.findall(r'<td class="num">([^<]*)</td>', table)


def test_a_file_that_is_no_utility_shows_nothing(
    whole: tuple[Scene, Everything], signed_in: Callable[[str], Browser]
) -> None:
    scene, ids = whole
    for content in (b"{}", b"no JSON", b'{"version": 2}'):
        add_file(scene, ids.succeeded, "utility.json", content)
        page = signed_in("analyst").get(f"/dashboard/jobs/{ids.succeeded}")
        assert page.status_code == 200 and TITLE not in page.text
