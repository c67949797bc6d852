"""What export and replay write: files that PEFT's own classes open, and the same bytes each time."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
import transformers

import noback
from noback import Full, Head, Lora, Prefix, RunConfig, export, predict, train, tuned_run
from noback.adapters.lora import _peft

ADAPTERS = {"full": Full(), "lora": Lora(rank=2), "prefix": Prefix(tokens=2), "head": Head()}
WRITE_ALL = """
import sys
from pathlib import Path
from noback import export, tuned_run
for run in sorted(Path(sys.argv[1]).iterdir()):
    for how, snapshots in (("export", True), ("replay", False)):
        export(tuned_run(run, "final", snapshots=snapshots)[0], Path(sys.argv[2]) / f"{run.name}-{how}")
"""


@pytest.fixture
def configs(tiny_folder, tiny_causal_folder, data_folder):
    masked = RunConfig(model=str(tiny_folder), data=str(data_folder), steps=2, batch=2)
    causal = replace(masked, model=str(tiny_causal_folder), task="reviews-causal")
    found = {f"masked-{name}": replace(masked, adapter=adapter) for name, adapter in ADAPTERS.items()}
    return found | {
        f"causal-{name}": replace(causal, adapter=adapter) for name, adapter in ADAPTERS.items() if name != "head"
    }


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_export_and_replay_write_the_same_bytes_in_every_process_for_every_adapter(configs, tmp_path):
    for name, config in configs.items():
        train(config, tmp_path / "runs" / name)
    for seed in ("1", "2"):  # Python orders a set of texts by this seed
        subprocess.run(
            [sys.executable, "-c", WRITE_ALL, str(tmp_path / "runs"), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(noback.__file__).parents[1])},
            check=True,
        )
    for name in configs:
        first = files_in(tmp_path / "1" / f"{name}-export")
        for seed, how in (("1", "replay"), ("2", "export"), ("2", "replay")):
            assert files_in(tmp_path / seed / f"{name}-{how}") == first, (name, seed, how)


def test_pefts_class_for_causal_models_opens_an_exported_lora_and_answers_the_same(configs, tmp_path):
    train(configs["causal-lora"], tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final")
    export(run, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"
    model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    tokens = run.tokenizer("a warm film It was", return_tensors="pt")["input_ids"][:, :-1]  # without </s>
    with torch.inference_mode():
        logits = model(input_ids=tokens).logits[0, -1, run.task.word_ids]
    (chances,) = predict(run, ["a warm film"])
    torch.testing.assert_close(torch.tensor(list(chances.values())), logits.softmax(dim=0), atol=1e-5, rtol=1e-5)


def test_pefts_class_for_any_model_opens_an_exported_lora_of_a_masked_one(configs, tmp_path):
    train(configs["masked-lora"], tmp_path / "run")
    export(tuned_run(tmp_path / "run", "final")[0], tmp_path / "adapter")
    model = peft.AutoPeftModel.from_pretrained(tmp_path / "adapter")
    assert isinstance(model.base_model.model, transformers.RobertaForMaskedLM)


def test_an_adapter_that_was_the_start_keeps_the_task_type_it_names(configs, tmp_path, tiny_folder):
    base = transformers.AutoModelForMaskedLM.from_pretrained(tiny_folder)
    given = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="FEATURE_EXTRACTION")
    peft.get_peft_model(base, given).save_pretrained(tmp_path / "given")
    config = replace(configs["masked-lora"], adapter=Lora(start=str(tmp_path / "given")))
    train(config, tmp_path / "run")
    export(tuned_run(tmp_path / "run", "final")[0], tmp_path / "adapter")
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert stored["task_type"] == "FEATURE_EXTRACTION"
    assert stored["target_modules"] == sorted(stored["target_modules"])


def test_kernels_that_another_library_has_not_are_not_spoken_of(caplog):
    _peft()
    log = logging.getLogger("bitsandbytes.backends.cpu.ops")
    log.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "none")
    log.warning("something else")
    assert caplog.messages == ["something else"]
