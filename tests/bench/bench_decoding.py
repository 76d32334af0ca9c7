"""What decoding and supervision cost, on one core.

cache        tokens with kept keys and values, against computing the whole prefix again for every token
constraint   the same with the rule that only SST may be written
diarizer     transcribing a batch with Sortformer's supervision, against without it
kernels      a training step with kernels and posteriors, beyond the diarizer's own forward pass
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from sortk.formats.sst import GRAMMARS
from sortk.formats.tokens import train_tokenizer
from sortk.models.canary import SIZES as ASR_SIZES
from sortk.models.canary import CanaryOptions, Decoder
from sortk.models.decoding import Constraint, DecodingOptions, SstConstraint, search
from sortk.models.frames import count_frames
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.sortformer import SIZES as DIARIZER_SIZES
from sortk.models.transformer import TransformerOptions
from sortk.training.runtime import fastest_seconds

N_TOKENS, SECONDS, BATCH = 100, 10, 4
MIN_RATIO, MAX_KERNEL_SHARE = 5, 0.02
NEVER = 1  # a token that is never the likeliest: texts go on to their limit


@torch.inference_mode()
def recompute(decoder: Decoder, states: Tensor, n_tokens: int) -> Tensor:
    """Greedy decoding that keeps nothing."""
    tokens = torch.zeros(len(states), 1, dtype=torch.long)
    for _ in range(n_tokens):
        logits = decoder(tokens, states)[:, -1]
        tokens = torch.cat([tokens, logits.argmax(dim=1, keepdim=True)], dim=1)
    return tokens[:, 1:]


def decode(
    decoder: Decoder, states: Tensor, n_tokens: int, beam: int = 1, constraint: Constraint | None = None
) -> list[tuple[int, ...]]:
    """The same with kept keys and values, to the last token."""
    options = DecodingOptions(beam=beam, max_repeats=10**6)
    steps = decoder.start(states, beam=beam, max_tokens=n_tokens + 1)
    found = search(steps, [0], NEVER, [n_tokens] * len(states), options, constraint)
    return [hypothesis.tokens for hypothesis in found]


def bench_cache(n_clips: int) -> float:
    """NVIDIA's decoder of 28 ms a token: 4 layers of 512."""
    torch.manual_seed(0)
    options = TransformerOptions(512, n_layers=4, d_inner=2048, pre_norm=True)
    decoder = Decoder(options, n_tokens=1024, max_tokens=256).eval()
    decoder.bias.data[NEVER] = -1e9
    states = torch.randn(n_clips, count_frames(SECONDS * 16000), 512)
    same = [tuple(row) for row in recompute(decoder, states, N_TOKENS).tolist()]
    assert decode(decoder, states, N_TOKENS) == same
    slow = fastest_seconds(lambda: recompute(decoder, states, N_TOKENS), 2)
    fast = fastest_seconds(lambda: decode(decoder, states, N_TOKENS))
    step, rate = 1000 * fast / N_TOKENS, n_clips * N_TOKENS / fast
    print(f"{n_clips} clips, {N_TOKENS} tokens, 4 layers of 512: {step:.2f} ms a step, {rate:.0f} tokens/s;", end=" ")
    print(f"computing the prefix again takes {slow / fast:.1f} x as long")
    return slow / fast


def bench_constraint() -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["one two three four five six seven eight nine zero"] * 9, 64, 4)
    asr = replace(ASR_SIZES["tiny"], n_tokens=tokenizer.n_tokens)
    decoder = Decoder(asr.decoder, asr.n_tokens, 256).eval()
    states = torch.randn(BATCH, count_frames(SECONDS * 16000), asr.decoder.d_model)
    constraint = SstConstraint(tokenizer, asr.n_tokens, GRAMMARS["word"])
    free = fastest_seconds(lambda: decode(decoder, states, N_TOKENS))
    bound = fastest_seconds(lambda: decode(decoder, states, N_TOKENS, constraint=constraint))
    print(f"nothing but SST, tiny decoder, batch of {BATCH}: {bound / free:.2f} x")


def build(supervision: str, asr: CanaryOptions, diarizer_size: str) -> MsAsr:
    torch.manual_seed(0)
    diarizer = DIARIZER_SIZES[diarizer_size] if supervision != "none" else None
    model = MsAsr(MsAsrOptions(asr, supervision, 4, diarizer))  # type: ignore[arg-type]
    model.asr.decoder.bias.data[NEVER] = -1e9
    return model.eval()


@torch.inference_mode()
def transcribe(model: MsAsr, samples: Tensor) -> None:
    states, _ = model.encode(samples)
    decode(model.asr.decoder, states, N_TOKENS)


def bench_diarizer(name: str, asr: CanaryOptions, diarizer_size: str) -> None:
    samples = 0.1 * torch.randn(BATCH, SECONDS * 16000)
    without, with_diarizer = (build(supervision, asr, diarizer_size) for supervision in ("none", "frozen"))
    alone = fastest_seconds(lambda: transcribe(without, samples), 2)
    both = fastest_seconds(lambda: transcribe(with_diarizer, samples), 2)
    rate = both / (BATCH * SECONDS)
    print(f"{name}: with the diarizer {both / alone:.4f} x the time of the ASR alone, real-time factor {rate:.3f}")
    print("paper, 170M + 123M on a GPU with batches of 100: 1.0078 x")


def train_step(model: MsAsr, samples: Tensor, tokens: Tensor, probs: Tensor | None) -> None:
    model.zero_grad(set_to_none=True)
    logits = model(samples, None, tokens, probs)
    functional.cross_entropy(logits.transpose(1, 2), tokens).backward()


def bench_kernels() -> None:
    """Measured by themselves: beside a whole step they are smaller than its spread."""
    samples = 0.1 * torch.randn(BATCH, SECONDS * 16000)
    tokens = torch.randint(2, 200, (BATCH, 60))
    n_frames, asr = count_frames(SECONDS * 16000), ASR_SIZES["tiny"]
    probs = torch.rand(BATCH, n_frames, 4)
    states = torch.randn(BATCH, n_frames, asr.encoder.d_model, requires_grad=True)
    model = build("truth", asr, "tiny").train()
    step = fastest_seconds(lambda: train_step(model, samples, tokens, probs), 5)
    kernels = fastest_seconds(lambda: [mark_speakers(model, states, probs) for _ in range(100)], 5) / 100
    share = kernels / (step - kernels)
    print(f"training step, tiny: kernels and posteriors add {share:.2%} (at most {MAX_KERNEL_SHARE:.0%} is wanted)")


def mark_speakers(model: MsAsr, states: Tensor, probs: Tensor) -> None:
    assert model.kernels is not None
    model.kernels(states, probs).backward(states.detach())


def main() -> None:
    torch.set_num_threads(1)
    bench_cache(1)
    ratio = bench_cache(BATCH)
    bench_constraint()
    bench_kernels()
    bench_diarizer("tiny + tiny", ASR_SIZES["tiny"], "tiny")
    bench_diarizer("180m-flash + 123M", ASR_SIZES["180m-flash"], "base")
    # One clip alone waits for memory, not for arithmetic; `transcribe` decodes pieces in batches.
    assert ratio >= MIN_RATIO, f"less than {MIN_RATIO} x faster than computing the prefix again"


if __name__ == "__main__":
    main()
