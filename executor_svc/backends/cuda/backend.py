"""The GPU behind `Backend`: a batch goes over in one copy and comes back as tokens in one more; the only wait is for these."""

import logging
import time

import numpy as np
import torch

from executor_svc.backends.base import BackendInfo, ModelInfo
from executor_svc.backends.cpu_layouts import plain_pipeline
from executor_svc.backends.cuda.cache import DeviceKvCache, block_bytes
from executor_svc.backends.cuda.decoder import DeviceDecoder, Limits
from executor_svc.backends.cuda.graphs import DecodeGraphs
from executor_svc.backends.cuda.inputs import Fed, StepInputs
from executor_svc.backends.cuda.linear import DTYPES, device_precision
from executor_svc.backends.cuda.place import Place
from executor_svc.backends.cuda.sampler import DeviceSampler
from executor_svc.backends.opened import model_info
from executor_svc.backends.opened import num_blocks as blocks_of
from executor_svc.backends.warm_up import plain_batch
from executor_svc.config import ExecutorSettings
from executor_svc.drafter import Drafter
from executor_svc.drafts.make import make_drafter
from executor_svc.model.errors import ModelError, UnsupportedModel
from executor_svc.model.load import OpenModel
from executor_svc.model.score import digests, row_errors, sampled_logprobs, score_prompts
from executor_svc.model.weights import load_weights
from executor_svc.plan import PAGED, U64, Batch, Sampled
from executor_svc.ragged import RaggedPipeline, RaggedSwitches
from kernels.cuda.copy_blocks import copy_blocks
from kernels.layout import BLOCK_SIZE, F32

log = logging.getLogger(__name__)
KERNELS = ("cuda.paged_attention", "cuda.rope_kv_write", "cuda.rms_norm", "cuda.gated_mul", "cuda.copy_blocks", "cuda.sample")


class CudaBackend:
    """See `Backend`. Owns weights, cache and graphs. Construction reads the model and compiles what is not cached: seconds."""

    def __init__(self, opened: OpenModel, settings: ExecutorSettings, place: Place) -> None:
        """Raises ModelError naming what is wrong with the model or with the settings for it."""
        if opened.config.moe is not None:
            raise UnsupportedModel(f"{opened.config.family}: mixtures of experts run on the processor only so far (--backend cpu)")
        self._place = place
        self._model = model_info(opened, settings)
        precision = device_precision(settings.precision, device=place.device)
        dtype = DTYPES[precision.name]
        _check(settings, dtype=dtype)
        depth = settings.mtp_depth if make_drafter(settings, target=None) else 0
        # a graph of all rows has a token for each, even where a step may not feed so many
        most_tokens = max(settings.max_num_batched_tokens, settings.max_num_seqs)
        limits = Limits(settings.max_num_seqs, most_tokens, self._model.max_model_len)
        max_places = max(settings.max_num_seqs, min(settings.max_num_seqs * (1 + depth), most_tokens))
        with torch.inference_mode():
            weights = load_weights(opened.source, config=opened.config, num_ids=self._model.vocab_size, precision=precision)
            self._decoder = DeviceDecoder(opened.config, weights=weights, dtype=dtype, place=place, limits=limits)
            self._sampler = DeviceSampler(place, num_ids=self._model.vocab_size, dtype=dtype, max_rows=max_places)
            max_blocks = -(-limits.max_model_len // BLOCK_SIZE)
            self._inputs = StepInputs(
                place, max_rows=limits.max_rows, max_places=max_places, max_tokens=limits.max_tokens, max_blocks=max_blocks
            )
            count = blocks_of(settings, block_bytes=block_bytes(opened.config, dtype), kv_memory=_kv_memory(settings, place))
            self._cache: DeviceKvCache | None = DeviceKvCache(opened.config, num_blocks=count, dtype=dtype, device=place.device)
        self._graphs = DecodeGraphs(place, self._decode, max_rows=limits.max_rows)
        self._fed: Fed | None = None
        switches = RaggedSwitches(settings.mtp_per_seq_kv, settings.v4_xs_per_seq)
        self._pipeline = plain_pipeline("cuda", opened.config, refused=settings.ragged == "refuse", switches=switches)
        self._drafter = make_drafter(settings, target=None)
        self._info = self._describe(settings, num_blocks=count, precision=precision.name, dtype=dtype)
        self._warm_up()
        log.info("%s: %s, %d KV blocks of %d tokens in %s", self._model.model_name, place.name, count, BLOCK_SIZE, dtype)

    def _describe(self, settings: ExecutorSettings, *, num_blocks: int, precision: str, dtype: torch.dtype) -> BackendInfo:
        declared = self._pipeline.ragged_batch_admission()
        return BackendInfo(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            device=self._place.name,
            kernels=KERNELS,
            precision=precision,
            batch_invariant=False,
            ragged_granted=declared.granted,
            ragged_reason=declared.reason,
            layouts=(PAGED,),
            kv_cache_dtype=str(dtype).removeprefix("torch."),
            drafter=self._drafter.name if self._drafter else "none",
            mtp_depth=settings.mtp_depth if self._drafter else 0,
        )

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

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Sampled:
        """See `Backend`. Decode without drafts runs as a graph."""
        started_ns = time.perf_counter_ns()
        self._copy(batch)
        if not len(batch.token_ids):
            return Sampled(token_ids=np.zeros(0, np.int32))
        is_decode = len(batch.token_ids) == len(batch.context_len) == len(batch.sample.rows)
        if is_decode and not len(batch.prompt_logprob_rows):
            size = self._graphs.size_for(len(batch.context_len))
            self._fed = self._inputs.fill(batch, num_rows=size, num_tokens=size)
            ends, logits = self._graphs.run(size)
            return self._finish(batch, ends, ends, logits, started_ns=started_ns)
        fed = self._inputs.fill(batch, num_rows=len(batch.context_len), num_tokens=len(batch.token_ids))
        hidden = self._decoder.hidden(fed, cache=self._lent())
        places = hidden[fed.sampled]
        sampled = self._finish(batch, hidden[fed.ends], places, self._decoder.logits(places), started_ns=started_ns)
        sampled.prompt_logprobs = score_prompts(self._host_logits, hidden, batch=batch)
        return sampled

    def _decode(self, size: int) -> tuple[torch.Tensor, ...]:
        """One token of each row: last hidden states and logits. What a graph holds."""
        if self._fed is None:
            raise RuntimeError("a graph ran before its inputs were filled")
        hidden = self._decoder.hidden(self._fed, cache=self._lent())
        return hidden, self._decoder.logits(hidden)

    def _finish(self, batch: Batch, ends: torch.Tensor, places: torch.Tensor, logits: torch.Tensor, *, started_ns: int) -> Sampled:
        """Sampling, and all that a plan may want of the last hidden states."""
        forwarded_ns = time.perf_counter_ns()
        rows, count = len(batch.context_len), len(batch.sample.rows)
        looked_at = torch.cat((ends[:rows], places[:count]))
        chosen = self._sampler.choose(logits, batch.sample, finite=torch.isfinite(looked_at).all(dim=1))
        failed = chosen.scores.failed | ~chosen.finite[rows:]
        return Sampled(
            token_ids=chosen.token_ids,
            row_errors=row_errors(batch, finite=chosen.finite[:rows], failed=failed),
            failed=failed,
            logprobs=sampled_logprobs(batch.sample, chosen.token_ids, scores=chosen.scores),
            digest=_digests(ends[:rows]) if batch.want_digests else np.zeros(0, np.uint64),
            place_digest=_digests(places) if batch.want_digests and len(batch.drafts_behind) else np.zeros(0, np.uint64),
            forward_ns=forwarded_ns - started_ns,
            sample_ns=time.perf_counter_ns() - forwarded_ns,
        )

    def _host_logits(self, hidden: torch.Tensor) -> F32:
        """f32 on the host, for scores of prompts."""
        logits: F32 = self._decoder.logits(hidden).float().cpu().numpy()
        return logits

    def _copy(self, batch: Batch) -> None:
        """Whole blocks, before anything is fed; all are read before any is written."""
        if not len(batch.copy_src):
            return
        cache = self._lent()
        source, destination = (torch.from_numpy(ids).to(self._place.device) for ids in (batch.copy_src, batch.copy_dst))
        chained = len(np.intersect1d(batch.copy_src, batch.copy_dst)) > 0
        for keys, values in zip(cache.keys, cache.values, strict=True):
            if chained:  # the kernel's copies run at the same time; torch gathers first
                keys[destination], values[destination] = keys[source], values[source]
            else:
                copy_blocks(self._place.kernels, keys, values, source=source, destination=destination)

    def _lent(self) -> DeviceKvCache:
        if self._cache is None:
            raise RuntimeError("the backend is closed")
        return self._cache

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Compiles the kernels, or loads them, by prompts in block 0, which nobody has yet; then captures every graph."""
        started_s = time.monotonic()
        log.info("preparing the kernels: the first start of a release compiles them")
        for num_tokens in sorted({1, min(2, self._info.max_num_batched_tokens)}):
            self.forward(plain_batch(num_tokens, block_size=BLOCK_SIZE))
        for size in self._graphs.sizes:
            self._fed = self._inputs.fill(plain_batch(1, block_size=BLOCK_SIZE), num_rows=size, num_tokens=size)
            self._graphs.run(size)
        log.info("kernels and %d graphs ready after %.1f s", len(self._graphs.sizes), time.monotonic() - started_s)

    def reset(self) -> None:
        """Nothing to do: a block is written before it is read."""

    def close(self) -> None:
        """See `Backend`."""
        self._cache = None
        self._graphs = DecodeGraphs(self._place, self._decode, max_rows=self._info.max_num_seqs)


def _digests(hidden: torch.Tensor) -> U64:
    return digests(hidden.float().cpu().numpy())


def _check(settings: ExecutorSettings, *, dtype: torch.dtype) -> None:
    """What this backend does not have is said before a weight is read."""
    if settings.batch_invariant:
        raise ModelError("batch_invariant is set, and products of backend cuda depend on the batch; backend cpu has it")
    asked = settings.kv_cache_dtype
    if asked not in ("auto", str(dtype).removeprefix("torch.")):
        raise ModelError(f"kv_cache_dtype is {asked}; backend cuda keeps keys and values in {dtype}: leave it at auto")


def _kv_memory(settings: ExecutorSettings, place: Place) -> int:
    """Bytes for keys and values: as told, else what `gpu_memory_utilization` leaves of the device."""
    spare = (1 - settings.gpu_memory_utilization) * place.total_bytes()
    return settings.kv_memory or int(place.free_bytes() - spare)
