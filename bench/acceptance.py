"""`python -m bench.acceptance`: how many first drafts count at each temperature, and what rejection sampling would have accepted.

A draft counts when the target, which draws with the same noise, chooses it. For the target's chances p and the drafter's q that
happens with the chance `shared_noise(p, q)`; rejection sampling (Leviathan et al., arXiv:2211.17192) accepts `rejection(p, q)`,
the most that any rule can whose output is distributed as p. What the difference buys: the output is the one without drafts, token
for token. Both are computed exactly, along answers that the target gave at that temperature.

Legend: V vocabulary, H hidden size, T tokens of a dialogue.
"""

import argparse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from tokenizers import Tokenizer

from bench.mtp import QUESTIONS
from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.drafts.head import DraftHead, load_head_weights
from executor_svc.drafts.head_file import HeadFile
from executor_svc.drafts.mtp import Fed
from executor_svc.model.cache import KvCache
from executor_svc.model.load import OpenModel, open_model
from executor_svc.model.precision import choose_precision
from executor_svc.model.weights import ModelWeights, load_weights
from executor_svc.plan import Sampling
from executor_svc.training.config import TrainDraftSettings
from executor_svc.training.dialogues import Template, Turn, chatml
from executor_svc.training.generate import Finished, Generator, StateKeeper
from kernels.layout import BLOCK_SIZE
from kernels.reference.sample import kept
from launcher.door import progress_bar, wide_console

F64 = NDArray[np.float64]
TEMPERATURES: Final = ((0.0, 1.0), (0.3, 0.9), (0.7, 0.9), (0.8, 0.9), (1.0, 1.0))
"""(temperature, top-p)."""
MAX_TOKENS: Final = 96


def chances(logits: F64, *, temperature: float, top_p: float) -> F64:
    """What the sampler chooses with which chance, f64 [V]."""
    out: F64 = np.zeros(len(logits))
    if not temperature:
        out[int(np.argmax(logits))] = 1
        return out
    ids = kept(logits, temperature=temperature, top_k=0, top_p=top_p, min_p=0.0)
    weights = np.exp((logits[ids] - logits[ids[0]]) / temperature)
    out[ids] = weights / weights.sum()
    return out


def shared_noise(p: F64, q: F64) -> float:
    """Chance that p and q, f64 [V], choose the same under the same Gumbel noise: the sum over x of 1 / m(x), where m(x) is the sum
    over y of max(p_y / p_x, q_y / q_x)."""
    either = np.flatnonzero((p > 0) | (q > 0))
    p, q = p[either], q[either]
    order = np.argsort(np.divide(p, q, out=np.full(len(p), np.inf), where=q > 0), kind="stable")
    p, q = p[order], q[order]
    below, above = np.cumsum(q) - q, np.cumsum(p[::-1])[::-1]  # where p / q is smaller, q / q_x is the greater one
    shared = (p > 0) & (q > 0)
    return float((1 / (above[shared] / p[shared] + below[shared] / q[shared])).sum())


def rejection(p: F64, q: F64) -> float:
    """Chance that rejection sampling accepts what q, f64 [V], drew."""
    return float(np.minimum(p, q).sum())


@dataclass(frozen=True, slots=True)
class Models:
    """The target's output head and the draft head, to be looked at token by token, and the chat format."""

    weights: ModelWeights
    head: DraftHead
    source: HeadFile
    template: Template
    tokenizer: Tokenizer


def _models(opened: OpenModel, *, draft_head: str, max_model_len: int) -> Models:
    shipped = Path(str(resources.files("executor_svc.drafts"))) / "heads" / f"{opened.digest[:16]}.safetensors"
    source = HeadFile(Path(draft_head) if draft_head else shipped, config=opened.config, model_digest=opened.digest)
    precision = choose_precision("auto", config=opened.config, source=opened.source, batch_invariant=False, num_threads=1)
    size = opened.config.vocab_size
    weights = load_weights(opened.source, config=opened.config, num_ids=size, precision=precision, num_threads=1)
    drafting = load_head_weights(
        source, target=opened.source, embedding=weights.embedding, config=opened.config, precision=precision
    )
    tokenizer = Tokenizer.from_str(opened.text.tokenizer_json.decode())
    template = chatml(tokenizer, system=TrainDraftSettings().system)
    return Models(weights, DraftHead(drafting, precision=precision, max_model_len=max_model_len), source, template, tokenizer)


def _dialogues(opened: OpenModel, models: Models, *, count: int, temperature: float, top_p: float) -> Iterator[Finished]:
    """The model's own answers to some questions."""
    prompts = [
        [*models.template.before, *models.tokenizer.encode(words, add_special_tokens=False).ids, *models.template.between]
        for words in QUESTIONS[:count]
    ]
    longest = max(map(len, prompts)) + MAX_TOKENS + 1
    keeper = StateKeeper(num_slots=count, max_len=longest, hidden_size=opened.config.hidden_size)
    told = ExecutorSettings(
        max_num_seqs=count, num_blocks=-(-longest // BLOCK_SIZE) * count, max_num_batched_tokens=longest + 2 * count + 512
    )
    backend = CpuBackend(told, drafter=keeper)
    sampling = [
        Sampling(temperature=temperature, top_p=top_p, seed=i + 1, max_tokens=MAX_TOKENS, stop_token_ids=(models.template.end,))
        for i in range(count)
    ]
    turns = deque(Turn(i, prompt, how) for i, (prompt, how) in enumerate(zip(prompts, sampling, strict=True)))
    try:
        yield from Generator(backend, keeper, max_len=longest).run(lambda: None, waiting=turns)
    finally:
        backend.close()


def _both(models: Models, done: Finished) -> Iterator[tuple[F64, F64]]:
    """Logits of target and drafter, f64 [V] each, behind every token of an answer but the last one."""
    token_ids = done.token_ids.astype(np.int32)
    positions = np.arange(models.source.begin, len(token_ids) - 1, dtype=np.int32)
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    cache = KvCache(models.source.config, num_blocks=num_blocks)
    spans = np.array([0, len(positions)], np.int32), np.array([len(token_ids) - 1], np.int32)
    fed = Fed(positions, *spans, np.arange(num_blocks, dtype=np.int32)[None])
    hidden = done.hidden.astype(np.float32)
    states = models.head.run(hidden[positions - 1], token_ids[positions], fed=fed, cache=cache)
    for position in range(len(done.turn.prompt), len(token_ids) - 1):
        at = position - models.source.begin
        target = models.weights.head(hidden[position : position + 1])[0]
        yield target.astype(np.float64), models.head.logits(states[at : at + 1])[0].astype(np.float64)


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.acceptance", description=__doc__)
    parser.add_argument("--draft-head", default="", help="Another head than the one that ships.")
    parser.add_argument("--num-questions", type=int, default=32, choices=range(1, len(QUESTIONS) + 1), metavar="N")
    wanted = parser.parse_args(argv)
    opened = open_model(None)
    models = _models(opened, draft_head=wanted.draft_head, max_model_len=opened.config.max_position)
    table = Table("temperature", "top-p", "drafts", "the same noise: counts", "rejection sampling would accept", "ours / that")
    with progress_bar(len(TEMPERATURES), "temperatures") as progress:
        for done, (temperature, top_p) in enumerate(TEMPERATURES):
            found = []
            told = {"temperature": temperature, "top_p": top_p}
            for dialogue in _dialogues(opened, models, count=wanted.num_questions, **told):
                for target, drafter in _both(models, dialogue):
                    p, q = chances(target, **told), chances(drafter, **told)
                    found.append((shared_noise(p, q), rejection(p, q)))
            ours, theirs = np.mean(found, axis=0)
            table.add_row(f"{temperature:g}", f"{top_p:g}", str(len(found)), f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}")
            progress(done + 1)
    wide_console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
