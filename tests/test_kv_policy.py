"""What a tenant's KV may take: what the configuration says, the header that a gateway sends, and who gets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http1 import parse_request_head
from backends.upstream_request import render_request
from backends.worker.server.told_policy import ToldPolicy
from cache.redis_quotas import FRAME_OVERHEAD, RedisQuotas
from cache.store import FrameInfo
from cache.tenant_salt import group_salt, tenant_account, tenant_salt
from gateway.config import Config, ConfigError
from gateway.config.load import parse_config
from gateway.tenant_assembly import rules_of
from policies.kv_policy import KEEP_NOTHING, LONGEST_POLICY, NO_KV_POLICY, KvPolicy, read_kv_policy
from policies.types import Tier
from tests.data_plane_fixtures import Answer, RawWorker, ask, fields_of, inside, plane, post, says
from tests.store_contract import chunk_key
from tests.tenant_fixtures import SALT_KEY, bearer, tenants

BYTES = st.none() | st.integers(0, 10**18 - 1)
POLICIES = st.builds(
    KvPolicy,
    owner=st.sampled_from(["", "0" * 32, "deadbeef"]),
    ttl=st.none() | st.integers(0, 10**11).map(lambda milliseconds: milliseconds / 1000),
    host=BYTES,
    disk=BYTES,
    redis=BYTES,
    pin=st.booleans(),
)


# --- the header ------------------------------------------------------------------------------------------------


@given(POLICIES)
def test_what_is_told_is_read(policy: KvPolicy) -> None:
    text = policy.text()
    assert len(text) <= LONGEST_POLICY
    if policy != NO_KV_POLICY:
        assert read_kv_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("ttl=3600", KvPolicy(ttl=3600.0)),
        ("ttl=0.5, pin", KvPolicy(ttl=0.5, pin=True)),
        ("owner=ab,host=0,disk=5 ,\tredis=7", KvPolicy(owner="ab", host=0, disk=5, redis=7)),
        ("ttl=0", KEEP_NOTHING),
        ("pin, newer=1, flag", KvPolicy(pin=True)),
    ],
)
def test_forms_that_are_read(text: str, policy: KvPolicy) -> None:
    assert read_kv_policy(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "ttl", "ttl=", "ttl=x", "ttl=-1", "ttl=1e9", "ttl=1.", "ttl=nan", "ttl=1, ttl=2", "pin=no", "pin,pin",
        "host=1.5", "host=-1", "host", "host=1" + "0" * 18, "owner", "owner=XYZ", "owner=" + "a" * 65, "Pin", "a b",
        "ttl=1;pin", "ttl=1" + "," + "x" * 600, "ttl=١",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(text: str) -> None:
    assert read_kv_policy(text) is None


@given(st.text(max_size=80) | st.text(alphabet="ownerthsdikp=,0123456789. ", max_size=60))
def test_noise_is_read_or_not_and_never_fails(text: str) -> None:
    policy = read_kv_policy(text)
    assert policy is None or (policy == NO_KV_POLICY or read_kv_policy(policy.text()) == policy)


def test_what_a_policy_says() -> None:
    policy = KvPolicy(ttl=5.0, host=1, disk=2, redis=3)
    assert [policy.quota(tier) for tier in Tier] == [None, 1, 2, 3]
    assert (policy.expires(100.0), NO_KV_POLICY.expires(100.0)) == (105.0, None)
    assert (policy.keeps, NO_KV_POLICY.keeps, KEEP_NOTHING.keeps) == (True, True, False)
    assert KvPolicy(ttl=0.0001).text() == "ttl=0.001", "never nothing"


def test_an_account_is_no_salt() -> None:
    key = b"k" * 32
    assert len({tenant_account(key, "a"), tenant_salt(key, "a"), group_salt(key, "a"), tenant_account(key, "b")}) == 4


def test_a_worker_believes_what_it_can_read_if_it_is_to(caplog: pytest.LogCaptureFixture) -> None:
    believing, doubting = ToldPolicy(believed=True), ToldPolicy(believed=False)
    assert believing.read([]) is doubting.read([]) is doubting.read(["ttl=5"]) is NO_KV_POLICY
    assert doubting.read(["ttl=soon"]) is NO_KV_POLICY
    assert believing.read(["ttl=5"]) == KvPolicy(ttl=5.0)
    assert not caplog.records
    assert believing.read(["ttl=soon"]) is believing.read(["ttl=5", "ttl=5"]) is KEEP_NOTHING
    assert [record.getMessage() for record in caplog.records] == [
        "requests come with a header x-prefixgate-kv that cannot be read: their KV is not kept"
    ]


@pytest.mark.parametrize("name", [b"x-prefixgate-kv", b"X-Prefixgate-KV", b"X-PREFIXGATE-KV"])
def test_what_a_client_says_of_it_ends_here(name: bytes) -> None:
    raw = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n%b: ttl=9\r\nx-pre: 1\r\n%b: pin\r\n\r\n" % (name, name)
    head, _ = parse_request_head(raw, object())
    assert head.fields == b"\r\nx-pre: 1"
    sent = render_request(head, b"{}", host=b"w", request_id=b"r", via=b"1.1 g")
    assert b"prefixgate-kv" not in sent.lower()


# --- the configuration -----------------------------------------------------------------------------------------


def configured(*members: str) -> Config:
    return parse_config(f"workers: [{{url: 'http://127.0.0.1:1'}}]\n{tenants(*members)}")


def test_settings_become_policies_and_single_models_differ() -> None:
    config = configured(
        "acme, cache: {kv: {ttl: 1h, host: 2GB, disk: 20GB, redis: 100GB, pin: true}},"
        " per_model: [{name: a, cache: {kv: {ttl: 5m, pin: false}}}, {name: b, priority: batch}]",
        "beta",
    )
    acme, beta = map(rules_of, config.tenants.members)
    whole = KvPolicy(ttl=3600.0, host=2 * 10**9, disk=20 * 10**9, redis=100 * 10**9, pin=True)
    assert acme.policy.cache.kv == acme.by_model["b"].cache.kv == whole
    assert acme.by_model["a"].cache.kv == KvPolicy(ttl=300.0, host=whole.host, disk=whole.disk, redis=whole.redis)
    assert beta.policy.cache.kv == NO_KV_POLICY


@pytest.mark.parametrize("kv", ["ttl: 0", "ttl: -1s", "host: -1", "disk: 1.5B", "pin: 1", "tape: 1GB"])
def test_settings_that_mean_nothing(kv: str) -> None:
    with pytest.raises(ConfigError, match=r"tenants.members\[0\].cache.kv"):
        configured(f"acme, cache: {{kv: {{{kv}}}}}")


def test_a_group_has_one_time_to_live() -> None:
    def group(ttl: str, more: str = "") -> str:
        return f", cache: {{group: g, kv: {{{ttl}}}}}{more}"

    special = ", per_model: [{name: m, cache: {kv: {ttl: 1m}}}]"
    configured("acme" + group("ttl: 1h, host: 1GB"), "beta" + group("ttl: 1h, pin: true"), "crew")
    configured("acme" + group("ttl: 1h", special), "beta" + group("ttl: 1h", special))
    for others in (group("ttl: 2h"), group("pin: true"), group("ttl: 1h", special)):
        with pytest.raises(ConfigError, match=r"members\[1\].cache.kv.ttl: must be that of tenants.members\[0\]"):
            configured("acme" + group("ttl: 1h"), "beta" + others)


# --- who is told -----------------------------------------------------------------------------------------------

ANSWER = b'{"id":"c","object":"text_completion","created":1,"model":"m","choices":[]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
ANSWERS: Answer = says(HEAD % len(ANSWER) + ANSWER)
KV = "cache: {kv: {ttl: 90s, host: 1KB, pin: true}}"
BODY = json.dumps({"model": "m", "prompt": "Hello."}).encode()


async def told(worker_settings: str, *members: str, key: str = "acme") -> str | None:
    extra = tenants(*members) if members else ""
    async with (
        RawWorker(ANSWERS).running() as worker,
        inside(plane([worker.url], worker=worker_settings, extra=extra)) as gateway,
    ):
        fields = [b"x-prefixgate-kv: ttl=999999, owner=00", *([bearer(key)] if members else [])]
        assert (await ask(gateway, post(BODY, *fields, path=b"/v1/completions"))).status == 200
        return fields_of(worker.requests[0][0]).get("x-prefixgate-kv")


async def test_a_worker_that_takes_it_is_told_and_nobody_else() -> None:
    account = tenant_account(SALT_KEY.encode(), "acme")
    line = f"owner={account}, ttl=90, host=1000, pin"
    assert await told(", kv_policy: true", f"acme, {KV}", "beta") == line
    assert await told("", f"acme, {KV}") is None, "nothing says that it is ours"
    assert await told(", kv_policy: true", "acme", f"beta, {KV}") is None, "this one has no policy"
    assert await told(", kv_policy: true") is None, "nor have those without a key"
    other = f"acme, {KV}, per_model: [{{name: m, cache: {{kv: {{ttl: 5s, pin: false}}}}}}]"
    assert await told(", kv_policy: true", other) == f"owner={account}, ttl=5, host=1000"


# --- Redis' books ----------------------------------------------------------------------------------------------


def test_books_of_what_one_worker_wrote() -> None:
    books = RedisQuotas()
    size = 1_000 + FRAME_OVERHEAD

    def info(tenant: str, parent: Any = None, quota: int | None = 3 * size) -> FrameInfo:
        return FrameInfo(parent=parent, tenant=tenant, n_tokens=16, policy=KvPolicy(owner=tenant, redis=quota))

    keys = [chunk_key(number) for number in range(5)]
    for parent, key in zip([None, *keys], keys[:3], strict=False):
        assert books.room(1_000, info("a", parent), 0.0) == []
        books.wrote(key, 1_000, info("a", parent), 0.0)
    assert books.bytes_of("a") == 3 * size
    assert books.room(1_000, info("a"), 1.0) == [keys[2]], "the end of the chain"
    assert books.room(2_000, info("a"), 1.0) == [keys[2], keys[1]]
    assert books.room(3_000, info("a"), 1.0) == [keys[2], keys[1], keys[0]]
    assert books.room(3 * size, info("a"), 1.0) is None
    assert books.room(1_000, info("b"), 1.0) == []
    assert books.room(1 << 60, info("a", quota=None), 1.0) == []
    books.wrote(keys[4], 1_000, info("c", quota=None), 1.0)
    assert len(books) == 3, "who has no quota is not counted"
    for key in keys[:3]:
        books.gone(key)
    assert (books.bytes_of("a"), len(books)) == (0, 0)
