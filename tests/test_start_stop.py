"""A gateway that starts and ends again and again, whatever its workers do, leaves nothing behind and always ends."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from backends.fleet import Fleet, Member
from backends.fleet_state import FleetState
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.worker_spec import FleetSettings, WorkerSpec
from cache.prefix_index import PrefixIndex
from gateway.app import running
from gateway.config import Config, parse_config
from gateway.program import Program
from policies.types import WorkerId
from tests.gateway_fixtures import ScriptedWorker, config_for, eventually, model_text
from tests.reload_fixtures import CHAT

DEAD = "http://127.0.0.1:1"


def census() -> dict[str, int]:
    """What a gateway that has ended may have left."""
    gc.unfreeze()
    gc.collect()
    kinds = Counter(type(each) for each in gc.get_objects())
    return {
        "programs": kinds[Program],
        "members": kinds[Member],
        "tasks": len(asyncio.all_tasks()),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }


def with_events(fleet: SimulatedFleet) -> Config:
    """A configuration with everything that starts something."""
    lines = [
        f"  - {{name: w{at}, url: '{worker.url}', kv_events: {{endpoint: '{worker.kv_endpoint}', "
        f"replay_endpoint: '{worker.replay_endpoint}'}}}}\n"
        for at, worker in enumerate(fleet.workers)
    ]
    return parse_config(
        "listen: {port: 0}\nadmin: {port: 0}\nlimits: {drain_timeout: 0.2}\n"
        "telemetry: {endpoint: 'http://127.0.0.1:1'}\n"
        f"workers:\n{''.join(lines)}  - {{name: dead, url: '{DEAD}'}}\n"
    )


async def once(config: Config) -> None:
    """Start it, use it, end it."""
    async with running(config) as (program, port), aiohttp.ClientSession() as http:
        async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200
        async with http.get(f"http://127.0.0.1:{program.admin_port}/metrics") as response:
            assert response.status == 200


async def test_many_lives_leave_nothing() -> None:
    async with SimulatedFleet(2, FleetConfig(), text=model_text()) as fleet:
        config = with_events(fleet)
        for _ in range(3):
            await once(config)
        await asyncio.sleep(0.1)
        before = census()
        for _ in range(12):
            async with running(config):
                pass
        for _ in range(3):
            await once(config)
        for _ in range(50):  # the workers' side of the connections ends a moment later
            if all(count <= before[name] for name, count in census().items()):
                break
            await asyncio.sleep(0.1)
        after = census()
        assert after["programs"] == after["members"] == 0
        assert {name: count for name, count in after.items() if count > before[name]} == {}


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.005, 0.02, 0.05, 0.1])
async def test_it_ends_while_workers_are_asked_connected_to_and_replayed(moment: float) -> None:
    async with SimulatedFleet(3, FleetConfig(), text=model_text()) as fleet:
        before = asyncio.all_tasks()
        program = Program(with_events(fleet))
        starting = asyncio.create_task(program.start())
        await asyncio.sleep(moment)
        fleet.workers[0].hang()
        starting.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(starting, return_exceptions=True)
            await program.close()
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not [name for name in names if "worker" in name or "end of" in name]


async def hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Never answer."""
    await reader.read()


async def test_workers_that_are_all_down_or_silent_hold_up_no_start_for_long() -> None:
    loop = asyncio.get_running_loop()
    async with ScriptedWorker(hold).running() as silent:
        config = config_for([DEAD, silent.url], "limits: {drain_timeout: 0.1}\n")
        async with asyncio.timeout(20), running(config) as (program, port), aiohttp.ClientSession() as http:
            async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=CHAT) as response:
                assert response.status == 503
            state = FleetState(cooldown=1.0, cooldown_max=1.0)
            fleet = Fleet(state, PrefixIndex(max_blocks=10), FleetSettings(), loop=loop)
            fleet.add(WorkerSpec(WorkerId("silent"), "127.0.0.1", int(silent.url.rpartition(":")[2])))
            (member,) = fleet.members.values()
            await fleet.first_round(0.05)
            assert not member.poll.first_round.is_set()
            await fleet.close()
            assert not member.tasks
            with pytest.raises(ValueError, match="stopping"):
                fleet.add(WorkerSpec(WorkerId("late"), "127.0.0.1", 1))
        assert not program.fleet.members


async def test_closing_does_not_wait_for_a_worker_that_leaves_with_a_long_grace() -> None:
    async with ScriptedWorker(hold).running() as silent:
        config = config_for([silent.url], "limits: {drain_timeout: 0.1}\nmodels: []\n", workers_extra=[", models: [m]"])
        program = Program(config)
        port = await program.start()
        async with aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            request = asyncio.create_task(http.post(url, json={**CHAT, "model": "m"}))
            await eventually(lambda: program.pipeline.live)
            leaving = program.fleet.remove(WorkerId("w0"), 3600.0)
            async with asyncio.timeout(15):
                await program.close()
            assert leaving.done()
            assert not program.fleet.leaving
            with pytest.raises(aiohttp.ClientError):
                await request


async def test_a_part_that_does_not_end_keeps_no_other_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    program = Program(config_for([DEAD], "limits: {drain_timeout: 0.0}\n"))
    await program.start()

    async def fails() -> None:
        raise RuntimeError("it does not end")

    program.readers.close = fails  # type: ignore[method-assign]  # a part with a fault
    await program.close()
    assert "the reading of prompts did not end as they should" in caplog.text
    assert not program.fleet.members
