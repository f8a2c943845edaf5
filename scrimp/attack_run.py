"""Runs SACRO-ML's worst-case membership attack. A program for an environment of its own, which imports nothing of us:

    PYTHON -I attack_run.py FOLDER      reads FOLDER/rows.json, writes FOLDER/answer.json

The environment needs `sacroml` alone. Exit code 3: it has none.
"""

from __future__ import annotations

import json
import random
import sys
from importlib import import_module
from pathlib import Path

NO_SACROML = 3
REPETITIONS = 10
SEED = 7
# SACRO-ML's own defaults of the attacker's random forest, with a seed.
FOREST = {"min_samples_split": 20, "min_samples_leaf": 10, "max_depth": 5, "random_state": SEED}


def main(folder: Path) -> int:
    """Attacks the model whose answers are in the folder."""
    try:
        attacks = import_module("sacroml.attacks.worst_case_attack")
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return NO_SACROML
    numpy = import_module("numpy")
    random.seed(SEED)
    numpy.random.seed(SEED)
    rows = json.loads((folder / "rows.json").read_text())
    train, holdout = rows["train"], rows["holdout"]
    attack = attacks.WorstCaseAttack(
        output_dir=str(folder / "outputs"),
        write_report=False,
        n_reps=REPETITIONS,
        reproduce_split=SEED,
        n_dummy_reps=0,
        test_prop=0.5,  # half trains the attacker, half is judged
        include_model_correct_feature=True,
        attack_model_params=FOREST,
        report_individual=True,
    )
    attack.attack_from_preds(
        *(numpy.array(each["probabilities"]) for each in (train, holdout)),
        *(numpy.array(each["correct"], dtype=int) for each in (train, holdout)),
    )
    # Its splits overlap: the first one, which is fixed here, is judged, and of the others the AUC is told.
    first = attack.attack_metrics[0]["individual"]
    answer = {
        "sacroml": str(import_module("sacroml.version").__version__),
        "auc": [float(each["AUC"]) for each in attack.attack_metrics],
        "member": [int(each) for each in first["member"]],
        "score": [float(each) for each in first["member_prob"]],
    }
    (folder / "answer.json").write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
