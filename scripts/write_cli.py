"""Writes docs/cli.md from the command line's own help: `make openapi`. Tests compare the page with the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

from scrimp.cli import app
from scrimp.cli.command_session import EXIT_CODES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
CONNECTION = {"--url", "--key", "--json"}  # options of each command that calls a service
HEAD = """# The command line

`scrimp` is a thin client of the REST API. Every command has `--help`; `make openapi` writes this page from it.
Commands that call a service also have `--url`, `--key` and `--json`, which prints the service's answer; the problem
document of a refusal goes to standard error. Sessions with their answers: the paths of an [owner](paths/owner.md),
an [analyst](paths/analyst.md), an [operator](paths/operator.md) and an [auditor](paths/auditor.md).

`pip install dist/scrimp_client-*.whl` (after `make wheel`; no registry has it yet) installs the client alone: 19
packages, 31 MiB, without numpy. `'scrimp-client[verify]'` adds what checks signatures, `[audit]` what recomputes an
ε (74 MiB more), `[attack]` what `scrimp audit privacy` needs. A command that lacks a library names it. The commands
that run the service (`serve`, `worker`, `restore`, `secrets` …) come with `scrimp`. `eval "$(scrimp completion
bash)"` in ~/.bashrc completes commands; likewise for zsh; `scrimp completion fish >
~/.config/fish/completions/scrimp.fish`.

| | from |
|---|---|
| address | `--url`, else `SCRIMP_URL`, else the local service's (`SCRIMP_HOST`, `SCRIMP_PORT`) |
| key | `--key`, else `SCRIMP_KEY`, else `HOME/admin.key`, which is sent to addresses of this machine only |

"""
NOTES = """
A JOB is a job's id, or its name if no other job has it. A DATASET likewise. In the place of a key's id, admins may
give its name.

## Prices and jobs

* `scrimp train` chooses model, optimizer, steps, clipping norm, rate and scores
  ([choosing.md](choosing.md#a-whole-job)). A specification's numbers that were `auto` are what admission chose.
  `scrimp jobs retry` names the new job with `#2`.
* `scrimp predict` takes `{"records": ["a fine film"], "top": 2}`, or your own `.csv`, `.jsonl` or `.parquet`. More
  than 1000 records are sent a thousand at a time; if a later thousand fails, it says from which record on.
* The ± of a score is the standard deviation of the privacy noise. The hold-out is a sample, which adds √(a(1−a)/n):
  0.005 for 5,000 reviews.
* A job that no longer fits is refused with exit code 3. The unit is that of the filter (here μ², of Gaussian DP).
  The largest ε that fits is rounded down, so a job with exactly that ε fits:

```
$ scrimp jobs submit examples/imdb-epsilon-3.json
╭─ The privacy budget does not cover this job ─╮
│ account  asked      left                     │
│ train    0.5171 μ²  0.4091 μ²  does not fit  │
│ holdout  0.025 μ²   0.8055 μ²  fits          │
│ largest ε that fits  2.627                   │
│ Nothing was charged.                         │
╰──────────────────────────────────────────────╯
```

## The service

* `scrimp serve` restarts a process that dies. Ctrl-C or SIGTERM stops all within seconds; a running job goes on at
  the next start. `kill -9` leaves no process behind. Logs are in `HOME/logs`, rotated at 16 MiB. One service at a
  time can use a home: a second one exits with 1 and names the first.
* After `scrimp prepare`, `scrimp api`, `scrimp relay` and `scrimp worker` start each process separately. A GPU that
  is named to a worker but not there is an error ([production.md](production.md#gpus)).
* In `scrimp ledger show` █ is spent, ▒ held by unfinished jobs, ░ left. Shares add up; ε's do not ([what is
  spent](duties.md#what-is-spent)).
"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """The page: what holds for all commands, then those without a group, then each group."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    groups = {name: command for name, command in root.commands.items() if isinstance(command, TyperGroup)}
    single = {name: command for name, command in root.commands.items() if name not in groups}
    parts = [
        HEAD,
        "| exit code | |\n|---|---|\n",
        codes,
        NOTES,
        "\n## Commands\n\nAn option's default is behind it.\n\n",
    ]
    parts += ["| command | what it does |\n|---|---|\n", *rows(single, "scrimp")]
    for name, group in groups.items():
        parts += [f"\n### {name}\n\n{group.help}\n\n", "| command | what it does |\n|---|---|\n"]
        parts += rows(group.commands, f"scrimp {name}")
    return "".join(parts)


def rows(commands: Mapping[str, Any], typed: str) -> Iterator[str]:
    """A row for each command, with those of groups below."""
    for name, command in commands.items():
        if isinstance(command, TyperGroup):
            yield from rows(command.commands, f"{typed} {name}")
        elif isinstance(command, TyperCommand):
            text = " ".join((command.help or "").split())
            yield f"| `{usage(command, f'{typed} {name}')}` | {text}{options(command)} |\n"


def usage(command: TyperCommand, typed: str) -> str:
    """A command with its arguments."""
    names = [each.name or "" for each in command.params if isinstance(each, TyperArgument)]
    return " ".join([typed, *(name.upper() for name in names)])


def options(command: TyperCommand) -> str:
    """Each option of a command with its default and its help, but for those of the connection."""
    texts = []
    for each in command.params:
        help_text = " ".join((getattr(each, "help", None) or "").split())
        if not isinstance(each, TyperArgument) and not CONNECTION & set(each.opts):
            names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
            is_value = isinstance(each.default, str | int | float) and not isinstance(each.default, bool)
            default = f" (`{each.default}`)" if is_value and each.default != "" else ""
            texts.append(f"<br>{names}{default}: {help_text}")
    return "".join(texts).replace("|", "\\|")


if __name__ == "__main__":
    main()
