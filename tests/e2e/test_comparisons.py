"""The comparisons of field_reports.md over shared inputs: what must be equal is equal to the byte (float32)."""

import asyncio
import random

import httpx
import pytest

from tests.support import shared_inputs as shared
from tests.support.generate import Answer, complete_all, complete_each, complete_ways
from tests.support.served import Recorded, Served


def sames(answers: list[Answer]) -> list[tuple[str, list[str], str | None, int]]:
    return [answer.same() for answer in answers]


@pytest.fixture(scope="session")
def alone(served: Served) -> dict[str, list[Answer]]:
    """Every prompt by itself, each way of sampling: the reference of most comparisons."""
    return {way: asyncio.run(complete_each(served.url, shared.PROMPTS, **params)) for way, params in shared.WAYS.items()}


@pytest.mark.parametrize("way", shared.WAYS)
async def test_o1_stream_equals_whole_and_no_half_characters(served: Served, alone: dict[str, list[Answer]], way: str) -> None:
    """B001 B002 B006: streamed text = text at once; no replacement character unless the whole text has it."""
    streamed = await complete_all(served.url, shared.PROMPTS, stream=True, **shared.WAYS[way])
    assert sames(streamed) == sames(alone[way])
    for one, whole in zip(streamed, alone[way], strict=True):
        assert "".join(one.pieces) == whole.text
        if "�" not in whole.text:
            assert all("�" not in piece for piece in one.pieces)


@pytest.mark.parametrize("way", shared.WAYS)
async def test_o2_in_a_batch_equals_alone(served: Served, alone: dict[str, list[Answer]], way: str) -> None:
    """B045 B046 B067 B068 B069: any mates, any order."""
    order = list(range(len(shared.PROMPTS)))
    random.Random(5).shuffle(order)
    together = await complete_all(served.url, [shared.PROMPTS[i] for i in order], **shared.WAYS[way])
    assert sames(together) == [alone[way][i].same() for i in order]
    assert [a.logprobs for a in together] == [alone[way][i].logprobs for i in order]


async def test_o4_prefix_hit_equals_miss(served: Served) -> None:
    """B061: the second run finds its prompt in the cache and says the same."""
    prompts = [f"Question {salt}: " + "what is the meaning of this long shared sentence? " * 6 for salt in ("a", "b", "c")]
    missed = await complete_each(served.url, prompts)
    hit = await complete_each(served.url, prompts)
    assert sames(missed) == sames(hit)
    for first, second in zip(missed, hit, strict=True):
        cached = second.usage["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert cached % 16 == 0
        assert first.usage["prompt_tokens_details"]["cached_tokens"] < cached


async def test_b063_b101_salted_requests_do_not_share_a_prefix(served: Served) -> None:
    prompt = "A secret that only one tenant should find quickly, said at some length. " * 5
    await complete_each(served.url, [prompt], cache_salt="one")
    other = await complete_each(served.url, [prompt], cache_salt="two")
    plain = await complete_each(served.url, [prompt])
    again = await complete_each(served.url, [prompt], cache_salt="one")
    assert other[0].usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert plain[0].usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert again[0].usage["prompt_tokens_details"]["cached_tokens"] > 0


async def test_o5_chunks_of_16_equal_whole(alone: dict[str, list[Answer]]) -> None:
    """B066: against the default, which takes these prompts whole."""
    with Served("--precision", "f32", "--max-num-batched-tokens", "16") as chunked:
        answers = await complete_ways(chunked.url, shared.PROMPTS, ways=shared.WAYS)
    for way in shared.WAYS:
        assert sames(answers[way]) == sames(alone[way])


def test_o5_chunks_of_64_equal_whole(alone: dict[str, list[Answer]], recorded: Recorded) -> None:
    """B066: those of the session that is recorded."""
    for way in shared.WAYS:
        assert sames(recorded.answers[way]) == sames(alone[way])


async def test_o6_preempted_equals_undisturbed(alone: dict[str, list[Answer]]) -> None:
    """B065: 17 blocks for prompts of 26, twice, each of which grows by a block: recompute again and again, and nobody notices."""
    kv_bytes = 2 * 30 * 3 * 64 * 4 * 16 * 17  # of SmolLM2 in float32
    with Served("--precision", "f32", "--kv-memory", str(kv_bytes), "--max-model-len", "256") as tight:
        answers = await complete_ways(tight.url, shared.PROMPTS, ways=shared.WAYS)
        for way in shared.WAYS:
            assert sames(answers[way]) == sames(alone[way])
        assert tight.status()["num_preemptions"] > 0
        tight.wait_idle()


async def test_o8_dropped_streams_leave_nothing(served: Served) -> None:
    """B054 B055: streams dropped after the first piece; the books are exact again and the next request is served."""

    async def drop(http: httpx.AsyncClient, index: int) -> None:
        body = {"model": shared.MODEL, "prompt": "Tell me a long story. " * 20 + str(index % 7), "max_tokens": 200, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as reply:
            async for _ in reply.aiter_lines():
                return

    async with httpx.AsyncClient(base_url=served.url, timeout=120) as http:
        for _ in range(5):
            await asyncio.gather(*(drop(http, index) for index in range(20)))
    status = served.wait_idle()
    assert int(status["num_waiting"]) == 0
    assert (await complete_each(served.url, ["still here?"]))[0].finish_reason in {"stop", "length"}


async def test_o10_usage_counts_what_was_sent(served: Served, alone: dict[str, list[Answer]]) -> None:
    """B013: completion_tokens is the number of tokens shown; the scheduler's counter only rises."""
    for answers in alone.values():
        for answer in answers:
            assert answer.usage["completion_tokens"] == len(answer.tokens)
            assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
    before = int(served.status()["num_generated_tokens"])
    await complete_each(served.url, ["count me"], max_tokens=5, ignore_eos=True)
    assert int(served.status()["num_generated_tokens"]) == before + 5


async def test_b064_no_cross_talk(served: Served) -> None:
    """Each prompt carries its own secret to repeat; a fifth are aborted; nobody ever shows another's."""
    secrets = [f"zq{index:03d}x" for index in range(40)]

    async def ask(http: httpx.AsyncClient, index: int) -> str:
        body = {"model": shared.MODEL, "prompt": "Repeat:" + f" {secrets[index]}" * 3, "max_tokens": 12, "temperature": 0}
        if index % 5 == 0:
            try:
                await http.post("/v1/completions", json=body, timeout=0.15)
            except httpx.TimeoutException:
                return ""
        return (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]

    async with httpx.AsyncClient(base_url=served.url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        answers = await asyncio.gather(*(ask(http, index) for index in range(len(secrets))))
    for index, text in enumerate(answers):
        assert not [s for s in secrets if s != secrets[index] and s in text]
