from __future__ import annotations

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sortk.models.eend import Eend, EendOptions, shuffle_frames, stack_context
from sortk.models.features import FeatureOptions
from sortk.models.frames import SpeakerOutput, count_frames
from sortk.models.transformer import TransformerOptions
from sortk.training.losses import diarization_loss

SMALL = TransformerOptions(d_model=16, n_layers=2, n_heads=4, d_inner=32, dropout=0.1)
SA = EendOptions(n_speakers=3, transformer=SMALL)
EDA = EendOptions(n_speakers=3, attractors=True, transformer=SMALL)
BOTH = pytest.mark.parametrize("options", [SA, EDA], ids=["EEND-SA", "EEND-EDA"])


def test_context_by_hand() -> None:
    mel = torch.arange(1.0, 18.0)[None, :, None]  # 17 frames 1 ... 17 of one bin: model frames around 1, 9 and 17
    expected = [[[0, 0, 1, 2, 3], [7, 8, 9, 10, 11], [15, 16, 17, 0, 0]]]
    assert stack_context(mel, 2).tolist() == expected


def test_shuffling_leaves_padding_last() -> None:
    frames = torch.arange(12.0).view(2, 6, 1)
    shuffled = shuffle_frames(frames, torch.tensor([6, 3]))
    assert sorted(shuffled[0].flatten().tolist()) == [0, 1, 2, 3, 4, 5]
    assert sorted(shuffled[1, :3].flatten().tolist()) == [6, 7, 8]
    assert sorted(shuffle_frames(frames, None)[1].flatten().tolist()) == [6, 7, 8, 9, 10, 11]


@BOTH
def test_a_padded_batch_equals_each_clip_alone(options: EendOptions) -> None:
    model, samples, lengths = Eend(options).eval(), torch.randn(3, 16000), [16000, 9000, 400]
    together = model(samples, torch.tensor(lengths))
    assert together.lengths.tolist() == [count_frames(n) for n in lengths]
    for row, n in enumerate(lengths):
        alone = model(samples[row : row + 1, :n])
        n_frames = alone.logits.shape[1]
        torch.testing.assert_close(together.logits[row, :n_frames], alone.logits[0], atol=1e-5, rtol=0)
        if options.attractors:
            torch.testing.assert_close(together.existence[row], alone.existence[0], atol=1e-5, rtol=0)


def test_it_takes_no_notice_of_the_order_of_frames() -> None:
    """The Transformer is permutation equivariant (Appendix F), so frames in another order have the same outputs."""
    model = Eend(EendOptions(context=0, features=FeatureOptions(normalize="none"), transformer=SMALL)).eval()
    x, permutation = torch.randn(1, 7, 16), torch.randperm(7)
    torch.testing.assert_close(model.transformer(x[:, permutation]), model.transformer(x)[:, permutation])


def test_only_speakers_that_exist_speak() -> None:
    existence = torch.tensor([[3.0, -1.0, 2.0, -5.0]])  # the second does not exist, nor then the third
    output = SpeakerOutput(torch.zeros(1, 2, 3), None, torch.zeros(1, 2, 8), existence)
    assert output.speaker_probs.tolist() == [[[0.5, 0.0, 0.0]] * 2]


@BOTH
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_same_loss_trains_it(options: EendOptions, precision: torch.dtype) -> None:
    model = Eend(options)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        output = model(torch.randn(2, 32000), torch.tensor([32000, 20000]))
        loss = diarization_loss(output, (torch.rand(output.logits.shape) < 0.3).float(), alpha=0.0)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    assert (loss.existence is not None) == options.attractors


@pytest.mark.usefixtures("fake_cuda")
def test_it_stays_on_the_device() -> None:
    with FakeTensorMode(), torch.device("cuda"):  # not EEND-EDA: an LSTM of cuDNN needs the device itself
        output = Eend(SA)(torch.randn(2, 32000), torch.full((2,), 20000))
    assert output.logits.device.type == "cuda"


@BOTH
def test_options_survive_json(options: EendOptions) -> None:
    assert EendOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    with pytest.raises(ValueError, match="not the options of an EEND model"):
        EendOptions.from_json({"layers": 3})
