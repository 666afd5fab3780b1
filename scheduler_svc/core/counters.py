"""What has happened so far, in numbers that only rise."""

from dataclasses import dataclass

from scheduler_svc.core.draft import StepDraft


@dataclass(slots=True)
class Counters:
    """Totals since the start; they only rise. `num_late_results` counts results dropped because nobody waits for them."""

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

    def count_draft(self, draft: StepDraft) -> None:
        """A step is sent."""
        self.num_preemptions += len(draft.preempted)
        for seq in draft.new:
            if not seq.num_placements:
                self.num_prompt_tokens += seq.num_prompt
            seq.num_placements += 1
            if not seq.request.prompt_logprobs:
                self.prefix_queries += len(seq.tokens)
                self.prefix_hits += seq.num_cached_tokens
