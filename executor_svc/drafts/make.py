"""From settings to a drafter."""

import logging
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from executor_svc.config import ExecutorSettings
from executor_svc.drafter import Drafter
from executor_svc.drafts.checkpoint_layer import CheckpointLayer
from executor_svc.drafts.draft_cache import DraftCache
from executor_svc.drafts.head import DraftHead, HeadSource, load_head_weights
from executor_svc.drafts.head_file import HeadFile
from executor_svc.drafts.mtp import MtpDrafter
from executor_svc.drafts.ngram import NgramDrafter
from executor_svc.model.cache import KvType
from executor_svc.model.errors import ModelError
from executor_svc.model.hf_folder import HfFolder
from executor_svc.model.load import OpenModel
from executor_svc.model.precision import Precision
from kernels.layout import F32

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What a head needs of the model that it drafts for: its file, embedding, arithmetic, and the shape of its cache."""

    opened: OpenModel
    embedding: F32
    precision: Precision
    max_model_len: int
    num_blocks: int
    kv_type: KvType


def make_drafter(settings: ExecutorSettings, *, target: Target | None) -> Drafter | None:
    """Who drafts; None = nobody. `target`: None where the backend has no head's arithmetic.

    Raises ModelError for a drafter that the model or the backend does not have.
    """
    if settings.drafter == "none" or not settings.mtp_depth:
        return None
    if settings.drafter == "ngram":
        return NgramDrafter()
    source = _source(settings, target)
    if settings.drafter == "mtp":
        if target is None:
            raise ModelError("drafter is mtp, which this backend does not have yet: use ngram, or auto")
        if source is None:
            raise ModelError(
                "drafter is mtp, and no draft head ships for this model: train one (drumline train-draft), or use ngram"
            )
    if source is None or target is None:
        return None
    return _mtp(settings, source, target)


def _source(settings: ExecutorSettings, target: Target | None) -> HeadSource | None:
    """The head that was named, else the checkpoint's own, else the one that ships for this model."""
    if target is None:
        return None
    opened = target.opened
    if not settings.draft_head and isinstance(opened.source, HfFolder) and opened.source.draft_shapes():
        log.info("drafts by the checkpoint's own layer, up to %d ahead", settings.mtp_depth)
        return CheckpointLayer(opened.source)
    path = _head_path(settings, target)
    if path is None:
        return None
    file = HeadFile(path, config=opened.config, model_digest=opened.digest)
    log.info("drafts by %s, %d tokens of vocabulary, up to %d ahead", path.name, len(file.token_ids), settings.mtp_depth)
    return file


def _head_path(settings: ExecutorSettings, target: Target) -> Path | None:
    """The head that was named, or the one that ships for this model."""
    if settings.draft_head:
        return Path(settings.draft_head)
    shipped = Path(str(resources.files("executor_svc.drafts"))) / "heads" / f"{target.opened.digest[:16]}.safetensors"
    return shipped if shipped.is_file() else None


def _mtp(settings: ExecutorSettings, source: HeadSource, target: Target) -> MtpDrafter:
    config, precision = target.opened.config, target.precision
    weights = load_head_weights(source, target=target.opened.source, embedding=target.embedding, config=config, precision=precision)
    head = DraftHead(weights, precision=precision, max_model_len=target.max_model_len)
    return MtpDrafter(
        head, cache=DraftCache(source.config, num_blocks=target.num_blocks, kv_type=target.kv_type), num_slots=settings.max_num_seqs
    )
