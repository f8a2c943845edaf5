"""Which self-tests this worker's fork server has seen pass.

A kernel's behaviour is a function of the machine, the library, the model, the shapes, the types and the threads. Within
one fork server the machine and the library stay. So the next attempt with the same model, shapes and threads need not
repeat the test. Only attempts on the same data set are believed: a process that was taken over while it read one
owner's data cannot vouch for another owner's job.
"""

from __future__ import annotations

import hashlib
import json

from worker.messages import Start


def tested_key(start: Start, dataset_id: str) -> str:
    """What the self-test of an attempt depends on; all of it is public."""
    spec = start.spec
    facts = {
        "dataset": dataset_id,
        "model": spec.model.model_dump(mode="json"),
        "runtime": spec.runtime.model_dump(mode="json"),
        "engine": spec.clipping.engine if spec.clipping else None,
        "clipping": start.mechanism.training.clipping if start.mechanism else None,
        "optimizer": spec.optimizer.kind,
        "evaluation": spec.evaluation.model_dump(mode="json") if spec.evaluation else None,
        "scores": [each.metric for each in start.mechanism.scores] if start.mechanism else [],
        "shape": start.shape.model_dump(mode="json"),
        "task": start.task.model_dump(mode="json"),
        "features": start.features.model_dump(mode="json"),
        "numerics": start.numerics.model_dump(mode="json") if start.numerics else None,
        "device": start.device,
        "fitted_rows": start.fitted_rows,
        "processes": start.processes,
        "threads": start.threads,
        "gpus": start.gpus,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
