"""What has happened so far, in numbers that only rise."""

from dataclasses import dataclass

from scheduler_svc.core.sketch import StepSketch


@dataclass(slots=True)
class Counters:
    """Totals since the start; they only rise.

    Attributes:
        num_late_results: results dropped because nobody waits for them.
        num_rows_offered, num_rows_chosen, num_buckets, num_decisions: how the bucketed and the ragged rule shatter: sequences that
            could run, rows that did, and buckets formed, over so many decisions. They stay 0 where everything mixes.
    """

    num_preemptions: int = 0
    num_moved: int = 0
    num_recomputed: int = 0
    num_aborted: int = 0
    num_unknown_aborts: int = 0
    num_expired: int = 0
    num_refused: int = 0
    num_late_results: int = 0
    num_generated_tokens: int = 0
    num_prompt_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_rows_offered: int = 0
    num_rows_chosen: int = 0
    num_buckets: int = 0
    num_decisions: int = 0

    def count_sketch(self, sketch: StepSketch) -> None:
        """A step is sent."""
        self.num_preemptions += len(sketch.preempted)
        if sketch.num_buckets:
            self.num_decisions += 1
            self.num_buckets += sketch.num_buckets
            self.num_rows_offered += sketch.num_offered
            self.num_rows_chosen += sketch.num_chosen
        for seq in sketch.new:
            if not seq.num_placements:
                self.num_prompt_tokens += seq.num_prompt
            seq.num_placements += 1
            if not seq.request.prompt_logprobs:
                self.prefix_queries += len(seq.tokens)
                self.prefix_hits += seq.num_cached_tokens
