"""Llama 2 and 3, SmolLM 1 and 2, TinyLlama and all that call themselves Llama."""

from executor_svc.model.families.base import Family

LLAMA = Family(name="llama", hf_architectures=("LlamaForCausalLM",), gguf_architectures=("llama",), gguf_permuted=True)
