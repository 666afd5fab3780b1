"""The peer on the same machine: transformers' continuous batching, on a model of the same shape with random weights."""

import importlib
import time
from typing import Any

import numpy as np
import torch

from bench.gpu_executor import Generated
from executor_svc.model.config import ModelConfig


def generate(config: ModelConfig, *, device: torch.device, rows: int, num_prompt: int, num_output: int) -> Generated:
    """The requests of `gpu_executor.generate`, after a short run that warms it up. Raises ImportError without transformers."""
    transformers: Any = importlib.import_module("transformers")  # large, and not everybody has it
    shape = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position,
        dtype="bfloat16",
        attn_implementation="sdpa",
    )
    with torch.device(device):
        model = transformers.LlamaForCausalLM(shape).to(torch.bfloat16).train(mode=False)
    options = transformers.GenerationConfig(max_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    drawn = np.random.default_rng(1)
    prompts = [drawn.integers(0, config.vocab_size, num_prompt).tolist() for _ in range(rows)]
    model.generate_batch(
        inputs=prompts[:2], generation_config=transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1)
    )
    began = time.perf_counter()
    outputs = model.generate_batch(inputs=prompts, generation_config=options)
    seconds = time.perf_counter() - began
    if (made := sum(len(output.generated_tokens) for output in outputs.values())) != rows * num_output:
        raise RuntimeError(f"transformers made {made} tokens, asked for {rows * num_output}")
    return Generated(rows, num_prompt, num_output, made / seconds)
