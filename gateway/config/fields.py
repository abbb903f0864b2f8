"""Text fields with a form of their own: names, hosts, URLs, ZMQ endpoints, header names, files.

Each validator's message says what was expected; `problems.py` adds where, and what was given. Files are
looked up only when the validation context names a folder to start from: the models alone touch no disk.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo
from pydantic_core import PydanticCustomError

from backends.address import bracketed, place
from cache.redis_settings import RedisSettings
from policies.types import WorkerId

BASE_DIR: Final = "base_dir"
"""Key of the validation context: folder from which relative paths start."""

EMBEDDED: Final = "embedded"
"""The tokenizer that the simulated engine uses, which is part of the program."""

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_VISIBLE: Final = re.compile(r"[!-~]+")
_KEY: Final = re.compile(r"[ -~]+")
_KEY_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LEAST_SECRET: Final = 32
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_URL_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()+,;=:@%/-]*")
_FRAMING_HEADERS: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def _expected(text: str) -> PydanticCustomError:
    return PydanticCustomError("form", "{text}", {"text": text})


def _printable(text: str) -> str:
    if not text.isprintable():
        raise _expected("text without line breaks and other control characters")
    return text


def _visible_ascii(text: str) -> str:
    """Goes into a response header, where spaces at the ends would be lost and line breaks make a new one."""
    if not _VISIBLE.fullmatch(text):
        raise _expected("visible ASCII characters without spaces")
    return text


def _key(secret: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(secret.get_secret_value()):
        raise _expected("a key of printable ASCII characters, without line breaks")
    return secret


def _key_digest(secret: SecretStr) -> SecretStr:
    if not _KEY_DIGEST.fullmatch(secret.get_secret_value()):
        raise _expected("sha256: and 64 hexadecimal digits, as `prefixgate keys new` prints them, and not a key")
    return secret


def _long_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _LEAST_SECRET:
        raise _expected(f"a secret of at least {_LEAST_SECRET} characters")
    return secret


def _redis_url(secret: SecretStr) -> SecretStr:
    """May have a password, so that nothing of it is told."""
    url = secret.get_secret_value()
    try:
        RedisSettings(url=url)
        options = "" if url.startswith("unix:") else urlsplit(url).query
    except ValueError as error:
        raise _expected(f"a URL such as redis://127.0.0.1:6379; {error}") from None
    if options or not _VISIBLE.fullmatch(url):
        raise _expected("a URL such as redis://127.0.0.1:6379, without options")
    return secret


def _key_prefix(text: str) -> str:
    if not _VISIBLE.fullmatch(text) or set(text) & set("{}"):
        raise _expected("visible ASCII characters without spaces and braces")
    return text


def resolvable_host(host: str) -> str:
    """An address as it is, a name in the form that DNS takes (IDNA). Raises ValueError where it can be neither."""
    if ":" in host:
        ipaddress.IPv6Address(host)
        return host
    name = host.encode("idna").decode("ascii")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(host)
    return name


def _listen_host(text: str) -> str:
    try:
        return resolvable_host(text)
    except ValueError:
        raise _expected("an address such as 127.0.0.1 or ::1, or a host name") from None


def _worker_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = resolvable_host(parts.hostname or ""), parts.port
    except ValueError:
        raise _expected("a URL such as http://127.0.0.1:8001") from None
    if parts.scheme not in {"http", "https"} or not host or port == 0 or re.search(r"\s", text):
        raise _expected("a URL such as http://127.0.0.1:8001")
    if parts.username is not None or parts.password is not None:
        raise _expected("a URL without user and password; a worker's key goes to its `api_key`")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise _expected("a URL that ends after the port; the client's own path is added to it")
    return f"{parts.scheme}://{place(host, port or (443 if parts.scheme == 'https' else 80))}"


def _collector_url(text: str) -> str:
    """`http(s)://host:port`, with or without the path of the traces."""
    try:
        parts = urlsplit(text)
        resolvable_host(parts.hostname or "")
        bad = parts.scheme not in {"http", "https"} or parts.port == 0 or bool(parts.query or parts.fragment)
    except ValueError:
        bad = True
    if bad or re.search(r"\s", text):
        raise _expected("a URL such as http://127.0.0.1:4318")
    return text.rstrip("/")


def _issuer_url(text: str) -> str:
    """Plain HTTP only where nobody is in between: whoever changes the keys can be anybody."""
    try:
        parts = urlsplit(text)
        host = resolvable_host(parts.hostname or "")
        bad = parts.port == 0 or parts.username is not None or parts.password is not None
    except ValueError:
        raise _expected("a URL such as https://issuer.example/.well-known/jwks.json") from None
    local = host in {"localhost", "127.0.0.1", "::1"}
    if bad or re.search(r"\s", text) or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise _expected("a URL such as https://issuer.example/.well-known/jwks.json")
    return text


def _url_path(text: str) -> str:
    if not _URL_PATH.fullmatch(text):
        raise _expected("a path such as /health")
    return text


def _path_pattern(text: str) -> str:
    if not _URL_PATH.fullmatch(text.removesuffix("*")) or ".." in text:
        raise _expected("a path such as /v1/files, or /v1/files/* for all that begins so")
    return text


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise _expected("an address or a network such as 10.0.0.0/8") from None


def _zmq_endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        bound = parts.hostname in {"*", "0.0.0.0"}  # noqa: S104 - refused, not bound to
        host, port = "" if bound else resolvable_host(parts.hostname or ""), parts.port
    except ValueError:
        raise _expected("an endpoint such as tcp://127.0.0.1:5557") from None
    if bound:
        raise _expected("the worker's own host: * and 0.0.0.0 are addresses to bind to, not to connect to")
    shown = bracketed(host)
    if not port or text.lower().removesuffix(f":{port}") not in {f"tcp://{shown}", f"tcp://{parts.hostname}"}:
        raise _expected("an endpoint such as tcp://127.0.0.1:5557")
    return f"tcp://{shown}:{port}"


def _header_name(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise _expected("a header name: letters, digits and hyphens")
    if text.lower() in _FRAMING_HEADERS:
        raise _expected("a header of its own; this one belongs to the protocol")
    return text


def _to_path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


def _tokenizer_source(value: object) -> object:
    if value is None or value == EMBEDDED or isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise _expected("a directory with tokenizer.json, or the word embedded")
    return Path(value)


def _resolved(path: Path, info: ValidationInfo) -> tuple[Path, bool]:
    """The path from the file's folder, and whether it should exist."""
    if not isinstance(info.context, dict) or BASE_DIR not in info.context:
        return path, False
    return Path(info.context[BASE_DIR]) / path.expanduser(), True


def _any_path(path: Path, info: ValidationInfo) -> Path:
    return _resolved(path, info)[0]


def _existing_file(path: Path, info: ValidationInfo) -> Path:
    path, look = _resolved(path, info)
    if look and not path.is_file():
        raise _expected(f"a file that exists; there is none at {path}")
    return path


def _existing_tokenizer(source: Path | str | None, info: ValidationInfo) -> Path | str | None:
    if not isinstance(source, Path):
        return source
    source, look = _resolved(source, info)
    if look and not source.is_dir():
        raise _expected(f"a directory with tokenizer.json, or the word embedded; there is no directory {source}")
    if look and not (source / "tokenizer.json").is_file():
        raise _expected(f"a directory with tokenizer.json; {source} has none")
    return source


Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_printable)]
WorkerName = Annotated[WorkerId, Field(min_length=1, max_length=256), AfterValidator(_visible_ascii)]
TopicText = Annotated[str, AfterValidator(_printable)]
ApiKey = Annotated[SecretStr, AfterValidator(_key)]
KeyDigest = Annotated[SecretStr, AfterValidator(_key_digest)]
LongSecret = Annotated[SecretStr, AfterValidator(_key), AfterValidator(_long_secret)]
RedisUrl = Annotated[SecretStr, AfterValidator(_redis_url)]
KeyPrefix = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_key_prefix)]
TenantName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_visible_ascii)]
HostText = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_listen_host)]
UrlText = Annotated[str, AfterValidator(_worker_url), Field(json_schema_extra={"format": "uri"})]
UrlPath = Annotated[str, AfterValidator(_url_path)]
PathPattern = Annotated[str, AfterValidator(_path_pattern)]
NetworkText = Annotated[str, AfterValidator(_network)]
CollectorUrl = Annotated[str, AfterValidator(_collector_url), Field(json_schema_extra={"format": "uri"})]
IssuerUrl = Annotated[str, AfterValidator(_issuer_url), Field(json_schema_extra={"format": "uri"})]
EndpointText = Annotated[str, AfterValidator(_zmq_endpoint)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
FilePath = Annotated[Path, BeforeValidator(_to_path), AfterValidator(_existing_file)]
NewPath = Annotated[Path, BeforeValidator(_to_path), AfterValidator(_any_path)]
"""It need not exist."""
TokenizerSource = Annotated[
    Path | Literal["embedded"] | None,
    BeforeValidator(_tokenizer_source),
    AfterValidator(_existing_tokenizer),
]
