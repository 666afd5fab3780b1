"""Writes dialogues until there are enough tokens of them; what is there already counts."""

from collections import deque
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.training.config import TrainDraftSettings
from executor_svc.training.dialogues import Template, Turn, answer, chatml, question
from executor_svc.training.generate import Finished, Generator, StateKeeper
from executor_svc.training.shards import column, count_tokens, shards_in, write_shard

SHARD_TOKENS = 50_000
"""Tokens after which a file is written: what a stop can lose."""


def collect(settings: TrainDraftSettings, *, folder: Path) -> None:
    """Fills `folder` with shards. Shows a progress bar; may be stopped at any moment."""
    num_tokens = count_tokens(folder)
    first = 1 + max((int(column(path, "numbers").max()) for path in shards_in(folder)), default=-1)
    if num_tokens >= settings.tokens:
        return
    backend, template, longest = _backend(settings)
    keeper = backend.drafter
    if not isinstance(keeper, StateKeeper):
        raise TypeError("the backend did not take the state keeper")
    generator = Generator(backend, keeper, max_len=longest)
    numbers = iter(range(first, first + 10**9))
    waiting: deque[Turn] = deque()
    asked: dict[int, Turn] = {}
    done: list[Finished] = []

    def next_question() -> Turn | None:
        if num_tokens >= settings.tokens:
            return None
        turn = question(template, next(numbers), seed=settings.seed, max_tokens=settings.max_question)
        asked[turn.number] = turn
        return turn

    columns = (TextColumn("tokens of dialogues"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=settings.tokens, completed=num_tokens)
        for finished in generator.run(next_question, waiting=waiting):
            before = asked.pop(finished.turn.number, None)
            if before is not None:
                told = finished.token_ids[len(before.prompt) - _opening(template, before) :].tolist()
                ids = finished.token_ids[len(before.prompt) :].tolist()
                if len(told) > 2:
                    waiting.append(answer(template, before, ids, seed=settings.seed, max_tokens=settings.max_answer))
                continue
            done.append(finished)
            num_tokens += len(finished.token_ids)
            progress.update(task, completed=num_tokens)
            if sum(len(one.token_ids) for one in done) >= SHARD_TOKENS:
                write_shard(folder, done)
                done = []
    if done:
        write_shard(folder, done)
    backend.close()


def _opening(template: Template, turn: Turn) -> int:
    return len(turn.prompt) - len(template.before)


def _backend(settings: TrainDraftSettings) -> tuple[CpuBackend, Template, int]:
    """The model with a slot for each dialogue, its chat format, and the longest dialogue in tokens."""
    told = ExecutorSettings(model=settings.model, max_num_seqs=settings.num_seqs, num_threads=settings.num_threads, num_blocks=1)
    from executor_svc.model.load import open_model

    opened = open_model(Path(settings.model) if settings.model else None)
    template = chatml(Tokenizer.from_str(opened.text.tokenizer_json.decode()), system=settings.system)
    fixed = len(template.before) + max(map(len, template.openings)) + len(template.between)
    longest = fixed + settings.max_question + settings.max_answer + 1
    blocks = -(-longest // told.block_size) * settings.num_seqs
    keeper = StateKeeper(num_slots=settings.num_seqs, max_len=longest, hidden_size=opened.config.hidden_size)
    most = max(settings.num_seqs + 512, longest)
    told = told.model_copy(update={"num_blocks": blocks, "max_num_batched_tokens": most + settings.num_seqs})
    return CpuBackend(told, drafter=keeper), template, longest


def token_counts(folder: Path, *, vocab_size: int) -> "np.ndarray":
    """How often each token stands in an answer, i64 [vocab]."""
    counts = np.zeros(vocab_size, np.int64)
    for path in shards_in(folder):
        token_ids, starts, answers = (column(path, name) for name in ("token_ids", "starts", "answers"))
        for start, end, begin in zip(starts[:-1], starts[1:], answers, strict=True):
            counts += np.bincount(token_ids[start + begin : end], minlength=vocab_size)
    return counts
