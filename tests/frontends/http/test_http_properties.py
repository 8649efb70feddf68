"""Whatever the cuts and the noise, a connection answers and disturbs no other."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.http.http_client import binary, post, serve

from slacktide.frontends.settings import HttpSettings

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, 700), max_size=6), size=st.integers(0, 2000))
def test_any_cut_of_pipelined_requests_gives_the_same_answers(cuts, size):
    async def body():
        async with serve(HttpSettings(receive_bytes=512)) as front_end:
            data, line = binary(bytes(size))
            chunked = b"3\r\n" + data[:3] + b"\r\n%x;x=y\r\n" % (len(data) - 3)
            raw = (
                post(data, line)
                + b"POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
                + line.encode()
                + b"\r\n\r\n"
                + chunked
                + data[3:]
                + b"\r\n0\r\n\r\n"
                + GET
                + post(data, line)
            )
            client = await front_end.connect()
            for cut in cuts:
                client.send(raw[:cut])
                raw = raw[cut:]
                await asyncio.sleep(0.001)
            client.send(raw)
            answers = [await client.answer() for _ in range(4)]
            client.close()
            assert [answer.status for answer in answers] == [200] * 4
            assert answers[0].body == answers[1].body == answers[3].body
            assert front_end.data.tensors == [[bytes(size)]] * 3

    asyncio.run(body())


@given(noise=st.binary(max_size=60), place=st.integers(0, 200), cut=st.integers(0, 200))
def test_mutated_requests_never_break_the_server(noise, place, cut):
    async def body():
        async with serve() as front_end:
            raw = post(*binary(b"abcd"))
            client = await front_end.connect()
            client.send(raw[:place] + noise + raw[place + cut :])
            client.writer.write_eof()
            await client.ended()
            client.close()
            assert (await front_end.ask(GET)).status == 200
            assert all(access.status != 500 for access in front_end.log)

    asyncio.run(body())
