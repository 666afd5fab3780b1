"""The `openai` client, unchanged, and the README's own examples against the real model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.served import Served
from tests.support.shared_inputs import MODEL

README = Path(__file__).resolve().parents[2] / "README.md"
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.S)


def test_readme_curl_example_answers(served: Served) -> None:
    [example] = [block for block in blocks("bash") if "curl" in block]
    command = example.replace("http://127.0.0.1:8000", served.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Berlin" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_readme_openai_example_answers(served: Served) -> None:
    [example] = [block for block in blocks("python") if "openai" in block]
    done = subprocess.run(
        [sys.executable, "-c", example.replace("http://127.0.0.1:8000", served.url)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_chat_streams_and_joins_to_the_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, temperature=0, max_tokens=32)
    stream = client.chat.completions.create(
        model=MODEL, messages=CHAT, temperature=0, max_tokens=32, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert "Paris" in whole.choices[0].message.content


def test_models_tokenize_and_back(client: openai.OpenAI, served: Served) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    ids = httpx.post(served.url + "/tokenize", json={"model": MODEL, "prompt": "Hello 😀 world"}).json()["tokens"]
    assert httpx.post(served.url + "/detokenize", json={"model": MODEL, "tokens": ids}).json()["prompt"] == "Hello 😀 world"


@pytest.mark.parametrize("stop", [["DEFGHIJ"], ["DE"], ["F", "G"]])
def test_b009_b010_b007_stop_strings_never_leak(client: openai.OpenAI, stop: list[str]) -> None:
    ask = {"model": MODEL, "prompt": "A B C D E F G, ABCDEFGHIJKLMNOP, ABC", "stop": stop, "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**ask).choices[0]
    streamed = "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True))
    assert streamed == whole.text
    assert not any(s in streamed for s in stop)


def test_b011_min_tokens_holds_back_every_stop(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="test/", stop=["\n"], temperature=0, max_tokens=60, extra_body={"min_tokens": 60}
    )
    assert answer.usage.completion_tokens == 60


def test_b016_b017_b021_scoring_a_prompt(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "Your answer: Yes, the sky is blue and wide.", "max_tokens": 0, "echo": True, "logprobs": 1}
    first = client.completions.create(**ask)
    client.completions.create(**ask | {"prompt": "Your answer: Yes, the sky is red."})
    again = client.completions.create(**ask)
    scores = first.choices[0].logprobs.token_logprobs
    assert scores[0] is None
    assert all(s <= 0 for s in scores[1:])
    assert first.usage.completion_tokens == 0
    assert again.choices[0].logprobs == first.choices[0].logprobs


def test_b018_b020_logprobs_are_finite_and_ordered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=CHAT,
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=5,
        logit_bias={str(i): -100 for i in range(50)},
    )
    for token in answer.choices[0].logprobs.content:
        tops = [t.logprob for t in token.top_logprobs]
        assert len(tops) == 5
        assert tops == sorted(tops, reverse=True)
        assert all(-1e5 < value <= 0 for value in tops)


def test_b027_b028_n_choices_each_its_own(client: openai.OpenAI) -> None:
    for _ in range(3):
        answer = client.completions.create(model=MODEL, prompt="One day", n=8, temperature=1.0, seed=5, max_tokens=12)
        assert [c.index for c in answer.choices] == list(range(8))
        assert len({c.text for c in answer.choices}) > 4
        assert all(c.finish_reason for c in answer.choices)


def test_b029_equal_request_ids_live_together(served: Served) -> None:
    headers = {"x-request-id": "same"}
    with httpx.Client(base_url=served.url, timeout=60, headers=headers) as http:
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as doomed:
            next(doomed.iter_lines())
            whole = http.post("/v1/completions", json=body | {"stream": False, "max_tokens": 20}).json()
        assert whole["usage"]["completion_tokens"] == 20
    served.wait_idle()


def test_b030_b034_no_max_tokens_runs_to_the_end(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say yes."}], temperature=0, max_tokens=None
    )
    assert answer.choices[0].finish_reason == "stop"


def test_b014_every_route_honours_stop_strings(client: openai.OpenAI) -> None:
    """Chat and completions are all routes with text; the token-only seams behind them carry no stop strings at all."""
    said = client.chat.completions.create(model=MODEL, messages=CHAT, temperature=0, max_tokens=32, stop=["Paris"])
    assert said.choices[0].finish_reason == "stop"
    assert "Paris" not in said.choices[0].message.content
    written = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8, stop=["Paris"])
    assert "Paris" not in written.choices[0].text
    assert written.choices[0].finish_reason == "stop"


def test_b022_streams_with_logprobs_dropped_in_the_middle(client: openai.OpenAI, served: Served) -> None:
    ask = {"model": MODEL, "prompt": "One, two,", "max_tokens": 40, "temperature": 0, "extra_body": {"ignore_eos": True}}
    expected = client.completions.create(**ask).choices[0].text
    for _ in range(10):
        with client.completions.create(**ask, logprobs=5, stream=True) as doomed:
            for _, _chunk in zip(range(3), doomed, strict=False):
                pass
    assert client.completions.create(**ask).choices[0].text == expected
    served.wait_idle()
