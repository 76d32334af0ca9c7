from __future__ import annotations

import copy

import pytest
import torch
from small_msasr import ASR, DIARIZER

from sortk.models.canary import Canary
from sortk.models.msasr import Adapter, Adapters, MsAsr, MsAsrOptions

TOKENS = torch.tensor([[2, 5, 6], [2, 7, 3]])


def test_the_equation() -> None:
    torch.manual_seed(0)
    adapter, y = Adapter(4, 3), torch.randn(5, 4)
    torch.testing.assert_close(adapter(y), y)  # at first, nothing
    torch.nn.init.normal_(adapter.up.weight)
    normal = (y - y.mean(1, keepdim=True)) / (y.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    bottle = (normal @ adapter.down.weight.T + adapter.down.bias).clamp(min=0)
    torch.testing.assert_close(adapter(y), y + bottle @ adapter.up.weight.T)


def test_new_adapters_change_nothing_and_later_everything() -> None:
    torch.manual_seed(0)
    plain = Canary(ASR).eval()
    adapted = copy.deepcopy(plain)
    adapters = Adapters(adapted, 8)
    samples = 0.1 * torch.randn(2, 8000)
    torch.testing.assert_close(adapted(samples, None, TOKENS), plain(samples, None, TOKENS))
    assert adapted.state_dict().keys() == plain.state_dict().keys()
    for name, adapter in adapters.items():
        before = adapted(samples, None, TOKENS)
        torch.nn.init.normal_(adapter.up.weight)
        assert not torch.allclose(adapted(samples, None, TOKENS), before), name


def test_each_layer_of_encoder_and_decoder_has_its_own() -> None:
    names = set(Adapters(Canary(ASR), 8))
    encoder = {f"encoder-layers-0-{part}" for part in ("self_attn", "feed_forward2")}
    parts = ("self_attention", "cross_attention", "feed_forward")
    assert names == encoder | {f"decoder-layers-{n}-{part}" for n in range(2) for part in parts}


def test_the_cache_sees_adapted_tokens() -> None:
    torch.manual_seed(0)
    asr = Canary(ASR).eval()
    for adapter in Adapters(asr, 8).values():
        torch.nn.init.normal_(adapter.up.weight, std=0.3)
    states = torch.randn(2, 9, 32)
    with torch.inference_mode():
        steps = asr.decoder.start(states)
        logits = [steps(TOKENS[:, n : n + 1]) for n in range(3)]
        torch.testing.assert_close(torch.stack(logits, 1), asr.decoder(TOKENS, states), atol=1e-5, rtol=1e-5)


def test_training_adapters_leaves_all_other_weights_bit_identical() -> None:
    torch.manual_seed(0)
    model = MsAsr(MsAsrOptions(ASR, "frozen", 2, DIARIZER, adapters=8))
    assert model.frozen_parts == ("asr", "diarizer")
    for name in model.frozen_parts:
        model.get_submodule(name).requires_grad_(False).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-2, weight_decay=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(0.1 * torch.randn(2, 8000), None, TOKENS).square().mean().backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.startswith("adapters."), name


def test_a_bottleneck_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="the bottleneck of adapters must be 1 or more, got 0"):
        Adapters(Canary(ASR), 0)
