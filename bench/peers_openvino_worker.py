"""OpenVINO GenAI's continuous batching behind JSON lines; it has no HTTP server. Run with its own interpreter, by path.

    {"streams": [[{"prompt": [ids], "num_output_tokens": n}, ...], ...]}  ->  {"answers": [[sent_s, [token_s, ...]], ...]}
    {"score": [ids]}                                                      ->  {"logprobs": [...]}

The first line out is {"ready": true}. Times are of the monotonic clock, which all processes of a machine share. Standard library,
numpy and openvino_genai only.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

MAX_BATCHED_TOKENS = 512
"""As the recipe says; a scored window must fit into it, so that no step scores the seam between two chunks."""


def pipeline_of(model: str, cache_gib: int) -> Any:
    """Prefix caching and mixed steps are on, as a server would have them."""
    config = genai.SchedulerConfig()
    config.cache_size = cache_gib
    config.max_num_seqs = 128
    config.max_num_batched_tokens = MAX_BATCHED_TOKENS
    config.enable_prefix_caching = True
    config.dynamic_split_fuse = True
    return genai.ContinuousBatchingPipeline(model, config, "CPU")


class Worker:
    """One pipeline and the number of its next request."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._next_id = 0

    def _add(self, prompt: list[int], *, num_output_tokens: int, scored: bool = False) -> Any:
        config = genai.GenerationConfig()
        config.ignore_eos = True
        config.max_new_tokens = num_output_tokens
        config.do_sample = False
        config.apply_chat_template = False
        if scored:
            config.echo = True
            config.logprobs = 1
        self._next_id += 1
        return self._pipeline.add_request(self._next_id, ov.Tensor(np.array([prompt], np.int64)), config)

    def run(self, streams: list[list[dict[str, Any]]]) -> list[tuple[float, list[float]]]:
        """All streams at once, each one's requests in a row: when each was sent, and when each of its tokens could be read."""
        waiting = [list(stream) for stream in streams]
        live: dict[int, tuple[Any, float, list[float], int]] = {}
        answers = []

        def send(index: int) -> None:
            if waiting[index]:
                request = waiting[index].pop(0)
                sent_s = time.monotonic()
                wanted = request["num_output_tokens"]
                live[index] = (self._add(request["prompt"], num_output_tokens=wanted), sent_s, [], wanted)

        for index in range(len(waiting)):
            send(index)
        while live:
            self._pipeline.step()
            now = time.monotonic()
            for index, (handle, sent_s, times, wanted) in list(live.items()):
                while handle.can_read():
                    times.extend(now for one in handle.read().values() for _ in one.generated_ids)
                if len(times) >= wanted:
                    answers.append((sent_s, times))
                    del live[index]
                    send(index)
        return answers

    def score(self, window: list[int]) -> list[float]:
        """Log-probabilities of the window's tokens but the first."""
        handle = self._add(window, num_output_tokens=1, scored=True)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        scores: list[float] = []
        while handle.can_read():
            for one in handle.read().values():
                scores.extend(one.generated_log_probs)
        return scores[1 : len(window)]


def main() -> None:
    """Until stdin ends."""
    # what the library prints goes to the log, not between the answers
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(pipeline_of(sys.argv[1], int(sys.argv[2])))
    print(json.dumps({"ready": True}), file=out)
    for line in sys.stdin:
        asked = json.loads(line)
        if "score" in asked:
            told: dict[str, Any] = {"logprobs": worker.score(asked["score"])}
        else:
            told = {"answers": worker.run(asked["streams"])}
        print(json.dumps(told), file=out)


if __name__ == "__main__":
    main()
