from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from nemo_names import rename
from torch import Tensor, nn

from sortk.models.transformer import TransformerEncoder, TransformerOptions

SMALL = TransformerOptions(d_model=16, n_layers=2, n_heads=4, d_inner=32)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_it_is_permutation_equivariant(pre_norm: bool) -> None:
    """f(PX) = P f(X), Appendix F."""
    encoder = TransformerEncoder(TransformerOptions(16, 2, 4, 32, pre_norm=pre_norm)).eval()
    x, permutation = torch.randn(2, 9, 16), torch.randperm(9)
    torch.testing.assert_close(encoder(x[:, permutation]), encoder(x)[:, permutation], atol=1e-5, rtol=0)


def test_with_positions_the_order_matters() -> None:
    encoder = TransformerEncoder(TransformerOptions(16, 2, 4, 32, positions=True)).eval()
    same = encoder(torch.zeros(1, 9, 16))[0]  # frames that differ in nothing but their place
    assert torch.cdist(same, same).fill_diagonal_(1.0).min() > 1e-2


def test_a_padded_batch_equals_each_clip_alone() -> None:
    encoder, x = TransformerEncoder(SMALL).eval(), torch.randn(3, 9, 16)
    together = encoder(x, torch.tensor([9, 4, 1]))
    for row, n in enumerate((9, 4, 1)):
        torch.testing.assert_close(together[row, :n], encoder(x[row : row + 1, :n])[0], atol=1e-5, rtol=0)


def test_a_layer_follows_its_equations() -> None:
    encoder = TransformerEncoder(TransformerOptions(d_model=8, n_layers=1, n_heads=1, d_inner=12)).eval()
    layer, x = encoder.layers[0], torch.randn(1, 5, 8)
    attention, feed_forward = layer.attention, layer.feed_forward
    weights = (attention.query(x) @ attention.key(x).transpose(1, 2) / 8**0.5).softmax(dim=2)
    y = layer.norm_attention(x + attention.out(weights @ attention.value(x)))
    expected = layer.norm_feed_forward(y + feed_forward.linear2(feed_forward.linear1(y).relu()))
    torch.testing.assert_close(encoder(x), expected)


def test_the_pre_norm_encoder_is_that_of_nvidias_canary(
    golden: Callable[[str], dict[str, Tensor]], nemo_weights: Callable[[str], dict[str, Tensor]]
) -> None:
    weights, expected = nemo_weights("tiny_canary"), golden("tiny_canary_a_3p3")
    options = TransformerOptions(d_model=32, n_layers=1, n_heads=4, d_inner=128, pre_norm=True)
    prefix = "transf_encoder."
    renamed = {
        rename(name.removeprefix(prefix)).replace("final_layer_norm", "norm_out"): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }
    encoder, projection = TransformerEncoder(options).eval(), nn.Linear(64, 32)
    encoder.load_state_dict(renamed)
    projection.load_state_dict({name: weights[f"encoder_decoder_proj.{name}"] for name in ("weight", "bias")})
    states = encoder(projection(expected["encoder_out"]))
    torch.testing.assert_close(states, expected["enc_states"], atol=1e-4, rtol=0)
