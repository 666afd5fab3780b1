"""The processor as a device: float32 (the reference) or integers, all batch-invariant, or bf16; kernels in numba."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from executor_svc.backends.base import BackendInfo, ModelInfo
from executor_svc.backends.cpu_layouts import dense_caches, plain_pipeline, warm_up_dense
from executor_svc.backends.opened import model_info
from executor_svc.backends.opened import num_blocks as blocks_of
from executor_svc.backends.warm_up import plain_batch
from executor_svc.config import ExecutorSettings
from executor_svc.drafter import Drafter
from executor_svc.drafts.make import Target, make_drafter
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.model.cache import KvCache, KvType, block_bytes
from executor_svc.model.errors import ModelError
from executor_svc.model.forward import Decoder
from executor_svc.model.load import open_model
from executor_svc.model.precision import choose_precision
from executor_svc.model.score import digests, is_finite, row_errors, sampled_logprobs, score_prompts
from executor_svc.model.weights import load_weights
from executor_svc.plan import ALIGNED, PAGED, STRIPPED, Batch, Sampled
from executor_svc.ragged import RaggedPipeline, RaggedSwitches
from kernels.cpu.crew import set_num_threads
from kernels.cpu.group_tile import FORM
from kernels.cpu.sample import sample
from kernels.layout import BLOCK_SIZE, F32

log = logging.getLogger(__name__)

KERNELS = (
    "cpu.paged_attention",
    "cpu.dense_attention",
    "cpu.rope_kv_write",
    "cpu.rms_norm",
    "cpu.gated_mul",
    "cpu.sample",
)
DEFAULT_KV_MEMORY = 2**30
INTEGER_KERNELS = (*KERNELS, "cpu.integer_linear", f"cpu.byte_products.{FORM.name}", "cpu.after_attention")


class CpuBackend:
    """See `Backend`. Owns the weights and the cache. Construction reads the model and probes its layers: seconds."""

    def __init__(self, settings: ExecutorSettings, *, drafter: Drafter | None = None) -> None:
        """`drafter`: instead of the one that the settings name. Raises ModelError naming what is wrong with the model or the
        settings."""
        self._num_threads = settings.num_threads or len(os.sched_getaffinity(0))
        opened = open_model(Path(settings.model) if settings.model else None)
        self._model = model_info(opened, settings)
        precision = choose_precision(
            settings.precision,
            config=opened.config,
            source=opened.source,
            batch_invariant=settings.batch_invariant,
            num_threads=self._num_threads,
        )
        weights = load_weights(
            opened.source,
            config=opened.config,
            num_ids=self._model.vocab_size,
            precision=precision,
            num_threads=self._num_threads,
        )
        self._decoder = Decoder(opened.config, weights=weights, max_model_len=self._model.max_model_len)
        if settings.batch_invariant and not precision.batch_invariant:
            raise ModelError(f"batch_invariant is set, and {precision.name} products of this processor depend on the batch")
        kv_type = _kv_type(settings, integers=precision.integers)
        bytes_each = block_bytes(opened.config, kv_type=kv_type)
        num_blocks = blocks_of(settings, block_bytes=bytes_each, kv_memory=settings.kv_memory or DEFAULT_KV_MEMORY)
        self._cache: KvCache | None = (cache := KvCache(opened.config, num_blocks=num_blocks, kv_type=kv_type))
        self._dense = dense_caches(opened.config, blocks=cache)
        switches = RaggedSwitches(settings.mtp_per_seq_kv, settings.v4_xs_per_seq)
        self._pipeline = plain_pipeline("cpu", opened.config, refused=settings.ragged == "refuse", switches=switches)
        declared = self._pipeline.ragged_batch_admission()
        target = Target(opened, weights.embedding, precision, self._model.max_model_len, num_blocks, kv_type)
        self._drafter = drafter or make_drafter(settings, target=target)
        self._info = BackendInfo(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            device=f"cpu ({llvm.get_host_cpu_name()}, {self._num_threads} threads)",
            kernels=INTEGER_KERNELS if precision.integers else KERNELS,
            precision=precision.name,
            batch_invariant=precision.batch_invariant,
            ragged_granted=declared.granted,
            ragged_reason=declared.reason,
            layouts=(PAGED, ALIGNED, STRIPPED),
            kv_cache_dtype=np.dtype(kv_type).name,
            drafter=self._drafter.name if self._drafter else "none",
            mtp_depth=settings.mtp_depth if self._drafter else 0,
        )
        self._warm_up(cache)
        device, name = self._info.device, self._model.model_name
        log.info("%s: %s, %d KV blocks of %d tokens in %s", name, device, num_blocks, BLOCK_SIZE, np.dtype(kv_type))

    @property
    def model(self) -> ModelInfo:
        """See `Backend`."""
        return self._model

    @property
    def info(self) -> BackendInfo:
        """See `Backend`."""
        return self._info

    @property
    def pipeline(self) -> RaggedPipeline:
        """See `Backend`."""
        return self._pipeline

    @property
    def drafter(self) -> Drafter | None:
        """See `Backend`."""
        return self._drafter

    def forward(self, batch: Batch) -> Sampled:
        """See `Backend`."""
        if self._cache is None:
            raise RuntimeError("the backend is closed")
        set_num_threads(self._num_threads)  # kept per thread, and the worker's is not the one that made us
        started_ns = time.perf_counter_ns()
        self._cache.copy(batch.copy_src, destination=batch.copy_dst)
        if not len(batch.token_ids):
            self._dense.tidy(batch)
            return Sampled(token_ids=np.zeros(0, np.int32))
        if batch.layout == PAGED:
            hidden = self._decoder.hidden(batch, cache=self._cache)
            if self._drafter is not None:
                self._drafter.observe(batch, hidden)
            return self._finish(batch, hidden, started_ns=started_ns)
        self._dense.granted = self._pipeline.granted
        with self._dense.step(batch):
            hidden = self._decoder.hidden(batch, cache=self._dense)
        sampled = self._finish(batch, hidden, started_ns=started_ns)
        sampled.lead_pad, sampled.copies = self._dense.lead_pad, self._dense.copies
        return sampled

    def _finish(self, batch: Batch, hidden: F32, *, started_ns: int) -> Sampled:
        """Head, sampler and all that a plan may want of the last hidden states."""
        ends, places = hidden[batch.query_start[1:] - 1], hidden[batch.sampled_at]
        logits = self._decoder.logits(places)
        forwarded_ns = time.perf_counter_ns()
        token_ids, scores = sample(logits, columns=batch.sample, num_valid=self._model.vocab_size)
        failed = scores.failed | ~is_finite(places)
        return Sampled(
            token_ids=token_ids,
            row_errors=row_errors(batch, finite=is_finite(ends), failed=failed),
            failed=failed,
            logprobs=sampled_logprobs(batch.sample, token_ids, scores=scores),
            prompt_logprobs=score_prompts(self._decoder.logits, hidden, batch=batch),
            digest=digests(ends) if batch.want_digests else np.zeros(0, np.uint64),
            place_digest=digests(places) if batch.want_digests and len(batch.drafts_behind) else np.zeros(0, np.uint64),
            forward_ns=forwarded_ns - started_ns,
            sample_ns=time.perf_counter_ns() - forwarded_ns,
        )

    def _warm_up(self, cache: KvCache) -> None:
        """Compiles the kernels, or loads them from their cache, for one token and for many; one layer is enough for that."""
        started_s = time.monotonic()
        log.info("preparing the kernels: the first start of a release compiles them, which may take minutes")
        set_num_threads(self._num_threads)
        most = min(self._info.max_num_batched_tokens, self._info.num_blocks * BLOCK_SIZE, self._model.max_model_len)
        for num_tokens in sorted({1, most}):
            batch = plain_batch(num_tokens, block_size=BLOCK_SIZE)
            self._finish(batch, self._decoder.hidden(batch, cache=cache, num_layers=1), started_ns=0)
            with suppress(CacheRefused):  # a cache of so few blocks holds no cohort of this size: nothing to prepare
                warm_up_dense(self._decoder, batch, dense=self._dense)
        log.info("kernels ready after %.1f s (compiled once for each release, then cached)", time.monotonic() - started_s)

    def reset(self) -> None:
        """Own caches go; a block is written before it is read."""
        self._dense.reset()
        if self._drafter is not None:
            self._drafter.forget()

    def close(self) -> None:
        """See `Backend`."""
        self._cache = None
        self._dense.close()


def _kv_type(settings: ExecutorSettings, *, integers: bool) -> KvType:
    """float16 keeps 11 bits of a number, integer layers 8 of their inputs; what is float32 is to be compared with float32."""
    if settings.kv_cache_dtype == "auto":
        return np.float16 if integers else np.float32
    return np.float16 if settings.kv_cache_dtype == "float16" else np.float32
