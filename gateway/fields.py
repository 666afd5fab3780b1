"""Request fields that are not (yet) features: which are ignored, which are refused, and which values of those mean nothing.

Whatever is in neither list and not in a schema is unknown, and named in a 400.
"""

from typing import Any, Final

from drumline.errors import InvalidRequest

IGNORED: Final = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Accepted and without effect: they concern OpenAI's own platform, or features that are refused anyway."""

NOT_YET: Final = frozenset(
    {
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "response_format",
        "audio",
        "modalities",
        "prediction",
        "web_search_options",
        "reasoning_effort",
        "verbosity",
        "suffix",
        "best_of",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "bad_words",
        "allowed_token_ids",
        "tool_calls",
        "tool_call_id",
        "annotations",
        "refusal",
    }
)
"""Refused by name: to ignore them would give another answer than the one asked for."""

NEVER: Final = frozenset({"chat_template", "chat_template_kwargs", "documents", "mm_processor_kwargs"})
"""Refused for safety: the template is the model's, requests bring none."""

_INERT: Final[dict[str, tuple[object, ...]]] = {
    "tool_choice": ("none",),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
}
"""Values that ask for nothing, beside null and the empty list."""


def without_inert(body: Any) -> Any:
    """A request body less what is ignored or asks for nothing. Raises InvalidRequest for a feature that is not there."""
    if not isinstance(body, dict):
        return body
    kept = {}
    for name, value in body.items():
        if name in NEVER and value is not None:
            raise InvalidRequest(f"{name} is not accepted: the template is the model's own", param=name)
        if name in NOT_YET:
            if value is not None and value != [] and value not in _INERT.get(name, ()):
                raise InvalidRequest(f"{name} is not supported yet", param=name)
        elif name not in IGNORED and name not in NEVER:
            kept[name] = value
    return kept
