"""Parakeet: NVIDIA's numbers, and greedy decoding compared with the rule written out for one clip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nemo2
import pytest
import torch
from nemo_models import changed, parakeet_config, parakeet_tensors
from torch import Tensor

from sortk.inference.load import load_asr
from sortk.models.fastconformer import Context, FastConformer, FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.nemo import convert
from sortk.models.parakeet import Parakeet, ParakeetOptions, collapse
from sortk.models.rnnt import TimedTokens, Transducer, TransducerOptions

SMALL = ParakeetOptions(
    n_tokens=11,
    features=FeatureOptions(n_mels=40, gain=False, dither=1e-5),
    encoder=FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=8),
    transducer=TransducerOptions(d_prediction=6, n_layers=2, d_joint=10, durations=(0, 1, 2, 4), max_symbols=3),
    ctc=True,
)
RNNT = TransducerOptions(d_prediction=6, n_layers=1, d_joint=10, max_symbols=3)
CAUSAL = FastConformerOptions(
    d_model=16, n_layers=2, n_heads=2, subsampling_channels=4, conv_kernel=5, causal_subsampling=True,
    causal_convolution=True, conv_norm="layer_norm", left_context=4, right_context=1,
)  # fmt: skip


def load(name: str) -> Parakeet:
    model = load_asr(nemo2.find(f"{name}.nemo")).model
    assert isinstance(model, Parakeet)
    return model


def check_tokens(tokens: TimedTokens, expected: dict[str, Any]) -> None:
    assert tokens.ids == expected["ids"]
    assert tokens.frames == expected["frames"]
    assert tokens.durations == expected.get("durations", [])


# --- NVIDIA's numbers


def test_features_encoder_and_scores_of_the_committed_model() -> None:
    model, golden = load("tiny_tdt_ctc"), nemo2.arrays("tiny_tdt_ctc", complete=False)
    assert model.transducer is not None and model.ctc is not None
    with torch.inference_mode():
        mel, _ = model.features(nemo2.clip("a_3p3")[None])
        torch.testing.assert_close(mel[0].T, golden["a_3p3_mel"][:, : mel.shape[1]], atol=1e-4, rtol=0)
        frames, _ = model.encode(nemo2.clip("a_3p3")[None])
        torch.testing.assert_close(frames[0], golden["a_3p3_encoder_out"], atol=1e-4, rtol=0)
        torch.testing.assert_close(
            model.ctc(frames).log_softmax(dim=2)[0], golden["a_3p3_ctc_log_probs"], atol=1e-3, rtol=0
        )
        joint, start = model.transducer.joint, model.transducer.start(1)
        scores = joint(joint.enc(frames), start.predicted[:, None])
        torch.testing.assert_close(scores[0], golden["a_3p3_joint_start"], atol=1e-4, rtol=0)
        torch.testing.assert_close(start.hidden[-1, 0], golden["pred_start"], atol=1e-5, rtol=0)


def test_tokens_of_the_committed_model() -> None:
    model, golden = load("tiny_tdt_ctc"), nemo2.results("tiny_tdt_ctc", complete=False)["results"]
    with torch.inference_mode():
        frames, _ = model.encode(nemo2.clip("a_3p3")[None])
        check_tokens(model.decode(frames)[0], golden["a_3p3"])
        check_tokens(model.decode(frames, head="ctc")[0], golden["ctc_a_3p3"])


@pytest.mark.parametrize("name", ["tiny_tdt", "tiny_rnnt", "tiny_tdt_ctc"])
def test_all_clips_alone_and_as_a_batch(name: str) -> None:
    golden, arrays = nemo2.results(name)["results"], nemo2.arrays(name)
    model, clips = load(name), [nemo2.clip(clip) for clip in nemo2.CLIPS]
    with torch.inference_mode():
        for clip, samples in zip(nemo2.CLIPS, clips, strict=True):
            frames, _ = model.encode(samples[None])
            n_frames = int(arrays[f"{clip}_encoder_len"])
            assert frames.shape[1] == n_frames
            torch.testing.assert_close(frames[0], arrays[f"{clip}_encoder_out"][:n_frames], atol=1e-4, rtol=0)
            check_tokens(model.decode(frames)[0], golden[clip])
            if model.ctc is not None:
                # NVIDIA's `frames` of CTC are all that are not blank; the end of a token is its first one.
                tokens = model.decode(frames, head="ctc")[0]
                assert tokens.ids == golden[f"ctc_{clip}"]["ids"]
                assert set(tokens.frames) <= set(golden[f"ctc_{clip}"]["frames"])
        padded = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
        frames, lengths = model.encode(padded, torch.tensor([len(samples) for samples in clips]))
        # Of a batch, NVIDIA reports durations that are not those by which it advances: those of single clips are.
        for clip, tokens in zip(nemo2.CLIPS, model.decode(frames, lengths), strict=True):
            check_tokens(tokens, golden[clip])


# --- greedy decoding


def decode_by_the_rule(transducer: Transducer, frames: Tensor) -> list[tuple[int, int, int]]:
    """(token, frame, duration) of one clip, (frames, d_encoder): one step at a time."""
    options, blank = transducer.options, transducer.blank
    g, state = transducer.prediction.lstm(transducer.prediction.embed(torch.tensor([[blank]])))
    t, n_here, found = 0, 0, []
    while t < len(frames):
        scores = transducer.joint(transducer.joint.enc(frames[t]), transducer.joint.pred(g[0, 0]))
        token = int(scores[: blank + 1].argmax())
        duration = options.durations[int(scores[blank + 1 :].argmax())] if options.durations else 0
        if token == blank:
            t, n_here = t + max(duration, 1), 0
            continue
        found.append((token, t, duration))
        g, state = transducer.prediction.lstm(transducer.prediction.embed(torch.tensor([[token]])), state)
        n_here += 1
        if duration == 0 and n_here == options.max_symbols:
            duration = 1
        t, n_here = t + duration, n_here if duration == 0 else 0
    return found


@pytest.mark.parametrize("options", [SMALL.transducer, RNNT, replace(RNNT, max_symbols=1)])
@pytest.mark.parametrize("blank_bias", [-1.0, 0.5, 1.5, 9.0])
@torch.no_grad()
def test_a_batch_is_decoded_as_each_clip_by_the_rule(options: TransducerOptions, blank_bias: float) -> None:
    torch.manual_seed(3)
    transducer = Transducer(8, 11, options).eval()
    for parameter in transducer.parameters():
        parameter.normal_(std=0.7)
    transducer.joint.out.bias[11] += blank_bias
    frames, lengths = torch.randn(4, 45, 8), torch.tensor([45, 1, 30, 17])
    expected = [decode_by_the_rule(transducer, own[:n]) for own, n in zip(frames, lengths.tolist(), strict=True)]
    for row, tokens in zip(expected, transducer.decode(frames, lengths).tokens, strict=True):
        durations = tokens.durations or [0] * len(tokens.ids)
        assert list(zip(tokens.ids, tokens.frames, durations, strict=True)) == row
        assert len(tokens.probs) == len(row) and all(0 < prob <= 1 for prob in tokens.probs)
    assert any(expected) or blank_bias > 5
    # In steps of any size the same.
    state = transducer.start(1)
    for step in frames[:1].split([7, 1, 2, 20, 15], dim=1):
        state = transducer.decode(step, None, state)
    assert list(zip(state.tokens[0].ids, state.tokens[0].frames, strict=True)) == [row[:2] for row in expected[0]]


def test_ctc_writes_a_token_where_its_run_begins() -> None:
    best = torch.tensor([[2, 0, 0, 2, 0, 1, 1, 2], [1, 1, 2, 2, 2, 2, 0, 0]])
    log_probs = torch.nn.functional.one_hot(best, 3).float().mul(20).log_softmax(dim=2)
    first, second = collapse(log_probs, torch.tensor([8, 6]))
    assert (first.ids, first.frames) == ([0, 0, 1], [1, 4, 5])
    assert (second.ids, second.frames) == ([1], [0])


# --- any size


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        replace(SMALL, transducer=RNNT, ctc=False),
        replace(SMALL, transducer=None),
        replace(SMALL, encoder=CAUSAL, features=replace(SMALL.features, normalize="none")),
        replace(SMALL, n_tokens=300, encoder=replace(SMALL.encoder, n_layers=3, ff_expansion=2, scale_input=False)),
    ],
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_any_size_comes_out_as_it_went_in(options: ParakeetOptions, use_bias: bool) -> None:
    torch.manual_seed(0)
    model = Parakeet(options).eval()
    converted = convert(parakeet_config(options, use_bias), parakeet_tensors(model, use_bias))
    assert ParakeetOptions.from_json(converted.config["options"]) == options
    for name, tensor in model.state_dict().items():
        absent = not use_bias and name.startswith("encoder.layers.") and "norm" not in name and name.endswith("bias")
        expected = torch.zeros_like(tensor) if absent else tensor
        assert torch.equal(converted.weights[name], expected), name


def test_a_joint_network_without_dropout_has_its_last_layer_one_place_earlier() -> None:
    model = Parakeet(SMALL)
    tensors = {name.replace("joint_net.2", "joint_net.1"): tensor for name, tensor in parakeet_tensors(model).items()}
    converted = convert(parakeet_config(SMALL), tensors)
    assert model.transducer is not None
    assert torch.equal(converted.weights["transducer.joint.out.weight"], model.transducer.joint.out.weight)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("joint.num_extra_outputs", 3, "joint.num_extra_outputs is 3, but there are 4 durations"),
        ("joint.jointnet.activation", "tanh", "joint.jointnet.activation is 'tanh'; sortk supports 'relu' only"),
        ("joint.num_classes", 12, "aux_ctc.decoder.num_classes is 11, but joint.num_classes is 12"),
        ("joint.num_classes", 10**9, "joint.num_classes is 1000000000, not a whole number from 1 to 65536"),
        ("decoder.prednet.pred_rnn_layers", 40000, "n_layers is 40000, but there are only"),
        ("decoder.prednet.pred_hidden", -1, "decoder.prednet.pred_hidden is -1"),
        ("decoder.prednet", None, "no section 'decoder.prednet'"),
        ("encoder.att_context_style", "other", "encoder.att_context_style is 'other'"),
        ("decoding.durations", [0, 1, 2, -4], "the durations of the TDT are"),
        ("decoding.greedy.max_symbols", "many", "decoding.greedy.max_symbols is 'many'"),
        ("encoder.d_model", 32, "encoder.* is 32|jointnet.encoder_hidden is 16"),
    ],
)
def test_what_a_damaged_config_is_told(key: str, value: Any, expected: str) -> None:
    config, tensors = parakeet_config(SMALL), parakeet_tensors(Parakeet(SMALL))
    with pytest.raises(ValueError, match=expected):
        convert(changed(config, key, value), tensors)


@pytest.mark.parametrize("missing", ["joint.enc.weight", "ctc_decoder.decoder_layers.0.bias"])
def test_a_missing_tensor_is_named(missing: str) -> None:
    tensors = parakeet_tensors(Parakeet(SMALL))
    del tensors[missing]
    with pytest.raises(ValueError, match=f"tensor '{missing}' is missing"):
        convert(parakeet_config(SMALL), tensors)


# --- the causal encoder


@torch.inference_mode()
def test_a_causal_encoder_sees_its_chunk_and_the_context_before() -> None:
    torch.manual_seed(1)
    encoder = FastConformer(CAUSAL, 16).eval()
    mel = torch.randn(1, 160, 16)
    frames, lengths = encoder(mel, torch.tensor([160]))
    assert frames.shape[1] == 21 and lengths is not None and lengths.tolist() == [21]  # (160 + 14) // 8
    # Frame t sees mel frames up to 8 t, and chunks of two frames: 10 and 11 see up to 88.
    later = mel.clone()
    later[:, 89:] += 1.0
    other = encoder(later)[0]
    torch.testing.assert_close(frames[:, :12], other[:, :12])
    assert not torch.allclose(frames[:, 12], other[:, 12])
    # One layer sees 4 frames before the chunk; two layers 8, and the convolutions 4 more each; a frame 14 mel frames.
    earlier = mel.clone()
    earlier[:, 0] += 1.0  # frames 0 and 1
    other = encoder(earlier)[0]
    assert not torch.allclose(frames[:, 9], other[:, 9])
    torch.testing.assert_close(frames[:, 20], other[:, 20])
    # Padding changes nothing.
    padded = torch.cat([mel, torch.randn(1, 40, 16)], dim=1)
    torch.testing.assert_close(encoder(padded, torch.tensor([160]))[0][:, :21], frames, atol=1e-5, rtol=1e-5)


def test_the_mask_of_a_context() -> None:
    frames = torch.arange(6)
    seen = (Context(2, 1).mask(frames, frames, torch.float32) == 0).int().tolist()
    assert seen == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
    ]


@torch.inference_mode()
@pytest.mark.parametrize("causal", [True, False])
def test_long_recordings_are_subsampled_in_blocks(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    encoder = FastConformer(replace(CAUSAL, causal_subsampling=causal), 16).eval()
    mel, lengths = torch.randn(3, 203, 16), torch.tensor([203, 128, 90])
    expected = encoder.pre_encode(mel, lengths)
    monkeypatch.setattr("sortk.models.fastconformer.SUBSAMPLED_AT_A_TIME", 8)
    frames, n_frames = encoder.subsample(mel, lengths)
    assert n_frames is not None and n_frames.tolist() == expected[1].tolist()
    for own, other, n in zip(frames, expected[0], n_frames.tolist(), strict=True):
        torch.testing.assert_close(own[:n], other[:n])
