from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from nemo_names import ENCODER, rename_canary
from torch import Tensor
from torch.nn import functional

from sortk.models.canary import (
    SIZES,
    Canary,
    CanaryOptions,
    DecoderLayer,
    TokenCache,
    extend_vocabulary,
    mask_padding,
)
from sortk.models.decoding import DecodingOptions, search
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.transformer import TransformerOptions

NVIDIA = CanaryOptions(
    n_tokens=152,
    max_tokens=256,
    features=FeatureOptions(gain=False),
    encoder=replace(ENCODER, scale_input=False),
    transformer=TransformerOptions(d_model=32, n_layers=1, n_heads=4, d_inner=128, pre_norm=True),
    decoder=TransformerOptions(d_model=32, n_layers=2, n_heads=4, d_inner=128, pre_norm=True),
)
OWN = CanaryOptions(
    n_tokens=20,
    max_tokens=24,
    encoder=FastConformerOptions(d_model=32, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False),
    decoder=TransformerOptions(d_model=16, n_layers=2, n_heads=2, d_inner=32, dropout=0.0, pre_norm=True),
)
CLIPS = ("a_3p3", "b_10", "c_31p7")
END = 3


@pytest.fixture(scope="module")
def nvidia_canary(nemo_weights: Callable[[str], dict[str, Tensor]]) -> Canary:
    """That the names map one to one is part of the test."""
    renamed = {rename_canary(name): tensor for name, tensor in nemo_weights("tiny_canary").items()}
    renamed.pop(None)
    model = Canary(NVIDIA)
    model.load_state_dict(renamed, strict=True)
    return model.eval()


@pytest.fixture
def own_canary() -> Canary:
    torch.manual_seed(0)
    return Canary(OWN).eval()


# ---------------------------------------------------------------------------------------------------------------------
# NVIDIA's numbers


@pytest.mark.parametrize("name", CLIPS)
def test_states_and_log_probabilities_are_nvidias(
    nvidia_canary: Canary,
    clip: Callable[[str], Tensor],
    golden: Callable[[str], dict[str, Tensor]],
    name: str,
) -> None:
    expected = golden(f"tiny_canary_{name}")
    with torch.inference_mode():
        frames, lengths = nvidia_canary.encode(clip(name))
        states = nvidia_canary.project(frames, lengths)
        logits = nvidia_canary.decoder(expected["prefix"], states, lengths)
    n_frames = int(expected["encoder_len"])
    assert frames.shape[1] == n_frames
    torch.testing.assert_close(frames, expected["encoder_out"][:, :n_frames], atol=1e-4, rtol=0)
    torch.testing.assert_close(states, expected["enc_states"][:, :n_frames], atol=1e-4, rtol=0)
    torch.testing.assert_close(logits.log_softmax(dim=2), expected["log_probs"], atol=1e-4, rtol=0)


def test_a_padded_batch_is_nvidias_too(
    nvidia_canary: Canary, clip: Callable[[str], Tensor], golden: Callable[[str], dict[str, Tensor]]
) -> None:
    expected = golden("tiny_canary_batch3")
    clips = [clip(name)[0] for name in CLIPS]
    samples = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
    with torch.inference_mode():
        frames, lengths = nvidia_canary.encode(samples, torch.tensor([len(one) for one in clips]))
        logits = nvidia_canary.decoder(expected["prefix"], nvidia_canary.project(frames, lengths), lengths)
    assert lengths is not None and lengths.tolist() == expected["encoder_len"].tolist()
    for row, n_tokens in enumerate(expected["prefix_len"].tolist()):
        log_probs = logits[row, :n_tokens].log_softmax(dim=1)
        torch.testing.assert_close(log_probs, expected["log_probs"][row, :n_tokens], atol=1e-3, rtol=0)


def test_greedy_tokens_are_nvidias(
    nvidia_canary: Canary, clip: Callable[[str], Tensor], nemo_file: Callable[[str], Path]
) -> None:
    expected = json.loads(nemo_file("tiny_canary_decode.json").read_text())
    for name, tokens in zip(CLIPS, expected["beam1_ids"], strict=True):
        frames, lengths = nvidia_canary.encode(clip(name))
        steps = nvidia_canary.decoder.start(nvidia_canary.project(frames, lengths), lengths)
        (found,) = search(steps, expected["prompt_ids"], END, [100], DecodingOptions())
        assert found.ended and list(found.tokens) == tokens


# ---------------------------------------------------------------------------------------------------------------------
# Token by token


@pytest.mark.parametrize("split", [(6,), (1,) * 6, (3, 1, 2)])
def test_token_by_token_is_the_same_as_at_once(own_canary: Canary, split: tuple[int, ...]) -> None:
    states, lengths = torch.randn(3, 9, 16), torch.tensor([9, 4, 7])
    tokens = torch.randint(20, (3, 6))
    with torch.inference_mode():
        whole = own_canary.decoder(tokens, states, lengths)
        steps = own_canary.decoder.start(states, lengths, max_tokens=6)
        at = 0
        for n_new in split:
            logits = steps(tokens[:, at : at + n_new])
            at += n_new
            torch.testing.assert_close(logits, whole[:, at - 1], atol=1e-5, rtol=1e-5)


def test_rows_of_a_beam_share_the_states_and_can_change_places(own_canary: Canary) -> None:
    states, lengths = torch.randn(2, 9, 16), torch.tensor([9, 4])
    tokens = torch.randint(20, (4, 3))
    order = torch.tensor([1, 1, 2, 2])  # of each clip, one row is dropped
    with torch.inference_mode():
        steps = own_canary.decoder.start(states, lengths, beam=2, max_tokens=8)
        steps(tokens)
        steps.select(order)
        last = torch.randint(20, (4, 1))
        logits = steps(last)
        texts = torch.cat([tokens[order], last], dim=1)
        whole = own_canary.decoder(texts, states.repeat_interleave(2, dim=0), lengths.repeat_interleave(2))
    torch.testing.assert_close(logits, whole[:, -1], atol=1e-5, rtol=1e-5)


def test_a_cache_has_room_for_what_it_was_made_for() -> None:
    cache = TokenCache(4)
    first = torch.randn(2, 1, 3, 5)
    key, _ = cache.append((first, first))
    assert torch.equal(key, first)
    more = torch.randn(2, 1, 1, 5)
    key, value = cache.append((more, 2 * more))
    assert key.shape == (2, 1, 4, 5) and torch.equal(key[:, :, 3:], more) and torch.equal(value[:, :, 3:], 2 * more)


def test_no_token_sees_those_after_it(own_canary: Canary) -> None:
    states, tokens = torch.randn(1, 9, 16), torch.randint(20, (1, 6))
    changed = tokens.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 20
    with torch.inference_mode():
        before, after = own_canary.decoder(tokens, states), own_canary.decoder(changed, states)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_a_clip_does_not_depend_on_its_batch(own_canary: Canary) -> None:
    short, long = 0.1 * torch.randn(1, 8000), 0.1 * torch.randn(1, 16000)
    batch = torch.cat([torch.nn.functional.pad(short, (0, 8000)), long])
    tokens = torch.randint(20, (2, 5))
    with torch.inference_mode():
        together = own_canary(batch, torch.tensor([8000, 16000]), tokens)
        alone = own_canary(short, None, tokens[:1])
    torch.testing.assert_close(together[:1], alone, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Options and weights


def test_options_survive_json() -> None:
    for options in (NVIDIA, OWN, *SIZES.values()):
        assert CanaryOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    with pytest.raises(ValueError, match="not the options of a Canary: .*n_beams"):
        CanaryOptions.from_json({"n_beams": 3})


@pytest.mark.parametrize(("size", "millions"), [("180m-flash", (170, 200)), ("1b", (900, 1100))])
def test_sizes_have_about_the_parameters_of_their_name(size: str, millions: tuple[int, int]) -> None:
    with torch.device("meta"):
        n_parameters = sum(weight.numel() for weight in Canary(SIZES[size]).parameters())
    assert millions[0] < n_parameters / 1e6 < millions[1]


def test_a_text_longer_than_the_decoder_counts_is_an_error(own_canary: Canary) -> None:
    with pytest.raises(ValueError, match="a text of 25 tokens is longer than the 24 that the decoder can count"):
        own_canary.decoder(torch.zeros(1, 25, dtype=torch.long), torch.randn(1, 9, 16))


def test_bad_options_are_errors() -> None:
    with pytest.raises(ValueError, match="the decoder must have pre_norm"):
        CanaryOptions(decoder=TransformerOptions())
    with pytest.raises(ValueError, match="d_model 192 of the transformer must be that of the decoder, 1024"):
        CanaryOptions(transformer=TransformerOptions())
    with pytest.raises(ValueError, match="n_tokens must be from 1 to 65536, got 0"):
        CanaryOptions(n_tokens=0)


def test_new_tokens_leave_the_old_ones_as_they_are(own_canary: Canary) -> None:
    wider = Canary(replace(OWN, n_tokens=24)).eval()
    wider.load_state_dict(extend_vocabulary(own_canary.state_dict(), 24))
    states, tokens = torch.randn(1, 9, 16), torch.randint(20, (1, 6))
    with torch.inference_mode():
        logits = wider.decoder(tokens, states)
        torch.testing.assert_close(logits[..., :20], own_canary.decoder(tokens, states))
    new = wider.decoder.embedding.weight[20:]
    assert torch.pdist(new).min() > 0.1  # apart from each other
    again = extend_vocabulary(own_canary.state_dict(), 24)["decoder.embedding.weight"]
    assert torch.equal(again, wider.decoder.embedding.weight)
    with pytest.raises(ValueError, match="has 20 tokens, which cannot be extended to 19"):
        extend_vocabulary(own_canary.state_dict(), 19)


def test_weights_survive_a_file(own_canary: Canary) -> None:
    file = io.BytesIO()
    torch.save(own_canary.state_dict(), file)
    file.seek(0)
    again = Canary(OWN)
    again.load_state_dict(torch.load(file, weights_only=True), strict=True)


@pytest.mark.parametrize(("size", "millions"), [("136m", 135.6), ("33m", 33.0)])
def test_sizes_of_table_3(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = Canary(SIZES[size])
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.005)


def test_alignments_are_the_attention_of_the_first_head(own_canary: Canary) -> None:
    """With the unit matrix for values, what torch's attention returns are its weights."""
    tokens, states = torch.randint(20, (2, 5)), torch.randn(2, 9, 16)
    lengths = torch.tensor([9, 6])
    alignments: list[Tensor] = []
    with torch.no_grad():
        logits = own_canary.decoder(tokens, states, lengths, alignments)
        torch.testing.assert_close(logits, own_canary.decoder(tokens, states, lengths))
        layer = cast(DecoderLayer, own_canary.decoder.layers[0])
        attention, y = layer.cross_attention, torch.randn(2, 5, 16)
        key, value = attention.project(states)
        mask = mask_padding(states, lengths)
        query = attention.query(y).unflatten(2, (attention.n_heads, -1)).transpose(1, 2)
        weights = functional.scaled_dot_product_attention(query, key, torch.eye(9).expand(2, key.shape[1], 9, 9), mask)
        torch.testing.assert_close(attention.align(y, (key, value), mask).exp(), weights[:, 0])
    assert [alignment.shape for alignment in alignments] == [(2, 5, 9)] * len(own_canary.decoder.layers)
    assert all((alignment[1, :, 6:].exp() < 1e-30).all() for alignment in alignments), "padding is not attended to"
