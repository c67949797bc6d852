"""Points 9 and 4: models that cannot be tuned are refused in one sentence, with what to use instead, and no folder."""

import pytest
import transformers

SIZES = {"d_model": 16, "vocab_size": 16384}
KINDS = {
    "BartForConditionalGeneration": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            **SIZES, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
        )
    ),
    "T5ForConditionalGeneration": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(**SIZES, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    ),
}  # fmt: skip


@pytest.fixture
def refused(noback, tokenizer, data_folder, tmp_path):
    """Trains, or compares, a model that must be refused in one sentence before a folder is made; returns that."""

    def call(model, *flags, command="train"):
        folder, out = tmp_path / "model", tmp_path / "run"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        code, said, err = noback(command, "--model", folder, "--data", data_folder, "--steps", 1, "--out", out, *flags)
        notes = [line for line in err.splitlines() if not line.startswith("noback: ")]
        assert (code, said) == (2, "")
        assert not out.exists()
        assert not any("REPORT" in line or "MISSING" in line for line in notes)
        assert err.splitlines()[-1].startswith("noback: ")
        return err.splitlines()[-1]

    return call


@pytest.mark.parametrize("flags", [(), ("--adapter", "head"), ("--task", "reviews-causal")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_to_sequence_model_is_refused_with_what_to_use(kind, flags, refused):
    sentence = refused(KINDS[kind](), *flags)
    assert f"is a sequence-to-sequence model ({kind}), which noback does not tune; use a masked model" in sentence


def test_a_comparison_of_a_refused_model_leaves_no_folder(refused):
    assert "is a sequence-to-sequence model" in refused(KINDS["T5ForConditionalGeneration"](), command="compare")


def test_an_encoder_without_an_lm_head_is_pointed_to_the_classification_head(refused):
    config = transformers.RobertaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=16384
    )
    sentence = refused(transformers.RobertaModel(config))
    assert "lacks weights of its masked-LM head" in sentence
    assert "use --adapter head, which puts a fresh classification head on its body" in sentence


def test_a_model_of_no_known_kind_is_refused_in_a_short_sentence(refused):
    config = transformers.T5Config(**SIZES, d_kv=8, d_ff=24, num_layers=1, num_heads=2, is_encoder_decoder=False)
    sentence = refused(transformers.T5EncoderModel(config))
    assert "transformers has no AutoModelForMaskedLM for a model with T5Config; use another" in sentence
    assert "AlbertConfig" not in sentence
