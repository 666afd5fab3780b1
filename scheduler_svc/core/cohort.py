"""What the bucketed and the ragged rule remember of one executor between two steps."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Cohort:
    """Keys of sequences, in the order of the rows.

    Attributes:
        running: chosen by the last decision; those that are still resident "run", everybody else waits.
        owed: prompts of the chosen bucket whose completions went first; they are the next step.
        assembled: the decode rows of the batched cache; empty = there is none.
    """

    running: list[int] = field(default_factory=list)
    owed: list[int] = field(default_factory=list)
    assembled: list[int] = field(default_factory=list)
