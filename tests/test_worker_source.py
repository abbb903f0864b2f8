"""Where models come from: directories, and ids that are fetched from a hub that speaks as the real one does."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from backends.worker.model_source import DEFAULT_MODEL, SMALL_MODEL, ModelSourceError, model_directory

ROOT = Path(__file__).parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "README.md": b"a card",
}
FETCH = "import sys; from backends.worker.model_source import *; print(model_directory(sys.argv[1], weights={}))"


@asynccontextmanager
async def hub() -> AsyncIterator[str]:
    """A hub with one model, `org/model`."""

    async def info(request: web.Request) -> web.Response:
        if request.match_info["id"] != "org/model":
            return web.json_response(
                {"error": "Repository not found"}, status=404, headers={"X-Error-Code": "RepoNotFound"}
            )
        siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
        return web.json_response({"id": "org/model", "sha": COMMIT, "siblings": siblings})

    async def tree(_: web.Request) -> web.Response:
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in FILES.items()
        ]
        return web.json_response(entries)

    async def file(request: web.Request) -> web.Response:
        content = FILES[request.match_info["name"]]
        etag = hashlib.sha256(content).hexdigest()
        return web.Response(body=content, headers={"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    app = web.Application()
    app.router.add_get("/api/models/{id:org/[^/]+}/revision/{revision}", info)
    app.router.add_get("/api/models/{id:org/[^/]+}", info)
    app.router.add_get("/api/models/org/model/tree/{revision}", tree)
    app.router.add_get("/org/model/resolve/{revision}/{name}", file)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fetch(url: str, home: Path, model: str, *, weights: bool = True) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FETCH.format(weights), model),
        cwd=ROOT,
        env=os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(45):
        out, err = await process.communicate()
    return process.returncode, out.decode().strip(), err.decode()


def contents(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


async def test_an_id_is_fetched_without_its_pickles(tmp_path: Path) -> None:
    async with hub() as url:
        status, directory, err = await fetch(url, tmp_path, "org/model")
        assert status == 0, err
    assert contents(directory) == {name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")}
    status, again, err = await fetch(url, tmp_path, "org/model")  # the hub is gone: what was fetched is there still
    assert (status, again) == (0, directory), err


async def test_dummy_weights_fetch_none(tmp_path: Path) -> None:
    async with hub() as url:
        status, directory, err = await fetch(url, tmp_path, "org/model", weights=False)
    assert status == 0, err
    assert set(contents(directory)) == {"config.json", "tokenizer.json"}


async def test_what_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    async with hub() as url:
        status, _, err = await fetch(url, tmp_path, "org/other")
    assert status == 1
    assert "ModelSourceError: model: 'org/other' is no directory here, and could not be fetched from the hub: " in err


def test_directories_and_the_model_inside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_directory(str(tmp_path)) == tmp_path
    assert model_directory(DEFAULT_MODEL) == SMALL_MODEL
    for wrong in (str(tmp_path / "nowhere"), "./nowhere", "~/nowhere-at-all"):
        with pytest.raises(ModelSourceError, match="there is no directory"):
            model_directory(wrong)
    with pytest.raises(ModelSourceError, match=r"has no config\.json"):
        model_directory(str(tmp_path.parent))
