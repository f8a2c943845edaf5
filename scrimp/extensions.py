"""What the service's distribution adds to the client if both are installed.

The client imports neither `app` nor `worker`: an installation of the client alone lacks them. They announce their
parts as entry points of the group `scrimp.extensions`:

    commands     register(app): the commands that run the service
    load_model   load(folder, models_root): models that need more than numpy
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

GROUP = "scrimp.extensions"
SERVER = "pip install scrimp"


@cache
def extension(name: str) -> Any:
    """The part of this name; None if the service's distribution is not installed.

    Raises:
        ImportError: it is installed, but a library that it needs is not.
    """
    entry_point = next(iter(entry_points(group=GROUP, name=name)), None)
    return None if entry_point is None else entry_point.load()
