"""The worker's line protocol, with its own client at the other end. OpenVINO itself is in no test environment: a stub stands in."""

import os
import sys
from pathlib import Path

import pytest

from bench.client import BenchError
from bench.peers import OPENVINO
from bench.peers_contestant import Site
from bench.workloads import Request

STUB = '''
"""One token for every request in each step; three for the whole of a request whose prompt begins with 3."""
class SchedulerConfig: pass
class GenerationConfig:
    echo = False

class Handle:
    def __init__(self, prompt, config):
        self.prompt, self.config, self.out, self.read_so_far = prompt, config, [], 0
        self.left = 3 if prompt[0] == 3 else config.max_new_tokens
    def can_read(self):
        return self.read_so_far < len(self.out)
    def read(self):
        self.read_so_far += 1
        return {0: self.out[self.read_so_far - 1]}

class Output:
    def __init__(self, ids, logprobs):
        self.generated_ids, self.generated_log_probs = ids, logprobs

class ContinuousBatchingPipeline:
    def __init__(self, model, config, device):
        print("a library that talks")
        assert config.enable_prefix_caching
        self.handles = []
    def add_request(self, request_id, tensor, config):
        assert request_id not in [one.request_id for one in self.handles]
        self.handles.append(Handle(tensor[0].tolist(), config))
        self.handles[-1].request_id = request_id
        return self.handles[-1]
    def has_non_finished_requests(self):
        return any(one.left for one in self.handles)
    def step(self):
        assert self.has_non_finished_requests()
        for one in self.handles:
            if one.left:
                one.left -= 1
                echoed = one.prompt if one.config.echo and not one.out else []
                one.out.append(Output([*echoed, 7], [1.0, *(-float(i) for i in echoed[1:]), -9.0]))
'''


@pytest.fixture
def site(tmp_path, monkeypatch) -> Site:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "openvino_genai.py").write_text(STUB)
    (stubs / "openvino.py").write_text("def Tensor(array):\n    return array\n")
    monkeypatch.setenv("PYTHONPATH", f"{stubs}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return Site(Path(sys.executable), tmp_path / "model.gguf", tmp_path, tmp_path / "log")


async def test_streams_run_side_by_side_and_each_ones_requests_in_a_row(site):
    streams = [[Request((1, 1), 4), Request((1, 2), 2)], [Request((2, 1), 5)]]
    async with OPENVINO.standing(site) as worker:
        answers = await worker.run(streams)
        assert worker.server.whole
    assert sorted(answer.num_output_tokens for answer in answers) == [2, 4, 5]
    first, other, second = (next(a for a in answers if a.num_output_tokens == wanted) for wanted in (4, 5, 2))
    assert second.sent_s >= first.last_s, "a stream's next request waits for the one before"
    assert other.event_s[0] < first.last_s, "streams do not wait for each other"
    for answer in answers:
        assert answer.sent_s <= answer.event_s[0]
        assert answer.event_s == sorted(answer.event_s)
        assert answer.last_s == answer.event_s[-1]


async def test_a_prompt_is_scored_without_its_first_token_and_without_what_follows(site):
    async with OPENVINO.standing(site) as worker:
        assert await worker.score([5, 1, 2]) == [-1.0, -2.0]


async def test_a_worker_that_ends_is_an_error_with_its_last_words(site):
    async with OPENVINO.standing(site) as worker:
        with pytest.raises(BenchError, match=r"ended with status 1: AssertionError"):
            await worker.run([[Request((3,), 4)]])
