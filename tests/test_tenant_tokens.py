"""Tokens of an issuer: which are good, which only look like it, and where the keys come from."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import openai
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.config import ConfigError, JwtIssuer, parse_config
from gateway.jwt_tenants import JwtVerifier
from gateway.pipeline import RequestPipeline
from tests.data_plane_fixtures import RawWorker, inside, plane
from tests.gateway_fixtures import eventually
from tests.reload_fixtures import from_file, lines
from tests.tenant_fixtures import KEYS, SALT_KEY, digest
from tests.test_tenant_reload import status
from tests.test_tenants import ANSWERS, CHAT, client

__all__ = ["lines"]

ISSUER, AUDIENCE = "https://issuer.example", "prefixgate"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())


def jwks(**keys: Any) -> bytes:
    """Public keys by their ids."""
    found = []
    for kid, key in keys.items():
        algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        found.append({**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"})
    return json.dumps({"keys": found}).encode()


def token(key: Any = RSA, kid: str | None = "one", algorithm: str = "RS256", **changes: Any) -> bytes:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, "tenant": "acme", **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={} if kid is None else {"kid": kid}).encode()


def verifier(keys: bytes | None = None, **settings: Any) -> JwtVerifier:
    made = JwtVerifier(JwtIssuer(issuer=ISSUER, audience=AUDIENCE, **settings))
    if keys is not None:
        made.take_up(keys)
    return made


def unsigned(**header: Any) -> bytes:
    def part(value: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, "tenant": "acme"}
    return part({"typ": "JWT", "kid": "one", **header}) + b"." + part(claims) + b"."


def test_a_good_token_names_its_tenant() -> None:
    both = verifier(jwks(one=RSA, two=EC))
    for _ in range(2):
        assert both.tenant(token()) == "acme"
        assert both.tenant(token(EC, "two", "ES256", tenant="beta")) == "beta"
    assert both.tenant(token(aud=["others", AUDIENCE])) == "acme"
    assert verifier(jwks(one=RSA)).tenant(token(kid=None)) == "acme", "with one key there is no doubt"
    assert both.tenant(token(exp=10**400)) == "acme"
    assert verifier(jwks(one=RSA), claim="org").tenant(token(org="crew")) == "crew"


@pytest.mark.parametrize(
    "bad",
    [
        token(OTHER_RSA),
        token(kid="unknown"),
        token(kid=None),
        token(iss="https://issuer.example.evil"),
        token(iss="https://issuer"),
        token(iss=None),
        token(aud="others"),
        token(aud=None),
        token(exp=int(time.time()) - 600),
        token(exp=None),
        token(nbf=int(time.time()) + 600),
        token(tenant=None),
        token(tenant=["acme"]),
        token(algorithm="PS256"),
        token(RSA, "two"),
        unsigned(alg="none"),
        unsigned(alg="HS256"),
        jwt.encode({"tenant": "acme"}, "s" * 32, "HS256").encode(),
        token()[:-3],
        token() + b"x" * 9000,
        b"..",
        b"a.b.c",
        b"\xff.\xff.\xff",
        b"",
    ],
)
def test_a_token_that_is_not_good_names_nobody(bad: bytes) -> None:
    checked = verifier(jwks(one=RSA, two=EC))
    assert [checked.tenant(bad) for _ in range(2)] == [None, None]


def test_a_public_key_is_no_secret_to_sign_with() -> None:
    """HS256 with the public key's text, where a verifier lets the token choose the algorithm."""
    secret = jwks(one=RSA)
    header, claims, _ = unsigned(alg="HS256").split(b".")
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(header + b"." + claims, secret)
    forged = header + b"." + claims + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    assert verifier(jwks(one=RSA)).tenant(forged) is None


def test_what_was_good_is_remembered_until_it_expires_or_its_key_goes() -> None:
    now = time.time()
    made = JwtVerifier(JwtIssuer(issuer=ISSUER, audience=AUDIENCE, leeway=30.0), wall=lambda: now)
    made.take_up(jwks(one=RSA))
    short = token(exp=int(time.time()) + 5)
    assert made.tenant(short) == "acme"
    assert len(made._known) == 1
    now += 36
    made._keys = {}
    assert made.tenant(short) is None, "not out of memory any more"
    made.take_up(jwks(two=RSA))
    assert made._known == {}
    assert made.tenant(token()) is None


def test_an_unknown_key_is_asked_for_but_not_each_time() -> None:
    now, asked = 100.0, []
    made = JwtVerifier(JwtIssuer(issuer=ISSUER, audience=AUDIENCE), clock=lambda: now)
    made.wanted = lambda: asked.append(now)
    made.take_up(jwks(one=RSA))
    for number in range(50):
        made.tenant(token(kid=f"k{number}"))
    assert asked == [100.0]
    now = 110.0
    made.tenant(token(kid="k"))
    assert asked == [100.0, 110.0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "RSA", "alg": ["RS256"], "n": "AQAB", "e": "AQAB"}]}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}]}',
        json.dumps({"keys": [{"kty": "RSA"}] * 101}).encode(),
    ],
)
def test_what_is_no_set_of_keys_leaves_those_that_were(data: bytes) -> None:
    made = verifier(jwks(one=RSA))
    with pytest.raises(ValueError, match="JWK"):
        made.take_up(data)
    assert made.tenant(token()) == "acme"


def test_settings_that_do_not_fit_are_told() -> None:
    start = "workers: [{url: 'http://127.0.0.1:8001'}]\ntenants: {members: [{name: a}], jwt: {issuer: i, audience: a"
    for more, problem in (
        ("}}", "tenants.jwt: needs one of jwks_url and jwks_file"),
        (", jwks_url: 'http://issuer.example/keys'}}", "tenants.jwt.jwks_url: expected a URL such as https://"),
        (", jwks_url: 'https://i/k', algorithms: [HS256]}}", "tenants.jwt.algorithms[0]: expected one of RS256"),
    ):
        with pytest.raises(ConfigError) as told:
            parse_config(start + more)
        assert problem in str(told.value)


async def publishing(answer: Handler) -> tuple[web.AppRunner, str]:
    """An issuer that gives its keys so, and where; whoever asks for it clears it away."""
    application = web.Application()
    application.router.add_get("/keys", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/keys"


async def test_tokens_open_as_keys_do_and_new_keys_are_fetched() -> None:
    served = {"keys": jwks(one=RSA), "asked": 0}

    async def answer(_: web.Request) -> web.Response:
        served["asked"] = int(str(served["asked"])) + 1
        if served["keys"] == b"":
            return web.Response(status=500)
        return web.Response(body=served["keys"])

    runner, url = await publishing(answer)
    extra = (
        f"tenants: {{salt_key: '{SALT_KEY}', members: [{{name: acme, keys: ['{digest('acme')}']}}],"
        f" jwt: {{issuer: '{ISSUER}', audience: {AUDIENCE}, jwks_url: '{url}'}}}}\n"
    )
    try:
        async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=extra)) as gateway:
            pipeline = gateway.server.pipeline
            assert isinstance(pipeline, RequestPipeline)
            assert pipeline.tenancy is not None
            issuer = pipeline.tenancy.issuer
            assert issuer is not None
            await eventually(lambda: issuer._keys)
            for key in (KEYS["acme"], token().decode()):
                async with client(gateway, key) as one:
                    assert (await one.chat.completions.create(**CHAT)).id == "c"
            for bad in (token(OTHER_RSA).decode(), token(tenant="nobody").decode()):
                async with client(gateway, bad) as one:
                    with pytest.raises(openai.AuthenticationError) as told:
                        await one.chat.completions.create(**CHAT)
                    assert bad not in told.value.response.text
            served["keys"] = jwks(two=EC)
            rotated = token(EC, "two", "ES256").decode()
            async with client(gateway, rotated) as one:
                with pytest.raises(openai.AuthenticationError):
                    await one.chat.completions.create(**CHAT)
                await eventually(lambda: set(issuer._keys or ()) == {"two"})
                assert (await one.chat.completions.create(**CHAT)).id == "c"
            assert [request for request in worker.requests if b"authorization" in request[0].lower()] == []
    finally:
        await runner.cleanup()


async def test_other_settings_keep_the_keys_that_the_issuer_published(tmp_path: Path, lines: list[str]) -> None:
    served = [jwks(one=RSA)]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=served[0]) if served else web.Response(status=500)

    runner, url = await publishing(answer)
    section = (
        f"{{salt_key: '{SALT_KEY}', members: [{{name: acme}}],"
        f" jwt: {{issuer: '{ISSUER}', audience: {AUDIENCE}, jwks_url: '{url}'%s}}}}"
    )
    KEYS["token"] = token().decode()
    try:
        async with from_file(tmp_path, lines, tenants=section % "") as gateway:
            tenancy = gateway.program.pipeline.tenancy
            assert tenancy is not None
            issuer = tenancy.issuer
            assert issuer is not None
            await eventually(lambda: issuer._keys)
            served.clear()
            await gateway.change(tenants=section % ", leeway: 9s")
            await eventually(lambda: gateway.said("could not be read"))
            assert await status(gateway, "token") == 200
            await gateway.change(tenants=section % ", algorithms: [ES256]")
            assert await status(gateway, "token") == 503, "none of the keys may be used"
    finally:
        del KEYS["token"]
        await runner.cleanup()


async def test_while_no_keys_are_known_a_token_is_told_to_come_again() -> None:
    extra = (
        f"tenants: {{salt_key: '{SALT_KEY}', members: [{{name: acme, keys: ['{digest('acme')}']}}],"
        f" jwt: {{issuer: '{ISSUER}', audience: {AUDIENCE}, jwks_url: 'http://127.0.0.1:9/keys'}}}}\n"
    )
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=extra)) as gateway:
        async with client(gateway, token().decode()) as one:
            with pytest.raises(openai.InternalServerError) as told:
                await one.chat.completions.create(**CHAT)
            assert (told.value.status_code, told.value.code) == (503, "issuer_unavailable")
            assert told.value.response.headers["retry-after"] == "1"
        async with client(gateway, KEYS["acme"]) as one:
            assert (await one.chat.completions.create(**CHAT)).id == "c", "keys do not depend on an issuer"


async def test_a_file_of_an_issuers_keys_is_taken_up_when_it_changes(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(one=RSA))
    section = (
        f"{{salt_key: '{SALT_KEY}', members: [{{name: acme}}],"
        f" jwt: {{issuer: '{ISSUER}', audience: {AUDIENCE}, jwks_file: jwks.json}}}}"
    )
    async with from_file(tmp_path, lines, tenants=section) as gateway:
        KEYS["token"], KEYS["new"] = token().decode(), token(OTHER_RSA, "two").decode()
        try:
            assert [await status(gateway, "token"), await status(gateway, "new")] == [200, 401]
            file.write_bytes(b"broken")
            await eventually(lambda: gateway.said("the old ones stay in force"))
            assert await status(gateway, "token") == 200
            file.write_bytes(jwks(two=OTHER_RSA))
            await eventually(lambda: gateway.said("those of the issuer are in force"))
            assert [await status(gateway, "token"), await status(gateway, "new")] == [401, 200]
        finally:
            del KEYS["token"], KEYS["new"]
