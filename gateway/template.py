"""The model's chat template, rendered in Jinja's sandbox with bounded time and size.

Templates come from the model, never from a request, and see what transformers shows them: `messages`, `add_generation_prompt`,
`bos_token`, `eos_token`, `raise_exception`, `strftime_now`, `tojson`, loop controls and the (here meaningless) `generation` tag.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from drumline.errors import InvalidRequest
from drumline.limits import MAX_BODY_BYTES

_MAX_RENDER_S: Final = 1.0
_MAX_RENDERED_CHARS: Final = 2 * MAX_BODY_BYTES
_MAX_REASON_CHARS: Final = 300
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here it only encloses them."""

    tags = {"generation"}  # noqa: RUF012  # the name and type that jinja2 asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """A product can be as large as its factors say, so sequences are multiplied only up to the size limit."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(value, int | float) for value in (left, right)):
            sizes = [len(v) if isinstance(v, Sequence) else v for v in (left, right) if isinstance(v, Sequence | int)]
            if operator == "**" or len(sizes) < 2 or sizes[0] * sizes[1] > _MAX_RENDERED_CHARS:
                raise jinja2.TemplateRuntimeError("the template multiplies beyond its limits")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A compiled template. Raises jinja2.TemplateSyntaxError when the model's template cannot be compiled."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The prompt's text. Raises InvalidRequest with the template's own reason when it refuses the messages."""
        end_s = time.monotonic() + _MAX_RENDER_S
        parts: list[str] = []
        size = 0
        values = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": None, "documents": None}
        try:
            for part in self._template.generate(**values, **self._special_tokens):
                parts.append(part)
                size += len(part)
                if size > _MAX_RENDERED_CHARS or time.monotonic() > end_s:
                    raise InvalidRequest("the chat template's time or size limit is reached", param="messages")
        except jinja2.TemplateError as error:
            reason = _ADDRESS.sub("...", str(error))[:_MAX_REASON_CHARS]
            raise InvalidRequest(f"the model's chat template refuses these messages: {reason}", param="messages") from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # A plain Python error inside a template means that a message lacks what the template expects.
            kind = type(error).__name__
            raise InvalidRequest(f"the model's chat template cannot render these messages ({kind})", param="messages") from None
        return "".join(parts)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
