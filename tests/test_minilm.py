"""The local model: the same vectors as its reference, from both engines, and no vectors from any other model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache.embedding import Embedder, EmbeddingError, Engine
from cache.local_embedding import load_minilm
from cache.minilm import MiniLM, _batches
from cache.minilm_files import ModelFolderError, read_shape
from cache.minilm_numpy import gelu, runs
from cache.minilm_tokens import WordPieces
from cache.unit_rows import unit_rows
from tests.bench import embedding
from tests.embedder_contract import TEXTS, EmbedderContract
from tests.embedding_fixtures import VOCABULARY, BertSize, bert_tensors, real_minilm, write_bert
from tests.gateway_fixtures import eventually

ENGINES: tuple[Engine, ...] = ("numpy", "torch")
SENTENCES = [*TEXTS, "the weather is lovely today", "He drove to the stadium!", "never " * 500, "it's not so sunny"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert") / "model")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    torch.set_num_threads(1)
    chosen: Engine = request.param
    return chosen


class TestContract(EmbedderContract):
    @pytest.fixture
    def embedder(self, folder: Path, engine: Engine) -> Embedder:
        return load_minilm(folder, engine)


def reference(folder: Path, texts: list[str]) -> NDArray[np.float32]:
    """The steps of the model's card, by the library that it is written with."""
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()  # type: ignore[no-untyped-call]  # has no types
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # has no types
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    inputs = tokenizer(
        texts, padding=True, truncation=True, max_length=256, return_tensors="pt", return_token_type_ids=True
    )
    with torch.inference_mode():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None].float()
    rows: NDArray[np.float32] = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()
    return rows


def test_vectors_are_those_of_the_reference(folder: Path, engine: Engine) -> None:
    rows = load_minilm(folder, engine).embed(SENTENCES)
    assert np.abs(rows - reference(folder, SENTENCES)).max() < 1e-5
    # Which is no matter of course: the sentences differ by more than that.
    assert np.abs(rows[:, None] - rows[None]).max(axis=2)[~np.eye(len(rows), dtype=bool)].max() > 0.1


def test_both_engines_give_the_same_vectors_under_the_same_name(folder: Path) -> None:
    one, other = (load_minilm(folder, engine) for engine in ENGINES)
    assert one.name == other.name
    assert np.abs(one.embed(SENTENCES) - other.embed(SENTENCES)).max() < 1e-5


@pytest.mark.skipif(real_minilm() is None, reason="no all-MiniLM-L6-v2 here: prefixgate fetch minilm")
def test_the_real_model_gives_the_vectors_of_the_reference(engine: Engine) -> None:
    folder = real_minilm()
    assert folder is not None
    texts = [text for text in SENTENCES if len(text) < 1000]
    rows = load_minilm(folder, engine).embed(texts)
    assert rows.shape == (len(texts), 384)
    assert np.abs(rows - reference(folder, texts)).max() < 1e-5


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_any_mixture_of_lengths_gives_what_each_gives_alone(folder: Path, lengths: list[int], random: object) -> None:
    rng = np.random.default_rng(sum(lengths))
    bert = load_minilm(folder, "numpy")._bert  # type: ignore[attr-defined]  # a white-box check
    sequences = [rng.integers(5, len(VOCABULARY), length).tolist() for length in lengths]
    together = bert.pooled(sequences)
    for row, sequence in zip(together, sequences, strict=True):
        assert np.abs(row - bert.pooled([sequence])[0]).max() < 1e-5


def test_gelu_is_exact_to_a_millionth() -> None:
    x = np.concatenate([np.linspace(-14, 14, 70_001), [0.0, -0.0, 1e-30, -1e-30, 100, -100, 1e15, -1e15]]).astype(
        np.float32
    )
    expected = np.array([each * 0.5 * math.erfc(-each / math.sqrt(2)) for each in x.tolist()])
    ours = x.copy()
    gelu(ours)
    assert (np.abs(ours - expected) / np.maximum(1, np.abs(expected))).max() < 1e-6
    square = x[: 250 * 280].reshape(250, 280).copy()
    gelu(square)
    assert (square.reshape(-1) == ours[: square.size]).all()


def test_runs_are_neighbours_of_one_length() -> None:
    assert list(runs([3, 3, 5, 3])) == [(0, 2, 3), (6, 1, 5), (11, 1, 3)]
    assert list(runs([])) == []


def test_batches_hold_all_texts_from_short_to_long_and_few_tokens_each() -> None:
    sequences = [[1] * length for length in (256, 3, 200, 100, 3, 300)]
    assert list(_batches(sequences)) == [[1, 4, 3, 2], [0], [5]]


def test_texts_are_cut_with_their_special_tokens_kept(folder: Path) -> None:
    pieces = WordPieces(folder, read_shape(folder))
    cls, sep = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
    (ids,) = pieces.encode(["fox " * 1000])
    assert ids == [cls, *[VOCABULARY.index("fox")] * 254, sep]
    assert pieces.encode(["", "fox"]) == [[cls, sep], [cls, VOCABULARY.index("fox"), sep]]


@pytest.mark.parametrize(
    "text",
    ["fox dog " * 20_000, " " * 30_000 + "fox " * 30, "y" * 90_000, "a " + "." * 20_000,
     "fox " * 10 + " " * 20_000 + "dog", ("z" * 150 + " ") * 400, "é" * 300 + " e\u0301" * 9000],
    ids=["words", "spaces", "no space", "points", "gap", "unknown", "accents"],
)  # fmt: skip
def test_of_a_long_text_the_beginning_gives_the_same_tokens(folder: Path, text: str) -> None:
    pieces = WordPieces(folder, read_shape(folder))
    assert pieces.encode([text, "fox"]) == [pieces._tokenizer.encode(text).ids, pieces._tokenizer.encode("fox").ids]


def test_a_folder_may_say_another_length(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "16", files={"sentence_bert_config.json": {"max_seq_length": 16}})
    assert len(WordPieces(folder, read_shape(folder)).encode(["fox " * 99])[0]) == 16
    folder = write_bert(tmp_path / "40", BertSize(positions=40))
    assert len(WordPieces(folder, read_shape(folder)).encode(["fox " * 99])[0]) == 40
    assert load_minilm(folder, "numpy").embed(["fox " * 99]).shape == (1, 48)


def test_weights_in_half_precision_are_read(tmp_path: Path, folder: Path) -> None:
    half = {name: tensor.astype(np.float16) for name, tensor in bert_tensors(BertSize()).items()}
    rows = load_minilm(write_bert(tmp_path, tensors=half), "numpy").embed(["the fox"])
    difference = np.abs(rows - load_minilm(folder, "numpy").embed(["the fox"])).max()
    assert 1e-6 < difference < 1e-2


def test_its_name_is_that_of_its_files(tmp_path: Path, folder: Path) -> None:
    other = bert_tensors(BertSize())["encoder.layer.0.output.dense.bias"] + 1
    names = {
        load_minilm(each, "numpy").name
        for each in (
            folder,
            write_bert(tmp_path / "same"),
            write_bert(tmp_path / "weights", tensors={"encoder.layer.0.output.dense.bias": other}),
            write_bert(tmp_path / "length", files={"sentence_bert_config.json": {"max_seq_length": 64}}),
            write_bert(tmp_path / "eps", config={"layer_norm_eps": 1e-6}),
        )
    }
    assert len(names) == 4


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "roberta"}, "config.json: model_type is 'roberta'"),
        ({"hidden_act": "relu"}, "config.json: hidden_act is 'relu'"),
        ({"hidden_act": None}, "config.json: hidden_act is None"),
        ({"position_embedding_type": "relative_key"}, "config.json: position_embedding_type"),
        ({"is_decoder": True}, "config.json: is_decoder"),
        ({"num_attention_heads": 5}, "config.json: num_attention_heads 5 does not divide hidden_size"),
        ({"num_hidden_layers": 0}, "config.json: num_hidden_layers"),
        ({"num_hidden_layers": "2"}, "config.json: num_hidden_layers"),
        ({"vocab_size": True}, "config.json: vocab_size"),
        ({"layer_norm_eps": "x"}, "config.json: layer_norm_eps"),
        ({"vocab_size": 20}, "tokenizer.json: has"),
        ({"hidden_size": 44}, r"is \[\d+, 48\]; config.json says \[\d+, 44\]"),
        ({"num_hidden_layers": 3}, "encoder.layer.2.attention.self.query.weight is missing"),
    ],
)
def test_another_architecture_is_refused_by_its_field(tmp_path: Path, config: dict[str, object], told: str) -> None:
    with pytest.raises(ModelFolderError, match=told):
        load_minilm(write_bert(tmp_path, config=config), "numpy")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, "1_Pooling/config.json: pooling_mode_cls_token"),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": False}}, "pooling_mode_mean_tokens"),
        ({"modules.json": [{"type": "sentence_transformers.models.Transformer"}]}, "modules.json: type"),
        ({"modules.json": {}}, "modules.json: type"),
        ({"sentence_bert_config.json": {"max_seq_length": 2}}, "sentence_bert_config.json: max_seq_length"),
        ({"sentence_bert_config.json": {"max_seq_length": 1.5}}, "sentence_bert_config.json: max_seq_length"),
        ({"1_Pooling/config.json": []}, "no JSON object"),
    ],
)
def test_another_pooling_is_refused_by_its_field(tmp_path: Path, files: dict[str, object], told: str) -> None:
    with pytest.raises(ModelFolderError, match=told):
        load_minilm(write_bert(tmp_path, files=files), "numpy")


def test_a_folder_of_the_bare_encoder_will_do(tmp_path: Path, folder: Path) -> None:
    bare = write_bert(tmp_path, files={"1_Pooling/config.json": None, "modules.json": None})
    assert (load_minilm(bare, "numpy").embed(["fox"]) == load_minilm(folder, "numpy").embed(["fox"])).all()


def test_damaged_files_are_told(tmp_path: Path, folder: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        broken = tmp_path / name
        write_bert(broken)
        whole = (broken / name).read_bytes()
        for content in (b"", whole[:100], b"\xff" * 2000, b"[" * 100_000):
            (broken / name).write_bytes(content)
            with pytest.raises(ModelFolderError, match=name):
                load_minilm(broken, "numpy")
        (broken / name).unlink()
        with pytest.raises(ModelFolderError, match=name):
            load_minilm(broken, "numpy")


def test_weights_of_another_type_are_refused(tmp_path: Path) -> None:
    name = "encoder.layer.1.output.dense.bias"
    with pytest.raises(ModelFolderError, match=f"{name} is int64"):
        load_minilm(write_bert(tmp_path, tensors={name: np.zeros(48, np.int64)}), "numpy")


def test_weights_that_are_not_numbers_give_no_vectors(tmp_path: Path) -> None:
    broken = write_bert(tmp_path, tensors={"embeddings.LayerNorm.bias": np.full(48, np.nan, np.float32)})
    with pytest.raises(EmbeddingError, match="not finite"):
        load_minilm(broken, "numpy").embed(["fox"])


def test_a_tokenizer_without_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = write_bert(tmp_path)
    written = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**written, "post_processor": None}))
    with pytest.raises(ModelFolderError, match="post_processor"):
        load_minilm(folder, "numpy")


def test_torch_is_taken_where_it_is_installed(folder: Path) -> None:
    assert type(MiniLM.load(folder)._bert).__name__ == "TorchBert"


def test_numpy_computes_without_torch_and_the_interface_without_numpy(folder: Path) -> None:
    """In a process in which they are not installed, as far as it can tell."""
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in absent: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "absent = {'torch', 'numpy'}\n"
        "import gateway.embedding_batcher\n"
        "from cache.embedding import EmbeddingError\nfrom cache.local_embedding import load_minilm\n"
        "from pathlib import Path\n"
        "folder = Path(sys.argv[1])\n"
        "try: load_minilm(folder)\n"
        "except EmbeddingError as error: print(error)\n"
        "absent = {'torch'}\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "print(load_minilm(folder).embed(['fox']).shape)\n"
        "try: load_minilm(folder, 'torch')\n"
        "except EmbeddingError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.stdout.splitlines() == [
        "numpy is missing: install prefixgate[semantic]",
        "(1, 48)",
        "torch is missing: install prefixgate[worker], or compute with numpy",
    ], run.stderr


@pytest.mark.parametrize("number", [math.nan, math.inf, 0.0])
def test_rows_without_a_direction_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not finite, or has no length"):
        unit_rows(np.array([[1.0, 0.0], [number, 0.0]], np.float32))


def test_large_and_small_rows_get_length_one() -> None:
    rows = unit_rows(np.array([[3e38, 3e38], [3e-6, 4e-6]], np.float32))
    assert rows.tolist() == [pytest.approx([0.7071068, 0.7071068]), pytest.approx([0.6, 0.8])]


async def test_the_benchmark_measures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = MiniLM.load(folder, "numpy")
    embedding.show_costs({"numpy": model}, 0.0)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ms", "8", "32", "128"]
    async with embedding.in_a_thread(model, "the fox", 1) as texts:
        await eventually(lambda: texts() > 2)
        late = await embedding.lags(0.02)
    assert list(late) == sorted(late)
