"""A Redis transport for kombu in which every message is in its queue, or in the list of messages that workers hold.

kombu's own transport takes a message with BRPOP and notes a moment later who holds it: a worker that is killed between the two loses the
message, and so does a connection that breaks on the way. Here a script does both at once. A message belongs to a worker, not to a
connection, so the worker keeps it while Redis restarts. A message that was not renewed for `REDELIVER_S` goes back to its queue. All times
are those of Redis' own clock.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import time
import uuid
from collections.abc import Sequence
from functools import cache
from queue import Empty
from typing import Any

from rankwise.broker.messages import UNREADABLE

HIGHEST = 9
REDELIVER_S = 30
_SEPARATOR = "\x06\x16"  # stands between queue and priority in the names of kombu's lists
_MANY = 100  # replies read at once

log = logging.getLogger("rankwise.broker")

# KEYS: what is held by its tag, when each was last renewed, the lists in the order of their priority. ARGV: start of the tags, how many.
# Asked again after its answer was lost on the way, it gives the same ones.
_TAKE = """
local now, found = redis.call('TIME')[1], {}
while true do
  local kept = redis.call('HGET', KEYS[1], ARGV[1] .. #found)
  if not kept then break end
  table.insert(found, cmsgpack.unpack(kept)[2])
end
if #found > 0 then return found end
for i = 3, #KEYS do
  while #found < tonumber(ARGV[2]) do
    local item = redis.call('RPOP', KEYS[i])
    if not item then break end
    if item ~= '' then  -- an empty item only wakes a waiting worker
      local tag = ARGV[1] .. #found
      redis.call('HSET', KEYS[1], tag, cmsgpack.pack({KEYS[i], item}))
      redis.call('ZADD', KEYS[2], now, tag)
      table.insert(found, item)
    end
  end
end
return found
"""
# A mark in front says that it has been delivered before. They go where the next ones are taken from.
_GIVE_BACK = """
local function give_back(tags)
  for _, tag in ipairs(tags) do
    local kept = redis.call('HGET', KEYS[1], tag)
    if kept then
      local list, item = unpack(cmsgpack.unpack(kept))
      redis.call('RPUSH', list, string.sub(item, 1, 1) == '!' and item or '!' .. item)
    end
    redis.call('HDEL', KEYS[1], tag)
    redis.call('ZREM', KEYS[2], tag)
  end
end
"""
# ARGV: how old is too old, then the tags that are renewed. A tag that another worker has taken meanwhile is not renewed.
_RENEW = (
    _GIVE_BACK
    + """
local now = redis.call('TIME')[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[2], 'XX', now, ARGV[i]) end
give_back(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. now - ARGV[1], 'LIMIT', 0, 1000))
"""
)


@cache
def redis_transport() -> Any:
    """A class for `kombu.Connection(transport=…)`, which finds the address among its options. Made when asked for: kombu may be missing."""
    virtual: Any = importlib.import_module("kombu.transport.virtual")
    redis: Any = importlib.import_module("redis")
    away = (redis.ConnectionError, redis.TimeoutError)

    class QoS(virtual.QoS):  # type: ignore[misc]
        def ack(self, delivery_tag: str) -> None:
            self.channel.acked.append(delivery_tag)
            super().ack(delivery_tag)

        def restore_unacked(self) -> list[Any]:
            self._flush()
            self.channel.give_back(list(self._delivered))
            self._delivered.clear()
            return []

        def held(self) -> list[str]:
            return [tag for tag in self._delivered if tag not in self._dirty]

    class Channel(virtual.Channel):  # type: ignore[misc]
        """Reads from one queue. A consumer that does not acknowledge has to be the only one of its queue."""

        def __init__(self, connection: Any, **options: Any) -> None:
            super().__init__(connection, **options)
            self.acked: list[str] = []
            self._queue, self._is_only_reader = "", False
            self._tag, self._takes, self._renew_at = uuid.uuid4().hex, 0, 0.0
            retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)  # the caller tries again, and looks meanwhile whether it is to stop
            url = connection.client.transport_options["url"]
            self.client = redis.Redis.from_url(url, retry=retry, socket_timeout=10, socket_connect_timeout=5)
            self._take = self.client.register_script(_TAKE)
            self._give_back = self.client.register_script(_GIVE_BACK + "give_back(ARGV)")
            self._renew = self.client.register_script(_RENEW)
            self.client.ping()

        def basic_consume(self, queue: str, no_ack: bool, *args: Any, **options: Any) -> None:
            self._queue, self._is_only_reader = queue, no_ack
            super().basic_consume(queue, no_ack, *args, **options)

        # ---- what kombu asks of a channel

        def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
            priority = self._get_message_priority(message)
            pipe = self.client.pipeline(transaction=False)
            pipe.lpush(_list_of(queue, priority), json.dumps(message))
            if priority:
                pipe.lpush(queue, "")  # an empty item wakes waiting workers, which can wait at one list only
            if expiration := message["properties"].get("expiration"):
                pipe.pexpire(queue, int(expiration))  # a reader that is gone leaves its queue behind
            pipe.execute()

        def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
            item = self.client.rpop(queue)
            if item is None:
                raise Empty
            return self._payload(item, queue, "")

        def _get_many(self, queues: Sequence[str], timeout: float | None = None) -> None:
            """Hands over what is there; waits until something is."""
            if not self._hand_over():
                self.client.blmove(self._queue, self._queue, timeout or 1, "RIGHT", "RIGHT")  # moves nothing, but waits
                if not self._hand_over():
                    raise Empty

        def close(self) -> None:
            try:
                if not self.closed:
                    self.flush()
            finally:
                super().close()
                self.client.close()

        # ---- taking, holding, giving back

        def _hand_over(self) -> int:
            if self._is_only_reader:
                items = self.client.lrange(self._queue, -_MANY, -1)[::-1]
                tags = [""] * len(items)
            else:
                start, room = f"{self._tag}:{self._takes}:", self.qos.can_consume_max_estimate() or _MANY
                items = self._take(keys=[*_held(self._queue), *_lists(self._queue)], args=[start, room])
                self._takes += 1
                tags = [f"{start}{i}" for i in range(len(items))]
            for item, tag in zip(items, tags):
                try:
                    self.connection._deliver(self._payload(item, self._queue, tag), self._queue)
                except BaseException:  # no longer renewed, the message goes to another worker
                    self.qos._delivered.pop(tag, None)
                    raise
            if items and self._is_only_reader:
                self.client.ltrim(self._queue, 0, -1 - len(items))  # only now: what is lost on the way is read again
            return len(items)

        def flush(self) -> None:
            """Send all acknowledgements in one round trip."""
            if tags := self.acked:
                held, since = _held(self._queue)
                self.client.pipeline(transaction=False).hdel(held, *tags).zrem(since, *tags).execute()
                self.acked = []

        def renew(self) -> None:
            """Renew the messages that this worker holds, and give back those whose worker has stopped renewing them."""
            if self._queue and not self._is_only_reader and time.monotonic() >= self._renew_at:
                self._renew(keys=_held(self._queue), args=[REDELIVER_S, *self.qos.held()])
                self._renew_at = time.monotonic() + REDELIVER_S / 4

        def give_back(self, tags: list[str]) -> None:
            self._give_back(keys=_held(self._queue), args=tags)

        def _payload(self, item: bytes, queue: str, tag: str) -> dict[str, Any]:
            """The message as kombu wants it."""
            payload = _opened(item.removeprefix(b"!"))
            payload["properties"]["delivery_tag"] = tag
            payload["properties"]["delivery_info"] = {"exchange": "", "routing_key": queue, "redelivered": item.startswith(b"!")}
            return payload

    Channel.QoS = QoS

    class Transport(virtual.Transport):  # type: ignore[misc]
        driver_type = driver_name = "redis"
        polling_interval = 0.005  # while as much is held as may be
        connection_errors = (*virtual.Transport.connection_errors, OSError, *away)
        channel_errors = (*virtual.Transport.channel_errors, redis.ResponseError)
        _is_away = False

        def drain_events(self, connection: Any, timeout: float | None = None) -> None:
            """While Redis is away nothing comes, and nothing that is held is given up."""
            try:
                for channel in self.channels:
                    channel.flush()
                    channel.renew()
                super().drain_events(connection, timeout)
                self._is_away = False
            except TimeoutError:
                self._is_away = False
                raise
            except away as error:
                if not self._is_away:
                    log.warning("Redis is away: %s", error)
                self._is_away = True
                time.sleep(min(timeout or 0.5, 0.5))
                raise TimeoutError from None

    Transport.Channel = Channel
    return Transport


def _opened(item: bytes) -> dict[str, Any]:
    """The envelope. Where its body cannot be read but its properties can, these are kept: the sender they name is told, and the message
    goes to the dead letters."""
    try:
        said = json.loads(item)
    except (ValueError, RecursionError):
        said = None
    said = said if isinstance(said, dict) else {}
    properties, headers, body = said.get("properties"), said.get("headers") or {}, said.get("body")
    if isinstance(properties, dict) and isinstance(headers, dict) and isinstance(body, str):
        try:
            data = base64.b64decode(body) if properties.pop("body_encoding", None) == "base64" else body.encode()
            return {**said, "body": data, "properties": properties, "headers": headers}
        except ValueError:
            pass
    properties = properties if isinstance(properties, dict) else {}
    return {"content-type": UNREADABLE, "body": item, "properties": properties, "headers": {}}


def _held(queue: str) -> list[str]:
    return [f"rankwise:{queue}:held", f"rankwise:{queue}:held-since"]


def _lists(queue: str) -> list[str]:
    return [_list_of(queue, priority) for priority in range(HIGHEST, -1, -1)]


def _list_of(queue: str, priority: int) -> str:
    return f"{queue}{_SEPARATOR}{priority}" if priority else queue
