"""What greedy TDT decoding costs beside the encoder: parakeet-tdt_ctc-110m's sizes, random weights, one core.

The scores are fixed so that every pass writes a token and advances by two frames: 6 tokens a second, about twice
as many as English speech has.
"""

from __future__ import annotations

import torch

from sortk.models.parakeet import Parakeet, ParakeetOptions
from sortk.models.rnnt import TransducerOptions
from sortk.training.runtime import fastest_seconds

SECONDS, BATCH = 20, 4
MAX_SHARE = 0.15


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    durations = (0, 1, 2, 3, 4)
    options = ParakeetOptions(transducer=TransducerOptions(durations=durations))
    model = Parakeet(options).eval()
    model.encoder.freeze_for_inference()
    assert model.transducer is not None
    out = model.transducer.joint.out
    out.weight.mul_(1e-3)
    out.bias.zero_()
    out.bias[options.n_tokens] = -9.0
    out.bias[options.n_tokens + 1 + durations.index(2)] = 9.0
    samples = torch.randn(BATCH, SECONDS * 16000) * 0.1
    frames, _ = model.encode(samples)
    encoder = fastest_seconds(lambda: model.encode(samples), 2)
    decoding = fastest_seconds(lambda: model.decode(frames))
    n_tokens = sum(len(tokens.ids) for tokens in model.decode(frames))
    share = decoding / encoder
    spent = f"encoder {encoder:.2f} s, decoding {decoding:.2f} s ({share:.1%})"
    print(f"TDT, {BATCH} x {SECONDS} s, {n_tokens} tokens: {spent}")
    if share > MAX_SHARE:
        raise SystemExit(f"decoding takes {share:.1%} of the encoder's time, more than {MAX_SHARE:.0%}")


if __name__ == "__main__":
    main()
