"""Keys, headers, bodies and paths, on raw sockets where a client library would be too polite."""

import asyncio
import re
import time

import pytest
from tokenizers import Tokenizer

from gateway.auth import PUBLIC_PATHS, ApiKeys
from tests.support.gateway_house import House, gateway_house, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")
C = "/v1/completions"
H = "/v1/chat/completions"
KEY = "sk-secret-one"


def status(raw: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", raw)
    return int(found[1]) if found else 0


async def test_b094_every_route_but_two_asks_for_a_key(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, api_key=(KEY, "sk-two")) as house:
        app = house.server.gateway
        assert app is not None
        document = (await house.http.get("/openapi.json")).json()
        paths = [path.replace("{model_id}", "x") for path in document["paths"]] + ["/docs", "/redoc", "/openapi.json", "/nothing"]
        assert "/v1/chat/completions" in paths
        for path in paths:
            for method in ("GET", "POST"):
                raw = await house.raw(
                    f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                )
                assert (status(raw) == 401) == (path.encode() not in PUBLIC_PATHS), (method, path, raw[:80])
        odd = [
            b"GET /v1/models HTTP/1.1\r\nHost: a/?x=\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: x/live\r\n",
            b"GET //v1/../v1/models HTTP/1.1\r\nHost: x\r\n",
            b"GET /live/../v1/models HTTP/1.1\r\nHost: x\r\n",
            b"GET /live%2f..%2fv1/models HTTP/1.1\r\nHost: x\r\n",
            b"GET /v1%2fmodels HTTP/1.1\r\nHost: x\r\n",
            b"GET http://x/v1/models HTTP/1.1\r\nHost: x\r\n",
            b"GET http://x/live HTTP/1.1\r\nHost: x\r\n",
            b"GET /liv%65 HTTP/1.1\r\nHost: x\r\n",
            b"GET /live/ HTTP/1.1\r\nHost: x\r\n",
            b"GET /v1/models HTTP/1.0\r\n",
            b"GET /v1/models;/live HTTP/1.1\r\nHost: x\r\n",
            b"OPTIONS * HTTP/1.1\r\nHost: x\r\n",
        ]
        for head in odd:
            raw = await house.raw(head + b"Connection: close\r\n\r\n")
            assert status(raw) == 401, (head, raw[:100])


async def test_b101_b102_keys_are_compared_as_digests_and_name_tenants(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, api_key=(KEY, "sk-two")) as house:
        house.scheduler.say("fine")
        wrong = ["", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer \xff"]
        for value in wrong:
            raw = await house.raw(
                f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: {value}\r\nConnection: close\r\n\r\n".encode("latin1")
            )
            assert status(raw) == 401, value
            assert b"www-authenticate: Bearer" in raw
        given = f"Authorization: Bearer {KEY}\r\n"
        twice = f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{given}{given}Connection: close\r\n\r\n"
        assert status(await house.raw(twice.encode())) == 401
        for key in (KEY, "sk-two", KEY):
            reply = await house.http.post(C, json={"prompt": "x"}, headers={"authorization": f"bearer {key}"})
            assert reply.status_code == 200
        one, two, again = (sequence.tenant for sequence in house.scheduler.submitted)
        assert one == again != two
        assert KEY not in one
        assert re.fullmatch(r"[A-Za-z0-9._:\-]{8,128}", one)
    source = ApiKeys._tenant.__code__.co_names
    assert "compare_digest" in source


async def test_b096_headers_are_bounded_in_bytes_and_number(house: House) -> None:
    giant = await house.raw(b"GET /live HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000_000, timeout_s=10)
    assert status(giant) in {0, 431}, "refused or cut"
    for head in (b"X: " + b"a" * 17_000 + b"\r\n", b"".join(b"x%d: y\r\n" % i for i in range(101)), b"X: y\r\n" * 10_000):
        raw = await house.raw(b"GET /live HTTP/1.1\r\nHost: x\r\n" + head + b"Connection: close\r\n\r\n")
        assert status(raw) in {0, 431}, raw[:100]
    line = await house.raw(b"GET /live?" + b"a" * 17_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert status(line) == 431
    assert b'"invalid_request_error"' in line
    assert (await house.http.get("/live")).status_code == 200


async def test_b096_bodies_are_bounded_said_or_chunked(house: House) -> None:
    said = await house.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    assert status(said) == 413
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = await house.raw(head + (b"10000\r\n" + b" " * 0x10000 + b"\r\n") * 80)
    assert status(endless) in {0, 413}, "refused, or cut while still sending"
    almost = await house.http.post(
        C, content=b'{"prompt": "' + b"a" * (4 * 1024 * 1024 - 20) + b'"}', headers={"content-type": "application/json"}
    )
    assert almost.json()["error"]["param"] == "prompt"
    over = await house.http.post(C, content=b" " * (4 * 1024 * 1024 + 1))
    assert over.status_code == 413
    assert over.json()["error"]["type"] == "invalid_request_error"


async def test_b096_slow_headers_are_cut(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.limits.HEADER_TIMEOUT_S", 0.5)
    begin_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)

    async def drip() -> None:
        for byte in b"GET /live HTTP/1.1\r\nHost: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx":
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    raw = await asyncio.wait_for(reader.read(), 5)
    dripping.cancel()
    assert status(raw) == 408
    assert time.perf_counter() - begin_s < 3
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    assert await asyncio.wait_for(reader.read(), 5) == b"", "a connection that says nothing is closed"
    writer.close()


async def test_b096_slow_bodies_are_cut(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, body_timeout_s=0.3) as house:
        raw = await house.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert status(raw) == 408


async def test_b103_errors_leak_nothing_on_any_route(house: House) -> None:
    document = (await house.http.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method in operations:
            for body in (b"{", b'{"x": object()}', b"\x00\xff", b'{"prompt": {"a": [1]}, "messages": 3}'):
                reply = await house.http.request(
                    method, path.replace("{model_id}", "%00'\"<x>"), content=body, headers={"content-type": "application/json"}
                )
                assert reply.status_code < 500, (path, reply.text)
                assert not re.search(r"0x[0-9a-f]{6}|Traceback|site-packages|\.py\b|127\.0\.0\.1", reply.text), (path, reply.text)


async def test_garbage_is_refused_and_pipelined_requests_are_served(house: House) -> None:
    assert status(await house.raw(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")) == 400
    assert status(await house.raw(b"GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n")) == 400
    both = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert (await house.raw(both)).count(b'{"status":"ok"}') == 2
    smuggled = request_bytes(C, {"prompt": "x"}, headers="Transfer-Encoding: chunked\r\n") + b"\r\n\r\n"
    assert status(await house.raw(smuggled)) in {0, 400}


async def test_cors_only_for_named_origins(tokenizer: Tokenizer) -> None:
    async with gateway_house(tokenizer, cors_origin=("https://a.example",), api_key=(KEY,)) as house:
        ask = {
            "origin": "https://a.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        preflight = await house.http.options(C, headers=ask)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        other = await house.http.get("/live", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
