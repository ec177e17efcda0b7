"""The broker's connection and queues, the same for Redis, RabbitMQ and whatever else kombu speaks."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from rankwise.broker.messages import BINARY, HEADER_LENGTH, JSON, Body, Malformed
from rankwise.broker.redis_transport import HIGHEST, redis_transport
from rankwise.errors import UsageError

TASKS = "rankwise.tasks"
HEARTBEAT_S = 10  # of connections that wait for messages: after twice that RabbitMQ gives a silent worker's messages to another
# Sending and closing over a link that loses everything fail after ten to twenty seconds, and not after a second or fifteen minutes.
_CONFIRM_S = 20
_SOCKET = {socket.TCP_USER_TIMEOUT: 10_000, socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
_BROKERS = "give redis://HOST:6379/0 or amqp://USER:PASSWORD@HOST:5672//"


def connect(address: str, heartbeat_s: float = 0) -> Any:
    """A kombu connection. Nothing is sent yet; with a heartbeat, `heartbeat_check` has to be called about once a second."""
    kombu = _import("kombu")
    check_address(address)
    options: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if is_redis(address):
        _import("redis")
        options, more = {"url": address}, {"transport": redis_transport()}
    elif is_amqp(address):
        options = {"confirm_publish": True, "socket_settings": _SOCKET}  # sending raises unless the broker has confirmed the message
    try:
        return kombu.Connection(address, transport_options=options, connect_timeout=5, heartbeat=heartbeat_s, **more)
    except Exception as error:  # what kombu raises for a transport without its client library differs
        scheme = address.partition("://")[0]
        why = f"kombu: {type(error).__name__}: {str(error)[:200]}"
        raise UsageError(f"{scheme}:// is not a broker that can be used here", why=why, next=(_BROKERS,)) from None


def check_address(address: str) -> None:
    """Raise for what no client could read; the part that may be a password is never shown."""
    if "://" not in address:
        raise UsageError(f"{address.rpartition('@')[2]!r} is not the address of a broker", next=(_BROKERS,))
    for one in address.split(";"):  # kombu tries several in turn
        try:
            parts = urlsplit(one)
            is_cut = parts.port is not None and "@" not in parts.netloc and "@" in one
        except ValueError:
            is_cut = True
        if is_cut:
            raise UsageError(
                f"the address {one.partition('://')[0]}://… cannot be read: what stands for its port is no number",
                why="a user or password with one of / ? # in it ends there",
                next=("write %2F for /, %3F for ?, %23 for # in them", _BROKERS),
            )


def cannot_reach(address: str, error: Exception) -> UsageError:
    """The finding for a broker that cannot be reached; it shows the address without password and query."""
    parts = urlsplit(address)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    steps = ("see whether it runs there and lets this user in",)
    return UsageError(f"the broker {where} cannot be reached", why=f"{type(error).__name__}: {str(error)[:300]}", next=steps)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)  # by name, because kombu has no types
    except ImportError:
        raise UsageError(f"brokers need {name}, which is not installed", next=('pip install "rankwise[broker]"',)) from None


def is_redis(address: str) -> bool:
    return address.startswith(("redis://", "rediss://"))


def is_amqp(address: str) -> bool:
    return address.startswith(("amqp://", "amqps://", "pyamqp://"))


def task_queue(name: str) -> Any:
    """A queue that survives a restart of the broker, and delivers by priority."""
    return plain_queue(name, max_priority=HIGHEST)


def plain_queue(name: str, expires_s: float | None = None, **more: Any) -> Any:
    kombu = _import("kombu")
    return kombu.Queue(name, exchange=kombu.Exchange(""), routing_key=name, durable=True, expires=expires_s, **more)


def consumer_of(connection: Any, queue: Any, on_message: Callable[[Any], None], no_ack: bool = False) -> Any:
    """A consumer that hands over raw messages, without decoding them."""
    return _import("kombu").Consumer(connection.channel(), [queue], on_message=on_message, no_ack=no_ack)


def publish(
    producer: Any, body: Body, routing_key: str, *, priority: int | None = None, headers: dict[str, Any] | None = None, **more: Any
) -> None:
    """Send raw bytes as a persistent message. The highest priority is delivered first; None is for queues without priorities."""
    all_headers = {**(headers or {}), **({HEADER_LENGTH: body.header_length} if body.content_type == BINARY else {})}
    producer.publish(
        body.data,
        exchange="",
        routing_key=routing_key,
        content_type=body.content_type,
        content_encoding="utf-8" if body.content_type == JSON else "binary",
        headers=all_headers,
        delivery_mode=2,
        priority=priority,
        confirm_timeout=_CONFIRM_S,
        **more,
    )


def body_of(message: Any) -> Body:
    """The message's raw bytes. kombu's own decoders, among them pickle, are never used."""
    data = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    length = message.headers.get(HEADER_LENGTH, 0)
    if isinstance(length, str) and length.isascii() and length.isdigit() and len(length) < 19:
        length = int(length)
    return Body(_kind(message.content_type or JSON), data, length)


def _kind(content_type: Any) -> Any:
    """The content type without `; charset=utf-8`, which clients in other languages add to JSON."""
    kind, _, more = content_type.partition(";") if isinstance(content_type, str) else (content_type, "", "")
    return kind.strip().lower() if more.replace(" ", "").lower() == "charset=utf-8" else content_type


def check_reply_to(name: Any) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > 200 or not name.isprintable():
        raise Malformed("reply_to has to be the name of a queue")
    return name


def release(connection: Any, is_broken: bool = False) -> None:
    """Close the connection without raising; a broken one is dropped without telling the broker."""
    try:
        if connection is not None:
            connection.collect() if is_broken else connection.release()
    except Exception:  # the connection is gone already
        pass
