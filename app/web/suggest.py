"""Did you mean: the member or value that a request most likely wanted. Only names of the contract are suggested."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

# What other libraries call things. An alias counts where its meaning exists.
ALIASES: dict[str, tuple[str, ...]] = {
    "adadps": ("ada_dps",),
    "adagrad": ("dp_adagrad",),
    "adam": ("dp_adam",),
    "adambc": ("dp_adambc",),
    "adamw": ("dp_adam",),
    "adamwosm": ("dp_adamwosm",),
    "alpha": ("order",),
    "batch": ("expected_batch_size",),
    "batch_size": ("expected_batch_size",),
    "bert": ("hf",),
    "clip": ("max_grad_norm",),
    "clip_norm": ("max_grad_norm",),
    "data": ("dataset",),
    "dataset_id": ("dataset",),
    "delta": ("target_delta",),
    "eps": ("target_epsilon", "epsilon"),
    "epsilon": ("target_epsilon",),
    "eta": ("learning_rate",),
    "full": ("full_batch", "full"),
    "gpt2": ("hf",),
    "huggingface": ("hf",),
    "iterations": ("steps",),
    "l2_norm_clip": ("max_grad_norm",),
    "logistic": ("linear",),
    "logistic_regression": ("linear",),
    "lora": ("hf",),
    "lr": ("learning_rate",),
    "max_norm": ("max_grad_norm",),
    "mf": ("matrix_factorization",),
    "mezo": ("dp_zo",),
    "n": ("records",),
    "noise": ("noise_multiplier", "noise_mu"),
    "num_epochs": ("epochs",),
    "num_steps": ("steps",),
    "rmsprop": ("dp_rmsprop",),
    "sample_size": ("records",),
    "sasrec": ("transformer_rec",),
    "sgd": ("dp_sgd",),
    "sigma": ("noise_multiplier",),
    "target": ("label",),
    "test": ("holdout",),
    "transformer": ("transformer_rec", "hf"),
    "validation": ("holdout",),
    "zo": ("dp_zo",),
}
NO_OBJECT = ("model_attributes_type", "model_type", "dict_type")  # where an object is expected
LONGEST = 100  # of a name that is compared
_QUOTED = re.compile(r"'([^']*)'")


def hint(error: dict[str, Any], model: object) -> str:
    """Words that follow an error's text: a question with the likely name, or nothing.

    Args:
        error: pydantic's finding.
        model: the type of the whole document; None if it is not known.
    """
    location, context = tuple(error["loc"]), error.get("ctx", {})
    location = location[1:] if location[:1] == ("body",) else location
    if error["type"] == "extra_forbidden":
        suggestion = meant(location[-1], members(model, location[:-1]))
    elif error["type"] == "union_tag_invalid":
        suggestion = meant(context.get("tag"), _QUOTED.findall(str(context.get("expected_tags", ""))))
    elif error["type"] == "literal_error":
        suggestion = meant(error.get("input"), _QUOTED.findall(str(context.get("expected", ""))))
    elif error["type"] in NO_OBJECT:
        suggestion = meant(error.get("input"), _kinds(model, location))
        return "" if suggestion is None else f': did you mean `{{"kind": "{suggestion}"}}`?'
    else:
        suggestion = None
    return "" if suggestion is None else f": did you mean `{suggestion}`?"


def meant(written: object, candidates: Iterable[str]) -> str | None:
    """The known name that was most likely meant; None if none is close.

    >>> meant("lr", ["learning_rate", "momentum"])
    'learning_rate'
    >>> meant("momentun", ["learning_rate", "momentum"])
    'momentum'
    """
    if not isinstance(written, str) or len(written) > LONGEST:
        return None
    names, plain = list(candidates), written.strip().lower().replace("-", "_")
    aliases = [each for each in ALIASES.get(plain, ()) if each in names]
    return next(iter(aliases or get_close_matches(plain, names, n=1)), None)


def members(model: object, location: tuple[int | str, ...]) -> list[str]:
    """The members of the object at a location: of every variant that it may be."""
    return sorted({name for each in _at(model, location) if _is_model(each) for name in each.model_fields})


def _kinds(model: object, location: tuple[int | str, ...]) -> list[str]:
    """The kinds of object that may be at a location."""
    kinds = (each.model_fields.get("kind") for each in _at(model, location) if _is_model(each))
    return sorted(field.default for field in kinds if field is not None and isinstance(field.default, str))


def _at(model: object, location: tuple[int | str, ...]) -> list[Any]:
    """The types that a value at a location may have."""
    models = list(_types(model))
    for part in location:
        models = [each for one in models for each in _below(one, part)]
    return models


def _below(annotation: Any, part: int | str) -> Iterator[Any]:
    """What lies at one part of a location: a member, an item, or the variant that a tag chose."""
    if not _is_model(annotation):
        for argument in get_args(annotation):
            yield from _types(argument)
    elif part in annotation.model_fields:
        yield from _types(annotation.model_fields[part].annotation)
    elif part in _tags(annotation):
        yield annotation


def _tags(model: type[BaseModel]) -> set[object]:
    fields = (model.model_fields.get(name) for name in ("kind", "strategy"))
    return {model.__name__, *(each.default for each in fields if each is not None)}


def _types(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _types(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _types(argument)
    elif origin is not Literal and annotation is not None:
        yield annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
