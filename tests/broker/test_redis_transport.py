"""A message in Redis always lies somewhere: in its queue, or with what a worker holds."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu")
from rankwise.broker import redis_transport
from rankwise.broker.connecting import body_of, connect, consumer_of, publish, release, task_queue
from rankwise.broker.messages import JSON, Body
from tests.broker.servers import Redis

QUEUE = "q"


@pytest.fixture(params=[Redis], ids=["redis"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


class Reader:
    def __init__(self, url: str, prefetch: int = 10) -> None:
        self.messages: list[Any] = []
        self.connection = connect(url)
        self.consumer = consumer_of(self.connection, task_queue(QUEUE), self.messages.append)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    @property
    def channel(self) -> Any:
        return self.consumer.channel

    def read(self, timeout_s: float = 0.05) -> list[str]:
        """The bodies that came."""
        del self.messages[:]
        try:
            self.connection.drain_events(timeout=timeout_s)
        except TimeoutError:
            pass
        return [body_of(message).data.decode(errors="replace") for message in self.messages]


def send(url: str, *texts: str, priority: int = 0) -> None:
    with connect(url) as connection:
        producer = connection.Producer()
        for text in texts:
            publish(producer, Body(JSON, text.encode()), QUEUE, priority=priority)


def test_what_was_taken_over_a_connection_that_broke_comes_back(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_transport, "REDELIVER_S", 0)
    send(broker.url, "a")
    lost, reader = Reader(broker.url), Reader(broker.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lost.channel.connection, "_deliver", lambda *_: sys.exit("killed"))  # taken from Redis, and not in our hands yet
        with pytest.raises(SystemExit):
            lost.read()
    end = time.monotonic() + 20
    while not (found := reader.read()):
        reader.channel._renew_at = 0
        assert time.monotonic() < end
    assert found == ["a"] and reader.messages[0].delivery_info["redelivered"]
    release(lost.connection)
    release(reader.connection)


def test_an_answer_of_redis_that_was_lost_on_the_way_is_asked_for_again(broker: Any) -> None:
    send(broker.url, *"abc")
    reader = Reader(broker.url, prefetch=2)
    start = f"{reader.channel._tag}:{reader.channel._takes}:"
    lists = [*redis_transport._held(QUEUE), *redis_transport._lists(QUEUE)]
    assert len(reader.channel._take(keys=lists, args=[start, 2])) == 2  # done, and we were never told
    assert reader.read() == ["a", "b"]
    for message in reader.messages:
        message.ack()
    assert reader.read() == ["c"]
    release(reader.connection)


def test_what_is_held_is_renewed_and_acknowledged_over_a_restart(broker: Any) -> None:
    send(broker.url, "a", "b")
    reader = Reader(broker.url)
    assert reader.read() == ["a", "b"]
    first, second = reader.messages
    since = reader.channel.client.zrange("rankwise:q:held-since", 0, -1, withscores=True)
    broker.kill()
    assert reader.read() == []  # no error, and nothing is given up
    broker.start()
    first.ack()
    time.sleep(1.1)  # Redis' clock is read in whole seconds
    reader.channel._renew_at = 0
    reader.read()
    [(_, renewed)] = reader.channel.client.zrange("rankwise:q:held-since", 0, -1, withscores=True)
    assert renewed > since[0][1]
    release(reader.connection)
    other = Reader(broker.url)
    assert other.read() == ["b"] and second.delivery_tag != other.messages[0].delivery_tag
    other.messages[0].ack()
    release(other.connection)
    assert Reader(broker.url).channel.client.keys("*") == []


def test_no_more_is_taken_than_may_be_held(broker: Any) -> None:
    send(broker.url, *"abcde")
    reader = Reader(broker.url, prefetch=3)
    assert reader.read() == ["a", "b", "c"]
    taken = list(reader.messages)
    assert reader.read() == []
    taken[1].ack()
    assert reader.read() == ["d"]
    release(reader.connection)


def test_the_urgent_ones_come_first_and_wake_who_waits(broker: Any) -> None:
    send(broker.url, "low")
    send(broker.url, "high", priority=9)
    send(broker.url, "middle", priority=5)
    reader = Reader(broker.url)
    assert reader.read() == ["high", "middle", "low"]
    late = threading.Timer(0.5, send, [broker.url, "urgent"], {"priority": 9})
    late.start()
    started = time.monotonic()
    assert reader.read(60) == ["urgent"] and time.monotonic() - started < 50
    late.join()
    release(reader.connection)


@pytest.mark.parametrize(
    "item",
    [
        b"{",
        b"\xff",
        b"[]",
        b'{"body": 5, "properties": {}}',
        b'{"properties": 7}',
        b'{"body": "a", "properties": {"body_encoding": "base64"}}',
    ],
)
def test_what_cannot_be_read_is_handed_over_all_the_same(broker: Any, item: bytes) -> None:
    reader = Reader(broker.url)
    reader.channel.client.lpush(QUEUE, item)
    reader.read()
    [message] = reader.messages
    assert body_of(message).data == item and message.content_type != JSON
    release(reader.connection)


@pytest.mark.parametrize(
    "wrong", [{"headers": [1]}, {"headers": "x"}, {"body": 5}, {"body": None}, {"body": "a", "properties": {"body_encoding": "base64"}}]
)
def test_who_sent_what_cannot_be_read_can_be_told(broker: Any, wrong: dict[str, Any]) -> None:
    properties = {"reply_to": "x", "correlation_id": "1", **wrong.get("properties", {})}
    reader = Reader(broker.url)
    reader.channel.client.lpush(QUEUE, json.dumps({"body": "{}", "content-type": JSON, **wrong, "properties": properties}))
    reader.read()
    [message] = reader.messages
    assert message.content_type != JSON and message.properties["reply_to"] == "x" and message.properties["correlation_id"] == "1"
    release(reader.connection)


def test_a_message_by_hand_needs_a_body_and_properties_only(broker: Any) -> None:
    reader = Reader(broker.url)
    reader.channel.client.lpush(QUEUE, json.dumps({"body": "{}", "content-type": JSON, "properties": {"reply_to": "x"}}))
    assert reader.read() == ["{}"] and reader.messages[0].properties["reply_to"] == "x"
    release(reader.connection)


KILLED = """
import sys
from rankwise.broker import redis_transport
from tests.broker.test_redis_transport import Reader
redis_transport.REDELIVER_S = 2
reader = Reader(sys.argv[1], prefetch=5)
with open(sys.argv[2], "a") as file:
    print("ready", flush=True)
    while True:
        for text in reader.read(0.2):
            print(text, file=file, flush=True)
        for message in reader.messages:
            message.ack()
"""


@pytest.mark.live
@pytest.mark.timeout(600)  # 21 interpreters are started, which takes minutes on a machine that has much else to do
def test_nothing_is_lost_however_often_a_reader_is_killed(broker: Any, tmp_path: Path) -> None:
    """Each message is sent once, and nobody sends it again."""
    done, count = tmp_path / "done", 10_000
    send(broker.url, *map(str, range(count)))

    def missing() -> int:
        return count - len(set(done.read_text().split()))

    for kill in range(21):
        with subprocess.Popen([sys.executable, "-c", KILLED, broker.url, str(done)], stdout=subprocess.PIPE) as reader:
            try:
                assert reader.stdout is not None and reader.stdout.readline()
                end = time.monotonic() + (0.02 * (kill % 7) if kill < 20 else 60)  # the last one may finish
                while time.monotonic() < end and missing():
                    time.sleep(0.01)
            finally:
                reader.kill()
    assert missing() == 0
