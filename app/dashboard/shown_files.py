"""The files that a job's page shows: the variable of its template, and what reads them."""

from __future__ import annotations

from app.dashboard.answers_page import answers_of
from app.dashboard.shapes import CARD, shapes_of
from app.dashboard.utility_page import utility_of
from core.contracts.kinds import ANSWERS_FILE, UTILITY_FILE

SHOWN = {CARD: ("shapes", shapes_of), ANSWERS_FILE: ("answers", answers_of), UTILITY_FILE: ("utility", utility_of)}
