"""Probes, metrics, models, tokens and docs."""

import asyncio
import re
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from gateway.answers import Status
from gateway.envelope import Envelope
from gateway.tokenizer import ModelTokenizer
from tests.support.gateway_house import House, gateway_house
from tests.support.scripted_scheduler import Script

pytestmark = pytest.mark.asyncio(loop_scope="module")
C = "/v1/completions"


async def until(http: httpx.AsyncClient, path: str, status: int) -> None:
    async with asyncio.timeout(5):
        while (await http.get(path)).status_code != status:
            await asyncio.sleep(0.02)


async def test_b076_ready_follows_the_executors(house: House) -> None:
    await until(house.http, "/ready", 200)
    house.scheduler.executor_state = "lost"
    await until(house.http, "/ready", 503)
    assert (await house.http.get("/health")).status_code == 503
    assert (await house.http.get("/live")).json() == {"status": "ok"}
    house.scheduler.executor_state = "ready"
    await until(house.http, "/ready", 200)


async def test_before_a_model_has_joined_everything_is_503_and_alive(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, ready=False, scheduler={"has_model": False}) as house:
        for path in ("/ready", "/health", "/v1/models"):
            reply = await house.http.get(path)
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "1"
        assert (await house.http.post(C, json={"prompt": "x"})).json()["error"]["code"] == "unavailable"
        assert (await house.http.get("/live")).status_code == 200
        assert (await house.http.get("/metrics")).status_code == 200
        house.scheduler.has_model = True
        await house.until_ready()
        assert (await house.http.post(C, json={"prompt": "x"})).status_code == 200


async def test_a_gateway_that_was_there_first_is_ready_as_soon_as_it_knows_the_model(tokenizer: Tokenizer) -> None:
    """Not at its next look at the scheduler, which is a minute away."""
    empty = {"has_model": False, "executor_state": "connecting"}
    async with gateway_house(tokenizer, ready=False, scheduler=empty, status_interval_s=60.0) as house:
        client = house.server.gateway.client
        async with asyncio.timeout(5):
            while client.status is None or client.status.num_ready():
                await asyncio.sleep(0.01)
        house.scheduler.executor_state, house.scheduler.has_model = "ready", True
        await house.until_ready()


async def test_requests_that_outlive_their_time_get_504(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.state._GRACE_S", 0.1)
    async with gateway_house(tokenizer, request_timeout_s=0.2) as house:
        house.scheduler.script = lambda request: Script([], hang=True)
        for stream in (False, True):
            reply = await house.http.post(C, json={"prompt": "x", "stream": stream})
            assert reply.status_code == 504
            assert reply.json()["error"]["type"] == "timeout_error"
        await house.until_idle()
        assert house.scheduler.submitted[0].timeout_ms == 200


async def test_more_live_requests_than_allowed_get_429(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, max_live_requests=1) as house:
        house.scheduler.script = lambda request: Script([5], hang=True)
        async with house.http.stream("POST", C, json={"prompt": "x", "stream": True, "max_tokens": 9}):
            refused = await house.http.post(C, json={"prompt": "x"})
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"


async def test_b079_a_drain_waits_for_a_request_that_is_just_being_submitted(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer) as house:
        gateway, entering, may_go_on = house.server.gateway, asyncio.Event(), asyncio.Event()
        submit = gateway.client.submit

        async def slow_submit(specs):
            entering.set()
            await may_go_on.wait()
            return await submit(specs)

        gateway.client.submit = slow_submit
        request = asyncio.create_task(house.http.post(C, json={"prompt": "x"}))
        await entering.wait()
        drain = asyncio.create_task(gateway.drain(10))
        await asyncio.sleep(0.05)
        assert not drain.done()
        assert (await house.http.post(C, json={"prompt": "x"})).json()["error"]["code"] == "draining"
        may_go_on.set()
        assert (await request).status_code == 200
        await asyncio.wait_for(drain, 5)


async def test_b010_b078_metrics_count_what_was_given_and_never_nan(house: House) -> None:
    def values(text: str) -> dict[str, float]:
        return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples if "le" not in s.labels}

    before = values((await house.http.get("/metrics")).text)
    assert not [name for name, value in before.items() if value != value]
    house.scheduler.say("Hello, world!")
    answer = (await house.http.post(C, json={"prompt": "abc", "max_tokens": 100})).json()
    after = values((await house.http.get("/metrics")).text)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == answer["usage"]["completion_tokens"]
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == answer["usage"]["prompt_tokens"]
    assert after["vllm:time_to_first_token_seconds_count"] - before["vllm:time_to_first_token_seconds_count"] == 1
    assert after["vllm:e2e_request_latency_seconds_count"] - before["vllm:e2e_request_latency_seconds_count"] == 1
    assert after["vllm:prefix_cache_hits_total"] == 4
    assert after["drumline:ready"] == 1


async def test_status_is_the_schedulers(house: House) -> None:
    status = (await house.http.get("/status")).json()
    Status.model_validate(status)
    assert status["executors"][0]["num_blocks"] == 100
    assert status["executors"][0]["idle_fraction"] is None, "absent, not 0"


async def test_models_with_aliases(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, served_model_name=("one", "org/two")) as house:
        assert [m.id async for m in house.openai.models.list()] == ["one", "org/two"]
        assert (await house.openai.models.retrieve("org/two")).id == "org/two"
        for name in ("one", "org/two"):
            assert (await house.openai.completions.create(model=name, prompt="x")).model == name
        assert (await house.http.post(C, json={"prompt": "x"})).json()["model"] == "one"
        assert (await house.http.post(C, json={"prompt": "x", "model": "scripted"})).status_code == 404


async def test_tokenize_and_back(house: House) -> None:
    text = "Hello 😀 world"
    reply = (await house.http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert reply["tokens"] == house.scheduler.ids(text)
    assert reply["count"] == len(reply["token_strs"]) == len(reply["tokens"])
    assert reply["max_model_len"] == 512
    assert (await house.http.post("/detokenize", json={"tokens": reply["tokens"]})).json() == {"prompt": text}
    chat = (await house.http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]})).json()
    await house.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert chat["tokens"] == house.scheduler.submitted[-1].prompt_token_ids


async def test_a_bos_token_is_put_in_front_of_plain_prompts_once(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, scheduler={"add_bos": True}) as house:
        bos = tokenizer.token_to_id("<|im_start|>")
        await house.http.post(C, json={"prompt": ["abc", "<|im_start|>abc", ""]})
        plain, already, empty = (list(sequence.prompt_token_ids) for sequence in house.scheduler.submitted)
        assert plain == already == [bos, *house.scheduler.ids("abc")]
        assert empty == [bos]
        await house.http.post(C, json={"prompt": house.scheduler.ids("abc")})
        assert list(house.scheduler.submitted[-1].prompt_token_ids) == house.scheduler.ids("abc"), "ids are fed as they are"
        await house.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert list(house.scheduler.submitted[-1].prompt_token_ids).count(bos) == 3, "the template writes its own"


async def test_a_model_without_a_template_says_so(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, scheduler={"template": ""}) as house:
        reply = await house.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert reply.status_code == 400
        assert "chat template" in reply.json()["error"]["message"]


async def test_docs_need_no_content_network(house: House) -> None:
    page = (await house.http.get("/docs")).text
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert links
    for link in links:
        assert link.startswith("/"), link
        assert (await house.http.get(link)).status_code == 200
    document = (await house.http.get("/openapi.json")).json()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert not [path for path, ops in document["paths"].items() for op in ops.values() if "422" in op["responses"]]
    assert "Ignored: metadata" in document["components"]["schemas"]["ChatBody"]["description"]


async def test_b058_long_work_for_one_client_is_done_beside_the_event_loop(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of a whole answer, and long texts that are only counted: seconds in which no other stream would move."""
    threads: list[tuple[str, bool]] = []

    def seen(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def watched(*args: object, **kwargs: object) -> object:
            threads.append((name, threading.current_thread() is threading.main_thread()))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    seen(Envelope, "whole")
    seen(ModelTokenizer, "decode")
    seen(ModelTokenizer, "token_text")
    house.scheduler.say("fine")
    assert (await house.http.post(C, json={"prompt": "x", "logprobs": 5})).json()["choices"][0]["logprobs"]["tokens"]
    assert (await house.http.post("/tokenize", json={"prompt": "x", "return_token_strs": True})).json()["count"] == 1
    assert (await house.http.post("/detokenize", json={"tokens": [5]})).status_code == 200
    assert {name for name, _ in threads} == {"whole", "decode", "token_text"}
    assert not [name for name, in_loop in threads if in_loop]
