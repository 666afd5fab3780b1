"""What backends that read a model say of it."""

from executor_svc.backends.base import ModelInfo
from executor_svc.config import ExecutorSettings
from executor_svc.model.errors import ModelError
from executor_svc.model.load import OpenModel
from kernels.layout import BLOCK_SIZE


def max_model_len(settings: ExecutorSettings, opened: OpenModel) -> int:
    """Most tokens of a sequence: as asked, or the model's own. Raises ModelError when the model was not made for so many."""
    most = opened.config.max_position
    if settings.max_model_len > most:
        raise ModelError(f"max_model_len is {settings.max_model_len}, the model was made for {most} tokens")
    return settings.max_model_len or most


def num_blocks(settings: ExecutorSettings, *, block_bytes: int, kv_memory: int) -> int:
    """Blocks of the cache: as asked, or as many as fit into `kv_memory` bytes. Raises ModelError when none does."""
    if settings.block_size != BLOCK_SIZE:
        raise ModelError(f"block_size is {settings.block_size}, the kernels of this backend have {BLOCK_SIZE}")
    count = settings.num_blocks or kv_memory // block_bytes
    if count <= 0:
        raise ModelError(f"kv_memory of {kv_memory} bytes holds no block; one takes {block_bytes}")
    return count


def model_info(opened: OpenModel, settings: ExecutorSettings) -> ModelInfo:
    """What a gateway needs of the model."""
    text = opened.text
    return ModelInfo(
        model_digest=opened.digest,
        model_name=settings.served_model_name or opened.name,
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        bos_token_id=text.bos_token_id,
        add_bos=text.add_bos,
        eos_token_ids=text.eos_token_ids,
        max_model_len=max_model_len(settings, opened),
        vocab_size=min(text.num_ids, opened.config.vocab_size),
    )
