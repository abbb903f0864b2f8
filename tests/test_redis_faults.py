"""A Redis that is killed, frozen, slow, cut off or garbled at any byte: an error or a miss, never another's frame."""

from __future__ import annotations

import contextlib
import functools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.redis_replies import Reason, Redirect, RedisStoreError, parse_line
from cache.redis_settings import RedisSettings
from cache.redis_store import RedisStore
from cache.resp_socket import RespSocket
from cache.store import BlockStore, ChunkKey, StoreError
from tests.faulty_proxy import Edit, FaultyProxy, cut_at, faulty_proxy, flipped_at, once_at, untouched
from tests.redis_fixtures import RedisServer, needs_redis, redis_server, wait_for
from tests.store_contract import ALONE, chunk_key, frame_of, in_threads, is_whole, read

pytestmark = needs_redis

SIZE = 150
A, B = chunk_key("a"), chunk_key("b")
REPLY = len(b"$150\r\n") + SIZE + len(b"\r\n")
SOON = 15.0
"""Seconds within which a call with a timeout of half a second is over, however busy the machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultyProxy]:
    server.do("FLUSHALL")
    with faulty_proxy(server.port) as between:
        yield between


@contextlib.contextmanager
def opened(port: int, timeout: float = 20.0, **others: float) -> Iterator[RedisStore]:
    store = RedisStore(RedisSettings(url=f"redis://127.0.0.1:{port}", timeout=timeout, max_rest=0.05, **others))  # type: ignore[arg-type]  # numbers
    try:
        yield store
    finally:
        store.close()


def fill(store: BlockStore, *keys: ChunkKey, size: int = SIZE) -> None:
    for key in keys:
        assert store.write(key, [frame_of(key, size)], ALONE) is True


def outcome(store: BlockStore, key: ChunkKey, size: int = SIZE) -> str:
    """What a codec with a checksum would make of it."""
    try:
        content = read(store, key, size)
    except StoreError:
        return "error"
    if content is None:
        return "miss"
    return "frame" if content == frame_of(key, size) else "damaged"


def answers(store: BlockStore, key: ChunkKey = A, size: int = SIZE) -> bool:
    return outcome(store, key, size) == "frame"


# --- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(REPLY))
def test_a_reply_that_is_cut_off(server: RedisServer, proxy: FaultyProxy, place: int) -> None:
    with opened(server.port) as direct, opened(proxy.port) as store:
        fill(direct, A)
        proxy.replies = cut_at(place)
        assert outcome(store, A) == "error"
        assert store.failures() == {"closed": 1}
        proxy.replies = untouched
        wait_for(lambda: answers(store), "it is well again")


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x10, 0x1D, 0x80])
def test_a_reply_with_a_flipped_byte(server: RedisServer, proxy: FaultyProxy, mask: int) -> None:
    with opened(server.port) as direct:
        fill(direct, A, B)
    begins = len(b"$150\r\n")
    for place in range(REPLY):
        in_frame = begins <= place < begins + SIZE
        # Where its length is another one, the rest of it is waited for in vain.
        with opened(proxy.port, timeout=10.0 if in_frame else 0.5) as store:
            proxy.replies = flipped_at(place, mask)
            first = outcome(store, A)
            if in_frame:
                assert first == "damaged", "the codec sees it"
            else:
                assert first in {"error", "miss"}
            # The same connection, or another one: whatever is left of the first reply, it is not taken for this one.
            proxy.replies = untouched
            assert outcome(store, B) in {"frame", "error"}
            wait_for(functools.partial(answers, store, B), "it is well again")


def test_other_replies_with_a_flipped_byte(server: RedisServer, proxy: FaultyProxy) -> None:
    with opened(server.port) as direct:
        fill(direct, A, B)
    uses: list[Callable[[RedisStore], object]] = [
        lambda store: store.contains([A, B]),
        lambda store: store.write(B, [b"other"], ALONE),
        lambda store: store.remove(chunk_key("nobody")),
    ]
    for use in uses:
        for place in range(8):
            for mask in (0x01, 0x10, 0x80):
                with opened(proxy.port, timeout=0.3) as store:
                    proxy.replies = flipped_at(place, mask)
                    with contextlib.suppress(StoreError):
                        use(store)
                    proxy.replies = untouched
                    wait_for(functools.partial(answers, store), "it is well again")


def test_a_reply_that_comes_byte_by_byte(server: RedisServer, proxy: FaultyProxy) -> None:
    proxy.at_once = 1
    with opened(server.port) as direct, opened(proxy.port) as store:
        fill(direct, A)
        fill(store, B)
        assert answers(store)
        assert store.contains([A, B, chunk_key("nobody")]) == 2
        assert store.write(A, [b"other"], ALONE) is False
        assert store.failures() == {}


def test_a_reply_that_drips_ends_with_the_deadline(server: RedisServer, proxy: FaultyProxy) -> None:
    # Each byte comes in time; all of them together do not.
    proxy.at_once, proxy.pause = 1, 0.1
    with opened(server.port) as direct, opened(proxy.port, timeout=0.5) as store:
        fill(direct, A)
        began = time.monotonic()
        assert outcome(store, A) == "error"
        assert store.failures() == {"timeout": 1}
        store.stats()
        assert store.failures()["timeout"] == 2, "redis-py's questions have one deadline as well"
        assert time.monotonic() - began < SOON


@pytest.mark.parametrize("place", [0, 1, 6, 7, 100, REPLY - 1])
def test_a_reply_that_stalls(server: RedisServer, proxy: FaultyProxy, place: int) -> None:
    go_on = threading.Event()
    with opened(server.port) as direct, opened(proxy.port, timeout=0.5) as store:
        fill(direct, A, B)
        proxy.at_once, proxy.replies = 1, once_at(place, lambda: go_on.wait(SOON))
        began = time.monotonic()
        assert outcome(store, A) == "error"
        assert time.monotonic() - began < SOON
        assert store.failures() == {"timeout": 1}
        go_on.set()
        proxy.at_once = 1 << 16
        wait_for(lambda: answers(store, B), "the rest of the old reply is nobody's")


def test_requests_that_are_cut_off_store_nothing(server: RedisServer, proxy: FaultyProxy) -> None:
    with opened(server.port) as direct:
        for place in range(0, 330, 7):
            key = chunk_key(("cut", place))
            with opened(proxy.port) as store:
                proxy.requests = cut_at(place)
                with contextlib.suppress(StoreError):
                    store.write(key, [frame_of(key, SIZE)], ALONE)
                proxy.requests = untouched
            assert outcome(direct, key) in {"miss", "frame"}


@pytest.mark.parametrize("use", ["read", "write", "contains"])
def test_a_server_that_accepts_and_says_nothing(use: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, opened(silent.getsockname()[1], timeout=0.5) as store:
        began = time.monotonic()
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: read(store, A, SIZE),
            "write": lambda: store.write(A, [b"x"], ALONE),
            "contains": lambda: store.contains([A]),
        }
        with pytest.raises(StoreError, match="too long"):
            calls[use]()
        store.stats()
        assert time.monotonic() - began < SOON


def test_one_that_says_what_nobody_asked(own_server: RedisServer) -> None:
    said = threading.Event()
    with faulty_proxy(own_server.port) as proxy, opened(own_server.port) as direct, opened(proxy.port) as store:
        fill(direct, A, B)

        def twice(part: bytes, at: int) -> bytes:
            said.set()
            return part + part

        proxy.replies = twice
        assert outcome(store, A) == "frame"
        assert said.is_set()
        proxy.replies = untouched
        # The second copy of A waits in that connection, or is on its way there.
        for _ in range(3):
            assert outcome(store, B) in {"frame", "error"}
        assert proxy.n_connections > 1


# --- processes -------------------------------------------------------------------------------------------------

LARGE = 32 << 20
"""More than all buffers on the way hold."""


@pytest.mark.parametrize("how", ["kill", "freeze"])
@pytest.mark.parametrize("use", ["read", "write"])
def test_a_server_that_goes_in_the_middle_of_a_frame(own_server: RedisServer, use: str, how: str) -> None:
    def strike() -> None:
        own_server.kill() if how == "kill" else own_server.freeze()

    content = random.Random(1).randbytes(LARGE)
    with faulty_proxy(own_server.port) as proxy, opened(own_server.port) as direct:
        if use == "read":
            assert direct.write(A, [content], ALONE) is True
            proxy.replies = once_at(1 << 20, strike)
        else:
            proxy.requests = once_at(1 << 20, strike)
        with opened(proxy.port, timeout=3.0) as store:
            began = time.monotonic()
            with pytest.raises(StoreError):
                _ = read(store, A, LARGE) if use == "read" else store.write(A, [content], ALONE)
            assert time.monotonic() - began < SOON
            assert set(store.failures()) <= {"closed", "timeout"}
            if how == "kill":
                own_server.start()
                wait_for(lambda: misses(store), "it is back, and empty")
                fill(store, B)
                assert answers(store, B)
            else:
                own_server.thaw()
                fill_when_ready(store, B)
                assert answers(store, B)
                got = read(store, A, LARGE) if use == "read" else None
                assert got in {None, content}


def misses(store: BlockStore) -> bool:
    return outcome(store, A) == "miss"


def fill_when_ready(store: BlockStore, key: ChunkKey) -> None:
    def filled() -> bool:
        with contextlib.suppress(StoreError):
            store.write(key, [frame_of(key, SIZE)], ALONE)
            return True
        return False

    wait_for(filled, "it takes writes")


def test_a_frozen_server_costs_one_call_its_timeout_and_the_others_nothing(own_server: RedisServer) -> None:
    store = RedisStore(RedisSettings(url=own_server.url, timeout=0.5, max_rest=60.0))
    fill(store, A)
    own_server.freeze()
    for _ in range(300):
        assert outcome(store, A) == "error"
    failures = store.failures()
    assert failures["timeout"] < 10
    assert failures["resting"] > 280
    own_server.thaw()
    store.close()


def test_a_restart_between_two_calls_is_not_noticed(own_server: RedisServer) -> None:
    with opened(own_server.port) as store:
        fill(store, A)
        own_server.kill()
        own_server.start()
        assert outcome(store, A) == "miss"
        fill(store, A)
        assert answers(store)
        assert store.failures() == {}


def test_idle_connections_that_the_server_closes_are_not_noticed(own_server: RedisServer) -> None:
    with opened(own_server.port) as store:
        fill(store, A)
        for _ in range(5):
            own_server.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert answers(store)
        assert store.failures() == {}


def test_threads_while_the_server_comes_and_goes(own_server: RedisServer) -> None:
    keys = [chunk_key(("come and go", n)) for n in range(20)]
    over = threading.Event()

    def use(number: int) -> None:
        if number == 0:
            for _ in range(4):
                time.sleep(0.2)
                own_server.kill()
                own_server.start()
            over.set()
            return
        choose = random.Random(number)
        while not over.is_set():
            key = choose.choice(keys)
            with contextlib.suppress(StoreError):
                content = read(store, key, 100_000)
                if content is None:
                    store.write(key, [frame_of(key, 100_000, number)], ALONE)
                else:
                    assert is_whole(key, content)

    with opened(own_server.port) as store:
        in_threads(use, 5)
        wait_for(lambda: outcome(store, chunk_key("new")) == "miss", "it is well in the end")


def test_threads_through_a_line_that_garbles(server: RedisServer, proxy: FaultyProxy) -> None:
    keys = [chunk_key(("line", n)) for n in range(20)]
    sizes = [1_000 + n for n in range(20)]
    chance = random.Random(7)

    def spoil(part: bytes, at: int) -> bytes | None:
        kind = chance.random()
        if kind < 0.05:
            return None
        if kind < 0.1:
            return part[: chance.randrange(len(part))]
        if kind < 0.2:
            return flipped_at(at + chance.randrange(len(part)), 1 << chance.randrange(8))(part, at)
        return part

    with opened(server.port) as direct, opened(proxy.port, timeout=0.3) as store:
        for key, size in zip(keys, sizes, strict=True):
            fill(direct, key, size=size)
        proxy.replies = spoil
        frames = [0] * 4

        def use(number: int) -> None:
            choose = random.Random(number)
            for _ in range(150):
                at = choose.randrange(20)
                try:
                    content = read(store, keys[at], sizes[at])
                except StoreError:
                    time.sleep(0.005)
                    continue
                # A byte is not what it was, or two: it is never another frame, nor a part of one.
                if content is not None:
                    frame = frame_of(keys[at], sizes[at])
                    assert sum(a != b for a, b in zip(content, frame, strict=True)) <= 8
                    frames[number] += 1

        in_threads(use)
        assert sum(frames) > 0


# --- the parser ------------------------------------------------------------------------------------------------


def conversation(sent: bytes, parts: int) -> tuple[RespSocket, socket.socket, threading.Thread]:
    ours, theirs = socket.socketpair()

    def send() -> None:
        size = max(1, len(sent) // parts)
        with contextlib.suppress(OSError):
            for at in range(0, len(sent), size):
                theirs.sendall(sent[at : at + size])
            theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return RespSocket(ours), theirs, thread


@pytest.mark.parametrize("parts", [1, 3, 1_000_000])
def test_replies_in_a_row(parts: int) -> None:
    sent = b"+OK\r\n:1\r\n$5\r\nhello\r\n$-1\r\n-OOM no\r\n$0\r\n\r\n-MOVED 5 1.2.3.4:7\r\n:0\r\n"
    conn, theirs, thread = conversation(sent, parts)
    late = time.monotonic() + SOON
    conn.send([b"eight"], 8, late)
    assert conn.line(late) == ("+", 0, b"OK")
    assert conn.line(late) == (":", 1, b"")
    assert conn.line(late) == ("$", 5, b"")
    hello = bytearray(5)
    conn.fill([memoryview(hello)[:2], memoryview(hello)[2:]], late)
    assert hello == b"hello"
    assert conn.line(late) == ("$", -1, b"")
    with pytest.raises(RedisStoreError, match="memory bound"):
        conn.line(late)
    assert conn.line(late) == ("$", 0, b"")
    conn.fill([], late)
    with pytest.raises(Redirect):
        conn.line(late)
    owing = conn.reusable
    assert not owing
    assert conn.line(late) == (":", 0, b"")
    assert conn.reusable
    thread.join(10)
    assert not conn.is_quiet(), "the other side has left"
    conn.close()
    theirs.close()


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"$", b"$-2", b"$+1", b"$01", b"$1 ", b"$9999999999999", b":", b":a", b":-5", b"-", b"-NEWCODE x",
     b"-MOVED", b"-MOVED 1", b"-MOVED 16384 a:1", b"-MOVED 1 a:0", b"-MOVED 1 a", b"-MOVED 1 a:99999", b"-ASK x a:1",
     b"-MOVED 1 \xff:1", b"*2", b"_", b"$\xb2"],
)  # fmt: skip
def test_what_is_no_reply(line: bytes) -> None:
    with pytest.raises(RedisStoreError) as caught:
        parse_line(line)
    assert caught.value.reason is Reason.PROTOCOL


def test_redirects() -> None:
    for line, host, port, ask in (
        (b"-MOVED 3999 127.0.0.1:6381", "127.0.0.1", 6381, False),
        (b"-ASK 3999 ::1:6381", "::1", 6381, True),
        (b"-ASK 3999 node.example:6381", "node.example", 6381, True),
        (b"-MOVED 3999 :6381", "", 6381, False),
    ):
        with pytest.raises(Redirect) as caught:
            parse_line(line)
        assert (caught.value.slot, caught.value.address, caught.value.ask) == (3999, (host, port), ask)


def test_a_line_without_an_end() -> None:
    conn, theirs, _ = conversation(b"+" + b"x" * 100_000, 1)
    conn.send([b"q"], 1, time.monotonic() + SOON)
    with pytest.raises(RedisStoreError, match="no reply"):
        conn.line(time.monotonic() + SOON)
    assert not conn.reusable
    conn.close()
    theirs.close()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=30).map(lambda tail: b"$-:+"[len(tail) % 4 :][:1] + tail))
def test_any_line_is_a_reply_or_refused(line: bytes) -> None:
    with contextlib.suppress(RedisStoreError, Redirect):
        parsed = parse_line(line)
        assert parsed.kind in "$:+"
        assert parsed.number >= -1


def test_edits_do_what_they_say() -> None:
    assert cut_at(3)(b"abcd", 1) == b"ab"
    assert cut_at(3)(b"abcd", 3) is None
    assert flipped_at(3, 1)(b"abcd", 2) == b"accd"
    edit: Edit = flipped_at(9, 1)
    assert edit(b"abcd", 2) == b"abcd"
