"""Reads files in a process in which opening a pickle, or running code from a file, is seen.

    python -m tests.graphs.hostile FILE…

Prints what each was refused for, one JSON text a line, and last what was seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from core.parts import graph_file, graph_rules
from core.parts.graph_program import UnfitGraphError

WATCHED = ("pickle.find_class", "exec", "compile", "marshal.loads", "os.system", "subprocess.Popen", "socket.connect")


def main(paths: list[str]) -> None:
    seen: list[str] = []

    def watch(event: str, arguments: Any) -> None:
        if event in WATCHED:
            seen.append(event)

    graph_rules.places_of(graph_file.read(Path(paths[0])).program)  # a good one: all modules are imported
    sys.addaudithook(watch)
    for path in paths:
        try:
            graph_rules.places_of(graph_file.read(Path(path)).program)
        except UnfitGraphError as error:
            print(json.dumps(str(error)))
        else:
            print(json.dumps("accepted"))
    torch = [name for name in sys.modules if name.partition(".")[0] in ("torch", "pickle", "_pickle")]
    print(json.dumps({"seen": seen, "loaded": torch}))


if __name__ == "__main__":
    main(sys.argv[1:])
