"""The served model as the gateway sees it: names, limits, tokenizer and template. Built from what the scheduler relays."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jinja2

from drumline.errors import InvalidRequest, NotFound
from gateway.sequences import ModelInfo
from gateway.template import ChatTemplate
from gateway.tokenizer import ModelTokenizer

_log = logging.getLogger(__name__)


class ServedModel:
    """One model. Immutable after construction, which takes a tenth of a second and belongs in a worker thread.

    Attributes:
        names: what requests may call it; the first is what answers say.
        created_s: when this gateway first served it, Unix seconds.
    """

    def __init__(self, info: ModelInfo, *, names: Sequence[str], pool: ThreadPoolExecutor) -> None:
        self.info = info
        self.names = tuple(names) or (info.name,)
        self.created_s = int(time.time())
        self.tokenizer = ModelTokenizer(
            info.tokenizer_json, vocab_size=info.vocab_size, bos_token_id=info.bos_token_id, add_bos=info.add_bos, pool=pool
        )
        self._template = self._compile(info)

    def _compile(self, info: ModelInfo) -> ChatTemplate | None:
        if not info.chat_template:
            return None
        eos = info.eos_token_ids[0] if info.eos_token_ids else None
        special = {"bos_token": self.tokenizer.name_of(info.bos_token_id), "eos_token": self.tokenizer.name_of(eos)}
        try:
            return ChatTemplate(info.chat_template, special_tokens=special)
        except jinja2.TemplateError as error:
            _log.warning("the model's chat template cannot be compiled: %s", error)
            return None

    def check_name(self, name: str | None) -> None:
        """Raises NotFound unless `name` is one of ours; None means the one that is served."""
        if name is not None and name not in self.names:
            raise NotFound(f"The model `{name[:100]}` does not exist; this server serves {', '.join(self.names)}", param="model")

    def template(self) -> ChatTemplate:
        """Raises InvalidRequest when the model has none."""
        if self._template is None:
            raise InvalidRequest("this model has no usable chat template; use /v1/completions", param="messages")
        return self._template
