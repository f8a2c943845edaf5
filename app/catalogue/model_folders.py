"""Hugging Face models of the models root: admission pins a job to a folder's content."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from app.catalogue import graph_files
from app.sandbox.confinement import Policy
from app.sandbox.limited import WorkLimitError, run_limited
from core.contracts.graph import GraphFacts, GraphModel
from core.contracts.hf import HfModel, adapted, size
from core.contracts.job_spec import Model
from core.errors import InvalidRequest
from core.parts import model_folder
from core.parts.model_folder import CONFIG, TEMPLATE, TOKENIZER_CONFIG, ModelFolder, UnfitModelError

LISTED = 20
TEMPLATE_MEMORY, TEMPLATE_CPU_S = 1 << 30, 10
TEMPLATE_TIME_S = 4.0 * TEMPLATE_CPU_S  # wall clock: a busy machine ends a look by it, which says nothing of the folder


def resolved(
    model: Model,
    models_root: Path | None,
    outputs: int,
    *,
    prompts: bool = False,
    uploaded: GraphFacts | None = None,
) -> Model:
    """The model, pinned: content hash, kind and sizes filled in.

    Args:
        outputs: the number of the data set's classes, or 1.
        prompts: its records are prompts and answers.
        uploaded: the facts of the graph that the key uploaded, if the model names one.

    Raises:
        InvalidRequest: the model is missing, cannot be tuned as requested, or differs from the pinned one.
        LimitError: the machine is too busy to look at it.
    """
    if isinstance(model, GraphModel):
        pinned = graph_files.pinned(models_root, model.path, model.facts, uploaded)
        return model.model_copy(update=pinned.model_dump())
    if not isinstance(model, HfModel):
        return model
    folder = _find(models_root, model.path)
    architecture, tensors = folder.architecture, folder.tensors(model, outputs)
    if folder.of_images != (model.image is not None):
        needs = "say how a record's numbers form an image: height, width, channels, layout and input_scale"
        raise InvalidRequest.at("/model/image", needs if folder.of_images else "this model reads texts: leave it out")
    if not folder.of_images and model.max_length > folder.positions:
        raise InvalidRequest.at("/model/max_length", f"this model reads at most {folder.positions} tokens")
    if model.tuning == "bias" and not any(name.endswith(".bias") for name in tensors):
        raise InvalidRequest.at("/model/tuning", "this model has no biases")
    if model.tuning == "lora" and not (architecture.targets or (model.lora and model.lora.targets)):
        raise InvalidRequest.at("/model/lora/targets", "no layers are known by name in this model: name some")
    if model.lora is not None and model.lora.targets is not None:
        layers = {name.rpartition(".")[2] for name in adapted(architecture, model.lora, tensors)}
        if unknown := set(model.lora.targets) - layers:
            raise InvalidRequest.at("/model/lora/targets", f"its blocks have no layer {sorted(unknown)[0]!r}")
        if any(len(tensors[f"{name}.weight"]) != 2 for name in adapted(architecture, model.lora, tensors)):
            raise InvalidRequest.at("/model/lora/targets", "LoRA adapts linear layers only")
    if model.image is not None and folder.image[0] == 1 and model.image.channels == 3:
        raise InvalidRequest.at("/model/image/channels", "this model reads images with one channel")
    if model.chat:
        _check_chat(folder, prompts=prompts)
    facts = {
        "sha256": folder.sha256,
        "architecture": folder.kind,
        "parameters": size(tensors),
        "trained": size(folder.trained(model, outputs)),
        "vocabulary": None if folder.of_images else folder.vocabulary,
        "patches": folder.positions if folder.of_images else None,
        "pass_numbers": folder.pass_numbers(model),
    }
    wrong = next((name for name, fact in facts.items() if getattr(model, name) not in (None, fact)), None)
    if wrong is not None:
        raise InvalidRequest.at(f"/model/{wrong}", f"the model in this folder has {facts[wrong]}: leave this out")
    return model.model_copy(update=facts)


def _check_chat(folder: ModelFolder, *, prompts: bool) -> None:
    if not prompts:
        raise InvalidRequest.at("/model/chat", "this data set declares no `task.prompt`, which a chat template writes")
    refused = _chat_refusal(
        folder.sha256, str(folder.files.get(TEMPLATE, "")), str(folder.files.get(TOKENIZER_CONFIG, ""))
    )
    if refused:
        raise InvalidRequest.at("/model/chat", refused)


@lru_cache(maxsize=256)
def _chat_refusal(_sha256: str, template: str, config: str) -> str:
    """Why the folder's chat template cannot be used; "" if it can. It runs in a process of its own, under limits.

    Raises:
        LimitError: the machine was too busy to end the look. It is not kept.
    """
    try:
        answer = run_limited(
            "core.parts.chat:tried",
            {"template": template, "config": config},
            memory_bytes=TEMPLATE_MEMORY,
            time_s=TEMPLATE_TIME_S,
            cpu_s=TEMPLATE_CPU_S,
            files=Policy(tuple(Path(name) for name in (template, config) if name)),
        )
    except WorkLimitError:
        return f"the model's chat template takes more than {TEMPLATE_CPU_S} s of a processor, or too much memory"
    return str(answer["refused"])


def _find(models_root: Path | None, path: str) -> ModelFolder:
    if models_root is None:
        raise InvalidRequest.at("/model/path", "this service has no models root: an operator sets one")
    try:
        folder = model_folder.read(models_root, path)
    except UnfitModelError as error:
        names = ", ".join(_known(models_root)) or "none"
        raise InvalidRequest.at("/model/path", f"{error}; models here: {names}") from None
    return folder


def _known(models_root: Path) -> list[str]:
    """Folders with a config, at one level or two. Some may hold unsupported kinds."""
    configs = [*models_root.glob(f"*/{CONFIG}"), *models_root.glob(f"*/*/{CONFIG}")]
    return sorted(each.parent.relative_to(models_root).as_posix() for each in configs)[:LISTED]
