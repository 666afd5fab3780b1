"""Thirty prompts and what transformers continues them with, in float32 and greedily.

`python -m tests.support.parity` writes the fixture in minutes: for each prompt the token ids fed, 64 tokens and
the gap between the two largest logits at each. End-of-sequence is ignored on purpose, so that every prompt gives 64 tokens.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from executor_svc.model.load import default_model
from tests.support.shared_inputs import PROMPTS as SHARED

FIXTURE = Path(__file__).parents[1] / "fixtures" / "parity" / "smollm2.json"
NUM_TOKENS = 64
NEAR_TIE = 1e-3
"""Logits nearer than this may be ordered either way by two correct float32 implementations."""

QUESTIONS = [
    "What is the capital of Japan?",
    "Write a haiku about autumn rain.",
    "Explain what a hash table is to a child.",
    "List three uses of a paper clip.",
    "Why is the sky blue?",
    "Translate 'thank you' into Spanish, German and Italian.",
    "What is 17 + 25?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
]
TEXTS = [
    "import numpy as np\n\ndef softmax(x):\n",
    "<html>\n  <head>\n    <title>",
    "SELECT name, COUNT(*) FROM users",
    "In the beginning",
    "The three laws of robotics are: 1.",
    "Dear Sir or Madam,\n\nI am writing to",
    "It was the best of times, it was the worst of times, " * 4,
    '{"name": "Ada", "born": 1815, "field":',
    "a",
]


def prompts() -> list[str]:
    """Plain texts, code, other scripts, repetitions, and chats as the model's template writes them."""
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
    return [*SHARED, *chats, *TEXTS]


def load_oracle() -> PreTrainedModel:
    """The default model as transformers reads its GGUF file."""
    path = default_model()
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


def continue_with(model: PreTrainedModel, token_ids: list[int], *, num_tokens: int) -> tuple[list[int], list[float]]:
    """(greedy tokens, gap of the top two logits at each), one prompt a call: no padding, no batch."""
    fed = torch.tensor([token_ids])
    options = {"do_sample": False, "max_new_tokens": num_tokens, "return_dict_in_generate": True, "output_logits": True}
    with torch.inference_mode():
        out = model.generate(fed, attention_mask=torch.ones_like(fed), pad_token_id=0, **options)
    gaps = [round(float(-logits[0].topk(2).values.diff()), 4) for logits in out.logits]
    return out.sequences[0, len(token_ids) :].tolist(), gaps


def main() -> None:
    path, model = default_model(), load_oracle()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    rows = []
    for prompt in prompts():
        token_ids = tokenizer(prompt).input_ids
        tokens, gaps = continue_with(model, token_ids, num_tokens=NUM_TOKENS)
        rows.append({"prompt_ids": token_ids, "tokens": tokens, "gaps": gaps})
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
