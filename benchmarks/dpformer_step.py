"""Writes the report of bench_dpformer: tables, the picture, and the conclusions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """The sizes B, M and T."""

    records: int
    items: int
    positions: int

    def __str__(self) -> str:
        return f"B={self.records} M={self.items} T={self.positions}"


PLAIN, LOSS = "non-private", "non-private, our loss layer"
PRIVATE = "private"
HOOKS, HALF = "Opacus, hooks", "Opacus, ghost, untied, half width"
MODES = {"private, Re-Attention (logits)": "logits", "private, Re-Attention (paper)": "paper"}
KINDS = (PLAIN, LOSS, PRIVATE, *MODES, HOOKS, HALF)
COLOURS = dict(zip(KINDS, ("#333333", "#999999", "#4c72b0", "#c44e52", "#dd8452", "#55a868", "#8172b3"), strict=True))
Points = dict[Sizes, dict[str, dict[str, float]]]

TEXT = """\
# DPFormer's step: speed and memory

Made by `python benchmarks/bench_dpformer.py --full`.

Machine: {machine}.

After the paper's Figure 3. The data are a synthetic long-tailed set of MovieLens-1M's size
(`benchmarks/long_tail.py`: 6,040 users, 3,416 items, a million rows). The model is the paper's transformer: d=64, one
head, two blocks, tied, the loss at all positions. Sizes vary around {base}. Numbers are medians over {rounds} rounds
in which all kinds of step take turns in one process, in processor time; ratios are within rounds. Memory is the
largest resident memory in two steps minus what the process held before them, each in a separate process. A batch is
one physical batch here. The service cuts batches into physical ones of at most 256 MiB by its own estimate, so the
number of records of a step does not decide its memory.

* **non-private**: autograd, torch's cross-entropy and SGD. Ratios are relative to this step.
* **non-private, our loss layer**: the same with the private step's loss layer, which makes residuals in place of
  scores and is faster and smaller than torch's.
* **private**: the service's step, with exact clipping (Phantom Clipping), sums over records in float64, keyed noise and
  the update; Re-Attention off, or on in either form.
* **Opacus, hooks**: GradSampleModule on the tied module.
* **Opacus, ghost**: its ghost clipping, which refuses tied parameters, on an untied transformer of half the width.
"""

HEAD = {"speed": "Throughput, of the non-private step's", "mib": "Peak memory in MiB"}


def table(points: Points) -> list[str]:
    """Builds a table of throughput and memory, one row per sizes."""
    lines: list[str] = []
    for measure, head in HEAD.items():
        digits = 2 if measure == "speed" else 0
        lines += ["", f"| {head} | {' | '.join(KINDS)} |", f"|---|{'---|' * len(KINDS)}"]
        for sizes, found in points.items():
            cells = [f"{found[kind][measure]:.{digits}f}" for kind in KINDS]
            if measure == "speed":
                cells[0] = f"{found[PLAIN]['ms']:.0f} ms"
            lines.append(f"| {sizes} | {' | '.join(cells)} |")
    return lines


def write(
    path: Path,
    points: Points,
    sweeps: dict[str, list[Sizes]],
    largest: dict[str, int],
    base: Sizes,
    machine: str,
    rounds: int,
) -> None:
    """Writes the report and its picture. The conclusions are written by hand, in dpformer_step_notes.md."""
    image = path.with_suffix(".png")
    _draw(points, sweeps, largest, base, image)
    rows = ["| The largest B in a process of 4 GiB | | of non-private's |", "|---|---|---|"]
    rows += [f"| {kind} | {n} | {n / largest[PLAIN]:.2f} |" for kind, n in largest.items()]
    notes = Path(__file__).with_name("dpformer_step_notes.md").read_text(encoding="utf-8").rstrip()
    head = TEXT.format(machine=machine, base=base, rounds=rounds)
    lines = [head, f"![Throughput, memory and largest batch]({image.name})", *table(points), "", *rows, "", notes]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _draw(points: Points, sweeps: dict[str, list[Sizes]], largest: dict[str, int], base: Sizes, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(sweeps) + 1, figsize=(15, 6.4), constrained_layout=True)
    for column, (name, sweep) in enumerate(sweeps.items()):
        sizes = [getattr(each, name) for each in sweep]
        for row, measure in enumerate(("speed", "mib")):
            panel = axes[row][column]
            for kind in KINDS:
                values = [points[each][kind][measure] for each in sweep]
                panel.plot(sizes, values, marker="o", markersize=3, label=kind, color=COLOURS[kind])
            panel.set(xscale="log", yscale="log" if measure == "mib" else "linear", xlabel=name)
            panel.set_xticks(sizes, labels=[str(each) for each in sizes])
            panel.minorticks_off()
            panel.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("throughput, of non-private's")
    axes[1][0].set_ylabel("peak memory (MiB)")
    _bars(axes[1][-1], {kind: float(n) for kind, n in largest.items()}, "the largest B in 4 GiB")
    per_second = {kind: 1000 * base.records / points[base][kind]["ms"] for kind in KINDS}
    _bars(axes[0][-1], per_second, f"records a second, {base}")
    axes[0][0].legend(fontsize=6, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(panel: Any, values: dict[str, float], title: str) -> None:
    at = list(range(len(values)))
    panel.barh(at, list(values.values()), color=[COLOURS[kind] for kind in values])
    panel.set_yticks(at, labels=list(values), fontsize=6)
    panel.invert_yaxis()
    panel.bar_label(panel.containers[0], fmt="%.0f", fontsize=6)
    panel.set_title(title, fontsize=8)
