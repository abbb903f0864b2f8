"""The configuration: what is accepted, and what each mistake is told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.config import (
    Config,
    ConfigError,
    Worker,
    config_from_flags,
    json_schema,
    load_config,
    parse_config,
)
from gateway.config.problems import nearest, setting_paths
from gateway.config.units import format_duration, format_size, parse_duration, parse_size

ONE_WORKER = "workers: [{url: 'http://127.0.0.1:8001'}]\n"


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environment=environment)
    return [str(problem) for problem in caught.value.problems]


def test_a_single_worker_is_a_whole_configuration() -> None:
    config = parse_config(ONE_WORKER)
    assert config.workers[0].url == "http://127.0.0.1:8001"
    assert config.workers[0].name == "127.0.0.1:8001"
    assert config.workers[0].address == ("127.0.0.1", 8001)
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8000)
    assert (config.limits.head_bytes, config.limits.body_bytes) == (32 * 1024, 32 * 1024 * 1024)
    assert (config.limits.head_timeout, config.limits.body_timeout) == (10.0, 60.0)
    assert config.routing.policy == "cost"
    assert config.index.max_blocks == 2_000_000


def test_every_section_can_be_set() -> None:
    config = parse_config("""
listen: {host: '::1', port: 0, backlog: 5}
limits: {head_bytes: 16KiB, body_bytes: 2MB, head_timeout: 500ms, body_timeout: 1m, idle_timeout: 1.5}
upstream: {max_attempts: 1, cooldown: 2s}
models: [{name: tiny, tokenizer: embedded}]
workers:
  - url: http://[::1]:8001/
    name: first
    models: [tiny]
    api_key: sesame
    block_size: 32
    kv_blocks: 1000
    kv_events: {endpoint: 'tcp://[::1]:5557', replay_endpoint: 'tcp://[::1]:5558', topic: kv}
  - url: http://engine
routing: {policy: least_loaded, cost: {recompute_weight_full: 2, seed: 7}}
tokens: {cache_bytes: 1GiB, wait: 0}
index: {prediction_ttl: 2}
response_headers: {worker: x-prefixgate-worker}
log: {level: debug, format: json, access: true}
""")
    assert config.limits.head_bytes == 16 * 1024
    assert config.limits.body_bytes == 2_000_000
    assert (config.limits.head_timeout, config.limits.body_timeout, config.limits.idle_timeout) == (
        0.5,
        60.0,
        1.5,
    )
    first, second = config.workers
    assert first.address == ("::1", 8001)
    assert first.models == ("tiny",)
    assert first.kv_events is not None
    assert first.kv_events.topic == "kv"
    assert (second.name, second.address) == ("engine:80", ("engine", 80))
    assert config.models[0].tokenizer == "embedded"
    assert config.response_headers.worker == "x-prefixgate-worker"


def test_a_configuration_cannot_be_changed() -> None:
    config = parse_config(ONE_WORKER)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config.listen, "port", 1)  # noqa: B010 - mypy knows that plain assignment is wrong


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    assert problems("""\
listen: {port: "8000", hots: a}
limits:
  body_bytes: 32xB
  head_timeout: -1
  idle_timeout: soon
workers:
  - url: ftp://a:1
  - url: http://b:2
    kv_events: {endpoint: "tcp://*:5557"}
    block_siz: 3
    head_timeout: 4
routing: {policy: costs}
log: {access: yes, level: 3}
models: tiny
""") == [
        'line 1: listen.port: expected a whole number; given "8000"',
        "line 1: listen.hots: unknown setting; did you mean host?",
        'line 3: limits.body_bytes: expected a number of bytes, or text such as "64KiB", "32MB" or "1GiB"; '
        'given "32xB"',
        "line 4: limits.head_timeout: expected more than 0; given -1",
        'line 5: limits.idle_timeout: expected a number of seconds, or text such as "500ms", "10s" or "5m"; '
        'given "soon"',
        'line 7: workers[0].url: expected a URL such as http://127.0.0.1:8001; given "ftp://a:1"',
        "line 9: workers[1].kv_events.endpoint: expected the worker's own host: * and 0.0.0.0 are addresses "
        'to bind to, not to connect to; given "tcp://*:5557"',
        "line 10: workers[1].block_siz: unknown setting; did you mean block_size?",
        "line 11: workers[1].head_timeout: unknown setting here; did you mean limits.head_timeout?",
        "line 12: routing.policy: expected one of cost, slo, least_loaded, round_robin, random, power_of_two, "
        'consistent_hash, prefix_affinity (did you mean cost?); given "costs"',
        "line 13: log.level: expected one of debug, info, warning, error; given 3",
        'line 13: log.access: expected true or false; given "yes"',
        'line 14: models: expected a list; given "tiny"',
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; it needs at least one entry under workers"),
        ("# nothing\n", "is empty; it needs at least one entry under workers"),
        ("listen: {}", "line 1: workers: expected a list of at least 1, or names under discovery.dns; given nothing"),
        ("workers: []", "line 1: workers: expected a list of at least 1, or names under discovery.dns; given nothing"),
        ("workers: [{name: a}]", "line 1: workers[0].url: required, but not given"),
        ("workers: [http://a:1]", 'line 1: workers[0]: expected a section of settings; given "http://a:1"'),
        ("[1, 2]", "line 1: expected a section of settings; given a list of 2"),
        ("just words", 'line 1: expected a section of settings; given "just words"'),
        ("[" * 5000, "nested too deeply"),
        (ONE_WORKER + "listen: {port: 1_}", 'line 2: listen.port: expected a whole number; given "1_"'),
        (
            ONE_WORKER + f"index: {{max_blocks: {'-' + '9' * 39}}}",
            f"line 2: index.max_blocks: expected at least 1; given -{'9' * 39}",
        ),
        (
            ONE_WORKER + f"index: {{max_blocks: {'9' * 5000}}}",
            "line 2: index.max_blocks: expected a whole number; given inf",
        ),
        (
            ONE_WORKER + "tokens: {cache_bytes: 1}",
            "line 2: tokens.cache_bytes: expected at least 1048576; given 1",
        ),
        ("a: [1", "line 1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: \x07", "line 1: not valid YAML: the character '\\x07'"),
        (ONE_WORKER + "listen:", "line 2: listen: expected a section of settings; given nothing"),
        (ONE_WORKER + "listen: {port: 65536}", "line 2: listen.port: expected at most 65535; given 65536"),
        (
            ONE_WORKER + "tenants: {members: [{name: a, weight: 1.0e-7}]}",
            "line 2: tenants.members[0].weight: expected at least 0.001; given 1e-07",
        ),
        (ONE_WORKER + "listen: {port: true}", "line 2: listen.port: expected a whole number; given true"),
        (ONE_WORKER + "listen: {port: 1.5}", "line 2: listen.port: expected a whole number; given 1.5"),
        (ONE_WORKER + "listen: {host: 1}", "line 2: listen.host: expected text; given 1"),
        (
            ONE_WORKER + "limits: {head_timeout: .inf}",
            "line 2: limits.head_timeout: expected a finite number; given inf",
        ),
        (
            ONE_WORKER + "quux: 1",
            "line 2: quux: unknown setting; known here: listen, limits, upstream, models, "
            "workers, discovery, routing, health, routes, tokens, index, response_headers, response_cache, "
            "semantic_cache, admission, tenants, admin, telemetry, log, reload",
        ),
        (
            ONE_WORKER + "1: 1",
            "line 2: 1: unknown setting; known here: listen, limits, upstream, models, "
            "workers, discovery, routing, health, routes, tokens, index, response_headers, response_cache, "
            "semantic_cache, admission, tenants, admin, telemetry, log, reload",
        ),
        (ONE_WORKER + ONE_WORKER, "line 2: workers: given twice, first on line 1"),
        (ONE_WORKER + "? [a, b]\n: 1", "line 2: a key must be a word"),
        (ONE_WORKER + "models: &a [*a]", "line 2: models[0]: an alias that contains itself"),
        (
            ONE_WORKER + "response_headers: {worker: 'a b'}",
            'line 2: response_headers.worker: expected a header name: letters, digits and hyphens; given "a b"',
        ),
        (
            ONE_WORKER + "response_headers: {worker: Content-Length}",
            "line 2: response_headers.worker: expected a header of its own; this one belongs to the "
            'protocol; given "Content-Length"',
        ),
        (
            ONE_WORKER + "models: [{name: a, tokenizer: 3}]",
            "line 2: models[0].tokenizer: expected a directory with tokenizer.json, or the word embedded; given 3",
        ),
    ],
)
def test_one_mistake(text: str, expected: str) -> None:
    assert problems(text)[0] == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://a:1", "a URL such as http://127.0.0.1:8001"),
        ("a:1", "a URL such as http://127.0.0.1:8001"),
        ("http://", "a URL such as http://127.0.0.1:8001"),
        ("http://a:0", "a URL such as http://127.0.0.1:8001"),
        ("http://a:70000", "a URL such as http://127.0.0.1:8001"),
        ("http://a b:1", "a URL such as http://127.0.0.1:8001"),
        ("http://[::1:1", "a URL such as http://127.0.0.1:8001"),
        ("http://a:1/v1", "a URL that ends after the port; the client's own path is added to it"),
        ("http://a:1?x=1", "a URL that ends after the port; the client's own path is added to it"),
        ("http://a..b:1", "a URL such as http://127.0.0.1:8001"),
        ("http://.:1", "a URL such as http://127.0.0.1:8001"),
        ("http://a%20b:1", "a URL such as http://127.0.0.1:8001"),
        ("http://a;b:1", "a URL such as http://127.0.0.1:8001"),
    ],
)
def test_worker_urls_that_are_refused(url: str, expected: str) -> None:
    assert problems(f"workers: [{{url: '{url}'}}]") == [f'line 1: workers[0].url: expected {expected}; given "{url}"']


@pytest.mark.parametrize(
    "endpoint",
    [
        "ipc:///tmp/kv",
        "tcp://a",
        "tcp://a:1/x",
        "a:1",
        "tcp://[::1:1",
        "tcp://a..b:1",
        "tcp://a:1?x",
        "tcp://a:1#x",
        "tcp://a:0",
    ],
)
def test_endpoints_that_are_refused(endpoint: str) -> None:
    found = problems(f"workers: [{{url: 'http://a:1', kv_events: {{endpoint: '{endpoint}'}}}}]")
    assert found == [
        f'line 1: workers[0].kv_events.endpoint: expected an endpoint such as tcp://127.0.0.1:5557; given "{endpoint}"'
    ]


def test_hosts_are_kept_as_dns_takes_them() -> None:
    worker = parse_config(
        "listen: {host: bücher.example, port: 3}\nmodels: [{name: a, tokenizer: embedded}]\n"
        "workers: [{url: 'http://bücher.example:1', kv_events: {endpoint: 'tcp://Bücher.example:2'}}]"
    ).workers[0]
    assert (worker.url, worker.name) == ("http://xn--bcher-kva.example:1", "xn--bcher-kva.example:1")
    assert worker.kv_events is not None
    assert worker.kv_events.endpoint == "tcp://xn--bcher-kva.example:2"
    local = parse_config("workers: [{url: 'http://[fe80::1%eth0]:1'}, {url: 'http://my_host.:1'}]").workers
    assert [worker.address for worker in local] == [("fe80::1%eth0", 1), ("my_host.", 1)]


@pytest.mark.parametrize("host", ["a..b", "[::1]", "::1::", "a b", "a/b", "\x00"])
def test_hosts_to_listen_on_that_are_refused(host: str) -> None:
    found = problems(yaml.safe_dump({"listen": {"host": host}, "workers": [{"url": "http://a:1"}]}))
    given = host.replace("\x00", r"\x00")
    assert found == [
        f'line 2: listen.host: expected an address such as 127.0.0.1 or ::1, or a host name; given "{given}"'
    ]


@pytest.mark.parametrize("name", ["a\r\nset-cookie: x=1", "a b", " a", "ü", "\x7f", "a\t"])
def test_a_workers_name_fits_into_a_header(name: str) -> None:
    (found,) = problems(yaml.safe_dump({"workers": [{"url": "http://a:1", "name": name}]}))
    assert "workers[0].name: expected visible ASCII characters without spaces; given" in found
    assert found.isprintable()


@pytest.mark.parametrize("name", ["a\r\nb", "\x00", "a\u2028b", "a\u202eb"])
def test_a_models_name_is_printable(name: str) -> None:
    found = problems(yaml.safe_dump({"models": [{"name": name}], "workers": [{"url": "http://a:1", "models": [name]}]}))
    expected = "expected text without line breaks and other control characters; given "
    assert [line.split(": ", 1)[1].split('"')[0] for line in found] == [
        f"models[0].name: {expected}",
        f"workers[0].models[0]: {expected}",
    ]
    assert all(line.isprintable() for line in found)


def test_a_key_has_no_line_break() -> None:
    text = "workers:\n- url: http://a:1\n  api_key: ${KEY}\n"
    assert problems(text, KEY="canary\n") == [
        "line 3: workers[0].api_key: expected a key of printable ASCII characters, without line breaks; "
        "given the value of ${KEY}"
    ]


def test_no_idle_connections_means_no_pooling() -> None:
    assert parse_config(ONE_WORKER + "upstream: {max_idle_connections: 0}").upstream.max_idle_connections == 0


def test_bounds_on_all_requests_together() -> None:
    config = parse_config(ONE_WORKER)
    assert config.limits.total_body_bytes == 1 << 30
    assert (config.tokens.max_chars, config.tokens.max_messages) == (4_000_000, 2_000)
    config = parse_config(
        ONE_WORKER + "limits: {body_bytes: 8MiB, total_body_bytes: 8MiB}\ntokens: {max_chars: 1, max_messages: 1}"
    )
    assert config.limits.total_body_bytes == config.limits.body_bytes


TWO = "workers: [{url: 'http://a:1'}, {url: 'http://b:2'}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "workers:\n- url: http://a:1\n- url: http://a:1/\n  name: b",
            ["line 3: workers[1].url: http://a:1 is already that of workers[0]"],
        ),
        (
            "workers:\n- {url: 'http://a:1', name: x}\n- {url: 'http://b:1', name: x}",
            ["line 3: workers[1].name: x is already that of workers[0]"],
        ),
        (
            TWO + "models: [{name: a}, {name: a}]",
            ["line 2: models[1].name: a is already that of models[0]"],
        ),
        (
            "workers: [{url: 'http://localhost:8000'}]",
            ["line 1: workers[0].url: http://localhost:8000 is the gateway itself (listen.port is 8000 too)"],
        ),
        (
            "workers: [{url: 'http://gw:80'}]\nlisten: {host: gw, port: 80}",
            ["line 1: workers[0].url: http://gw:80 is the gateway itself (listen.port is 80 too)"],
        ),
        (
            "workers: [{url: 'http://a:1', models: [qwen3]}]\nmodels: [{name: qwen-3}]",
            [
                "line 1: workers[0].models[0]: no model qwen3 under models; did you mean qwen-3?",
                "line 2: models[0].name: no worker serves qwen-3",
            ],
        ),
        (
            TWO + "models: [{name: a, chat_template: t.jinja}]",
            ["line 2: models[0].chat_template: needs a tokenizer beside it to be of use"],
        ),
        (
            "models: [{name: a, tokenizer: embedded}, {name: b}]\n"
            "workers:\n- {url: 'http://a:1', models: [a]}\n"
            "- url: http://b:2\n  models: [b]\n  kv_events: {endpoint: 'tcp://b:5', replay_endpoint: 'tcp://b:5'}",
            [
                "line 6: workers[1].kv_events.replay_endpoint: must differ from endpoint: "
                "they are two sockets of the worker",
            ],
        ),
        (
            "models: [{name: a, tokenizer: embedded}]\nworkers:\n"
            "- {url: 'http://a:1', kv_events: {endpoint: 'tcp://a:5'}}\n"
            "- {url: 'http://b:1', kv_events: {endpoint: 'tcp://a:5'}}",
            ["line 4: workers[1].kv_events.endpoint: tcp://a:5 is already that of workers[0]"],
        ),
        (
            TWO + "listen: {port: 0, reuse_port: true}",
            ["line 2: listen.reuse_port: needs a fixed port: with port 0 each process would take another one"],
        ),
        (
            TWO + "listen: {host: localhost, port: 0}",
            [
                "line 2: listen.host: must be an address such as 127.0.0.1 with port 0: "
                "a name may stand for several, each with another port"
            ],
        ),
        (
            TWO + "limits: {total_body_bytes: 31MiB}",
            ["line 2: limits.total_body_bytes: must not be less than limits.body_bytes"],
        ),
        (
            TWO + "limits: {body_bytes: 2GiB}",
            ["line 2: limits.total_body_bytes: must not be less than limits.body_bytes"],
        ),
        (
            TWO + "limits: {body_bytes: 8KiB}",
            [
                "line 2: limits.head_bytes: must not be more than limits.body_bytes",
                "tokens.inline_chars: must not be more than limits.body_bytes: no prompt is that long",
            ],
        ),
        (
            TWO + "upstream: {first_byte_timeout: 10ms, cooldown: 1m}",
            [
                "line 2: upstream.connect_timeout: must not be more than upstream.first_byte_timeout",
                "line 2: upstream.cooldown: must not be more than upstream.cooldown_max",
                "tokens.wait: must be less than upstream.first_byte_timeout",
            ],
        ),
        (
            TWO + "routing: {cost: {recompute_weight_idle: 6}}",
            ["line 2: routing.cost.recompute_weight_idle: must not be more than recompute_weight_full"],
        ),
        (
            "workers: [{url: 'http://a:1', kv_blocks: 60}, {url: 'http://b:1', kv_blocks: 50}]\n"
            "index: {max_blocks: 100}",
            ["line 2: index.max_blocks: must be at least 110: the workers' kv_blocks add up to that"],
        ),
    ],
)
def test_settings_that_contradict_each_other(text: str, expected: list[str]) -> None:
    found = problems(text)
    assert sorted(line.replace("line 1: tokens", "tokens") for line in found) == sorted(expected)


def test_contradictions_are_found_without_a_file_too() -> None:
    with pytest.raises(ValidationError, match=r"workers\[1\]\.url: http://a:1 is already that of workers\[0\]"):
        Config(workers=(Worker(url="http://a:1"), Worker(url="http://a:1")))


def test_variables_come_from_the_environment() -> None:
    text = "listen: {host: '${HOST}', port: 1}\nlog:\n  level: ${LEVEL:-debug}\nworkers: [{url: 'http://${A}:1'}]\n"
    config = parse_config(text, environment={"HOST": "::", "A": "a"})
    assert (config.listen.host, config.log.level, config.workers[0].url) == ("::", "debug", "http://a:1")
    port = "listen:\n  port: ${PORT}\n" + ONE_WORKER
    assert parse_config(port, environment={"PORT": "81"}).listen.port == 81
    key = "workers:\n- url: http://a:1\n  api_key: '$${x} ${KEY}'\n"
    secret = parse_config(key, environment={"KEY": "k"}).workers[0].api_key
    assert secret is not None
    assert secret.get_secret_value() == "${x} k"


def test_a_missing_variable_names_the_field_and_the_variable() -> None:
    assert problems("workers:\n- url: http://a:1\n  api_key: ${WORKER_KEY}\n- url: ${2}\n") == [
        "line 3: workers[0].api_key: the environment variable WORKER_KEY is not set, or empty",
        "line 4: workers[1].url: ${2} is not ${NAME} or ${NAME:-default}",
    ]


def test_no_secret_is_ever_printed() -> None:
    secret = "canary-7431"
    text = """
listen: {host: "${SECRET}"}
workers:
- {url: "http://user:canary-7431@a:1", api_key: "${SECRET}"}
- {url: "${SECRET}", api_key: [canary-7431]}
- {url: "http://c:1", api_key: {canary-7431: 1}}
log: {level: "${SECRET}"}
"""
    found = "\n".join(problems(text, SECRET=secret))
    assert secret not in found
    assert "given the value of ${SECRET}" in found
    config = parse_config(f"workers: [{{url: 'http://a:1', api_key: {secret}}}]")
    assert secret not in f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"


def test_digits_from_a_variable_stay_text_when_quoted() -> None:
    text = "workers:\n- url: http://a:1\n  api_key: {}\n"
    assert parse_config(text.replace("{}", '"${KEY}"'), environment={"KEY": "123"}).workers[0].api_key
    assert problems(text.replace("{}", "${KEY}"), KEY="123") == [
        "line 3: workers[0].api_key: expected text; given the value of ${KEY}"
    ]


def test_paths_start_at_the_folder_of_the_file_and_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(
        "models: [{name: a, tokenizer: tok, chat_template: t.jinja}, {name: b, tokenizer: none}]\n" + ONE_WORKER
    )
    (tmp_path / "tok").mkdir()
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert [str(problem) for problem in caught.value.problems] == [
        f'line 1: models[0].tokenizer: expected a directory with tokenizer.json; {tmp_path}/tok has none; given "tok"',
        f"line 1: models[0].chat_template: expected a file that exists; there is none at {tmp_path}/t.jinja; "
        'given "t.jinja"',
        "line 1: models[1].tokenizer: expected a directory with tokenizer.json, or the word embedded; "
        f'there is no directory {tmp_path}/none; given "none"',
    ]
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    (tmp_path / "t.jinja").write_text("")
    file.write_text("models: [{name: a, tokenizer: tok, chat_template: t.jinja}]\n" + ONE_WORKER)
    model = load_config(str(file)).models[0]
    assert (model.tokenizer, model.chat_template) == (tmp_path / "tok", tmp_path / "t.jinja")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.yaml: 1 problem\n  cannot be read: No such file or directory"):
        load_config(tmp_path / "nothing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(tmp_path / "latin.yaml")


def test_flags_make_the_same_configuration_as_a_file() -> None:
    flags = config_from_flags(
        workers=["http://a:1", "http://b:2"],
        model="tiny",
        tokenizer="embedded",
        kv_events=["tcp://a:5", "tcp://b:5"],
        host="::",
        port=0,
        policy="round_robin",
        block_size=32,
    )
    assert flags == parse_config("""
listen: {host: '::', port: 0}
models: [{name: tiny, tokenizer: embedded}]
routing: {policy: round_robin}
workers:
- {url: 'http://a:1', block_size: 32, kv_events: {endpoint: 'tcp://a:5'}}
- {url: 'http://b:2', block_size: 32, kv_events: {endpoint: 'tcp://b:5'}}
""")


def test_flags_that_do_not_fit_together() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_flags(workers=["http://a:1", "http://b:2"], tokenizer="embedded", kv_events=["tcp://a:5"])
    assert [problem.path for problem in caught.value.problems] == ["--kv-events", "--tokenizer"]


def test_the_json_schema_is_closed_and_describes_every_setting() -> None:
    schema = json_schema()
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    for section in (schema, *definitions.values()):
        assert section["additionalProperties"] is False
        for name, setting in section["properties"].items():
            assert setting.get("description") or "$ref" in setting, name
    assert "workers[].kv_events.endpoint" in setting_paths(Config)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1B", 1), ("64KiB", 65_536), ("32MB", 32_000_000), ("1.5 kib", 1536), ("1GiB", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "1 TB", "-1", "0.3B", "1e3", "１KiB"])
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("10", 10), ("500ms", 0.5), ("1.5s", 1.5), ("5m", 300), ("1h", 3600)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "10 min", "-1s", "1d", "5M", "1e3"])
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a number of seconds"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_reads_back_as_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_durations_are_written_shortly() -> None:
    assert [format_duration(seconds) for seconds in (0, 0.05, 1, 1.5, 300)] == [
        "0s",
        "50ms",
        "1s",
        "1.5s",
        "300s",
    ]


@given(st.text())
def test_no_text_crashes_the_reader(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(text, environment={})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["listen", "workers", "url", "models", "name", "kv_events", "limits", "port"]),
                inner,
            )
        ),
    )
)
def test_no_shape_crashes_the_validation(value: object) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(yaml.safe_dump(value, allow_unicode=True), environment={})


def test_the_nearest_word_is_near() -> None:
    assert nearest("costs", ["cost", "round_robin"]) == "cost"
    assert nearest("zzz", ["cost", "round_robin"]) is None
