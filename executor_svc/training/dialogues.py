"""Text that the model writes itself, both sides of the dialogue: questions drawn hot, answers at the temperatures people use.

Dialogue number i is a function of i and the seed alone, so a run that was stopped goes on where it was, and the held-out ones are
never trained on.
"""

from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer

from executor_svc.plan import Sampling

QUESTION_TEMPERATURE: Final = 1.0
ANSWER_TEMPERATURES: Final = (0.0, 0.0, 0.3, 0.7)
"""Answers take them in turn: greedy half of the time."""
OPENINGS: Final = (
    "", "", "", "What", "How", "Why", "Write", "Explain", "Can you", "Give me", "Describe", "Tell me", "Is it", "Summarize", "List",
    "Help me", "I want to", "Compare", "Who", "When", "Where", "Create", "Rewrite", "Translate", "Solve", "Calculate", "Suggest",
)  # fmt: skip
"""How questions begin, in turn: left alone, a small model asks the same few."""


@dataclass(frozen=True, slots=True)
class Template:
    """The chat format's fixed pieces, as token ids: before a question, between question and answer; and what ends a turn."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    end: int
    openings: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Something to generate: its prompt and how."""

    number: int
    prompt: list[int]
    sampling: Sampling


def chatml(tokenizer: Tokenizer, *, system: str) -> Template:
    """The template of SmolLM2 and other ChatML models. Raises ValueError when the tokenizer has no such marks."""
    end = tokenizer.token_to_id("<|im_end|>")
    if end is None or tokenizer.token_to_id("<|im_start|>") is None:
        raise ValueError("the tokenizer has no <|im_start|> and <|im_end|>: only ChatML models can be distilled so far")

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    return Template(
        before=ids(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"),
        between=ids("<|im_end|>\n<|im_start|>assistant\n"),
        end=end,
        openings=tuple(ids(opening) for opening in OPENINGS),
    )


def question(template: Template, number: int, *, seed: int, max_tokens: int) -> Turn:
    """Dialogue `number`'s first half."""
    opening = template.openings[number % len(template.openings)]
    sampling = Sampling(
        temperature=QUESTION_TEMPERATURE,
        top_p=0.95,
        seed=2 * (seed * 1_000_003 + number),
        max_tokens=max_tokens,
        min_tokens=3,
        stop_token_ids=(template.end,),
    )
    return Turn(number, [*template.before, *opening], sampling)


def answer(template: Template, asked: Turn, question_ids: list[int], *, seed: int, max_tokens: int) -> Turn:
    """Dialogue `number`'s second half, behind the question that was drawn."""
    words = question_ids[:-1] if question_ids and question_ids[-1] == template.end else question_ids
    sampling = Sampling(
        temperature=ANSWER_TEMPERATURES[asked.number % len(ANSWER_TEMPERATURES)],
        top_p=0.9,
        seed=2 * (seed * 1_000_003 + asked.number) + 1,
        max_tokens=max_tokens,
        stop_token_ids=(template.end,),
    )
    return Turn(asked.number, [*asked.prompt, *words, *template.between], sampling)
