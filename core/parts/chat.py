"""Chat templates of tokenizers: Jinja from a model's folder, run in Jinja's sandbox.

A template sees a record's two texts alone: no file, no clock, no other record. It may not show where things lie in
memory, multiply texts, or write much more than it was given. What it does within these limits is the folder's: an
operator who installs a model's folder trusts its template (docs/language.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.parts.model_folder import TEMPLATE, TOKENIZER_CONFIG, ModelFolder, UnfitModelError

MAX_TEMPLATE_BYTES = 1 << 18
MAX_ADDED = 1 << 16  # characters that a template may add to the two texts
ADDRESS = re.compile(r" at 0x[0-9a-f]{4,}")  # as Python shows objects that have no text
MARKS = ("bos_token", "eos_token", "pad_token", "unk_token")
EXAMPLES = (("What is 2 + 2?", "4"), ("Say\nnothing.", " "), ("{{ x }} </s>", "{% y %} fine"))


class _Bounded(ImmutableSandboxedEnvironment):
    """Refuses products and formats of texts, by which a short template makes a long text of some records."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes with small whole numbers alone; raises TemplateError for anything else."""
        small = all(type(each) is int and abs(each) < MAX_ADDED for each in (left, right))
        if not small or operator == "**":
            raise TemplateError("a template computes with small whole numbers alone")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """Writes a prompt as the user's message and an answer as the assistant's.

    Args:
        source: the template.
        marks: the tokenizer's special tokens by their names.

    Raises:
        UnfitModelError: it is no template.
    """

    def __init__(self, source: str, marks: Mapping[str, str]) -> None:
        environment = _Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], finalize=_shown)
        environment.globals.pop("lipsum"), environment.filters.pop("random")  # a replay writes the same text
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _json
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError):
            raise UnfitModelError("its chat template is not valid Jinja") from None
        self._marks = dict(marks)

    @classmethod
    def of(cls, folder: ModelFolder) -> ChatTemplate:
        """The template of a model's folder, from the files as they were hashed.

        Raises:
            UnfitModelError: there is none, or it cannot be used.
        """
        files = {name: folder.content(name) for name in (TEMPLATE, TOKENIZER_CONFIG) if name in folder.files}
        return _of(files.get(TEMPLATE), files.get(TOKENIZER_CONFIG))

    def written(self, prompt: str, answer: str) -> tuple[str, str]:
        """What stands before the answer's tokens, and the rest.

        Raises:
            UnfitModelError: the template refuses the texts, or does not write the answer behind the prompt.
        """
        user = {"role": "user", "content": prompt}
        longest = len(prompt) + len(answer) + MAX_ADDED
        text_before = self._rendered([user], longest, begin=True)
        text = self._rendered([user, {"role": "assistant", "content": answer}], longest, begin=False)
        if ADDRESS.search(text) and not ADDRESS.search(prompt + answer):
            raise UnfitModelError("its chat template shows where things lie in memory")
        if not text.startswith(text_before):
            raise UnfitModelError("its chat template does not write an answer behind its prompt's text")
        return text_before, text[len(text_before) :]

    def _rendered(self, messages: list[dict[str, str]], longest: int, *, begin: bool) -> str:
        parts, length = list[str](), 0
        try:
            for part in self._template.generate(messages=messages, add_generation_prompt=begin, **self._marks):
                parts.append(part)
                length += len(part)
                if length > longest:
                    raise UnfitModelError(f"its chat template adds more than {MAX_ADDED} characters")
            return "".join(parts)
        except UnfitModelError:
            raise
        except Exception as error:  # a template may make Jinja raise anything
            raise UnfitModelError(f"its chat template fails: {type(error).__name__}") from None


def tried(request: dict[str, Any]) -> dict[str, Any]:
    """{"refused": why the template cannot be used, or ""}: for a process under limits. See app.sandbox.limited.

    Args:
        request: `template` and `config`, the paths of the folder's two files, "" for a missing one.
    """
    try:
        contents = [
            Path(name).read_bytes() if (name := str(request[each])) else None for each in ("template", "config")
        ]
        template = _of(*contents)
        for prompt, answer in EXAMPLES:
            _, behind = template.written(prompt, answer)
            if answer.strip() not in behind:
                raise UnfitModelError("its chat template leaves the answer out")
    except OSError:
        return {"refused": "the model's chat template cannot be read"}
    except UnfitModelError as error:
        return {"refused": f"this model cannot write chats: {error}"}
    return {"refused": ""}


def _of(template: bytes | None, config: bytes | None) -> ChatTemplate:
    try:
        document = json.loads(config) if config is not None else {}
        source = template.decode() if template is not None else _in_config(document)
        marks = {name: mark for name in MARKS if (mark := _mark(document.get(name))) is not None}
    except (ValueError, AttributeError, RecursionError):
        raise UnfitModelError(f"its {TOKENIZER_CONFIG} cannot be read") from None
    if source is None:
        raise UnfitModelError(f"it has no chat template in {TEMPLATE} or {TOKENIZER_CONFIG}")
    if len(source) > MAX_TEMPLATE_BYTES:
        raise UnfitModelError(f"its chat template is larger than {MAX_TEMPLATE_BYTES} bytes")
    return ChatTemplate(source, marks)


def _in_config(document: dict[str, Any]) -> str | None:
    """The template itself, or the one named `default` in a list of them."""
    template = document.get("chat_template")
    if isinstance(template, list):
        templates = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = templates.get("default")
    return template if isinstance(template, str) else None


def _mark(mark: object) -> str | None:
    """A special token: a text, or an object with its `content`."""
    content = mark.get("content") if isinstance(mark, dict) else mark
    return content if isinstance(content, str) else None


def _shown(value: object) -> object:
    """What `{{ }}` may show: texts and numbers, whose writing depends on nothing else."""
    if value is None or isinstance(value, str | int | float | Undefined):
        return value
    raise TemplateError(f"a template cannot show a {type(value).__name__}")


def _refuse(_message: object = "") -> None:
    raise TemplateError("the template refuses these messages")


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
