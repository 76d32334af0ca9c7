"""EEND-VC, a row of Table 1: chunk-wise EEND, joined by clustering of speaker vectors (Kinoshita et al. 2021).

K. Kinoshita, M. Delcroix, N. Tawara: "Integrating end-to-end neural and clustering-based diarization: getting the best
of both worlds", ICASSP 2021; "Advances in integration ... for real conversational speech", Interspeech 2021. With WavLM
in place of log-mel features: S. Chen et al., "WavLM", 2022 ("WavLM-L+EEND-VC" in Table 1).

A recording is cut into chunks of up to 15 s (30 s in inference). In each chunk, with e_t = Encoder(X)_t,

    p_{k,t} = sigmoid(w_k . e_t + b_k)                                  k = 1 ... K, at most K speakers in a chunk
    z_{k,t} = W_k e_t,   z_k = sum_t p_{k,t} z_{k,t} / ||z_{k,t}||,   v_k = z_k / ||z_k||

Training minimises (1 - lambda) L_PIL + lambda L_vector, lambda = 0.03. L_PIL pairs the outputs of a chunk with its
speakers, and for each pair of an output k with a speaker s of the training data

    L_vector = -log softmax_s(-alpha ||v_k - u_s||^2)                   u_s / ||u_s|| and alpha are learned

The dictionary of the u_s is a part of the training, not of the model (`training.losses`). The authors add
a learned beta to the distance; it cancels in the softmax, so it is left out here.

Inference leaves out outputs that are silent (mean probability up to 0.05) and clusters the vectors of all chunks:
agglomerative, average linkage of Euclidean distances, joined up to a distance of 1, and never two of one chunk. As many
clusters, as many speakers. Postprocessing then reads the posteriors as those of any other diarizer.

Sizes, thresholds, lambda and the form of the loss were checked against the authors' code (CALLHOME recipe: 6 layers of
256, 8 heads, 23 mel bins, vectors of 256). Different here: frames of 80 ms instead of 100, K = 4 instead of 3 because
a training example has up to 4 speakers, and the last chunk of a recording is shorter (the authors' overlaps the one
before). How WavLM's frames become those of EEND was not checked: here they are averaged by fours. Table 1's 317M are
those of WavLM Large; with the 6 layers on top, this model has 324M.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sortk.models.blocks import Blocks, cut_blocks, join_blocks, paste_blocks, stack_clips
from sortk.models.eend import TINY, EendEncoder, narrow, stack_context
from sortk.models.features import FeatureOptions
from sortk.models.frames import MEL_PER_FRAME, SpeakerOutput, count_frames, valid_frames
from sortk.models.options import check_sizes, options_from_json
from sortk.models.transformer import TransformerOptions
from sortk.models.wavlm import FRAME_SAMPLES, WavlmFrontEnd, WavlmOptions

SAME_SPEAKER = 1.0  # distance of two vectors of length 1 up to which two clusters are one speaker
SILENT = 0.05  # mean probability up to which an output stands for nobody
CHUNKS_AT_ONCE = 16  # that WavLM processes together in inference: its attention takes a lot of memory


@dataclass(frozen=True)
class EendVcOptions:
    """Everything that an EEND-VC is built from; the defaults are of the published model."""

    n_speakers: int = 4  # of a training example, and of a chunk, at most
    chunk: int = 188  # frames of 80 ms in training: 15 s
    inference_chunk: int = 375  # 30 s
    vector_size: int = 256
    context: int = 7  # mel frames to the left and right that a frame sees
    features: FeatureOptions = field(default_factory=lambda: FeatureOptions(n_mels=23))
    wavlm: WavlmOptions | None = None  # in place of log-mel features
    transformer: TransformerOptions = field(
        default_factory=lambda: TransformerOptions(d_model=256, n_layers=6, n_heads=8, d_inner=2048, dropout=0.1)
    )

    def __post_init__(self) -> None:
        check_sizes(self, "n_speakers", "chunk", "inference_chunk", "vector_size")
        if self.context < 0:
            raise ValueError(f"context must be 0 or more, got {self.context}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> EendVcOptions:
        """Return the inverse of `to_json`; a field that is left out has its default."""
        return options_from_json(cls, fields, "an EEND-VC")


_TINY = EendVcOptions(chunk=50, inference_chunk=50, vector_size=64, transformer=TINY)
_TINY_WAVLM = WavlmOptions(d_model=32, n_layers=2, n_heads=4, d_inner=64, channels=32)
SIZES = {
    ("eend-vc", "base"): EendVcOptions(),
    ("eend-vc", "compact"): EendVcOptions(transformer=narrow(160, 6, 8)),
    ("wavlm-eend-vc", "base"): EendVcOptions(wavlm=WavlmOptions()),
    ("eend-vc", "tiny"): _TINY,
    ("wavlm-eend-vc", "tiny"): EendVcOptions(**{**vars(_TINY), "wavlm": _TINY_WAVLM}),
}


class EendVc(EendEncoder):
    """EEND-VC, on log-mel features or on WavLM."""

    options: EendVcOptions

    def __init__(self, options: EendVcOptions) -> None:
        super().__init__(options)
        self.options = options
        d_model = options.transformer.d_model
        self.front_end = WavlmFrontEnd(options.wavlm) if options.wavlm is not None else None
        if options.wavlm is not None:  # the log-mel features are then not used
            self.linear_in = nn.Linear(options.wavlm.d_model, d_model)
        self.speakers = nn.Linear(d_model, options.n_speakers)
        self.vectors = nn.Linear(d_model, options.n_speakers * options.vector_size)

    def forward(self, samples: Tensor, lengths: Tensor | None = None) -> SpeakerOutput:
        """(batch, samples) at 16 kHz, (batch,) samples of each clip or None if nothing is padded."""
        batch, n_frames = len(samples), count_frames(samples.shape[1])
        frames_of = None if lengths is None else count_frames(lengths)
        chunks, embeddings, kept = self.diarize_chunks(samples, lengths)
        embeddings = paste_blocks(embeddings, kept, batch, n_frames)
        if self.training:
            logits = paste_blocks(chunks.logits, kept, batch, n_frames)
            return SpeakerOutput(logits, frames_of, embeddings, for_loss=chunks)
        joined = self.join_chunks(chunks, batch, n_frames)
        return SpeakerOutput(stack_clips(joined, self.options.n_speakers), frames_of, embeddings)

    def embed(self, samples: Tensor, lengths: Tensor | None = None) -> Tensor:
        encoded, kept = self.diarize_chunks(samples, lengths)[1:]
        return paste_blocks(encoded, kept, len(samples), count_frames(samples.shape[1]))

    def diarize_chunks(self, samples: Tensor, lengths: Tensor | None) -> tuple[Blocks, Tensor, Tensor]:
        """(batch, samples), (batch,) -> the chunks, their embeddings (chunks, size, d), and which of all they are."""
        n_frames = count_frames(samples.shape[1])
        size = min(self.options.inference_chunk, n_frames)
        if self.training:  # chunks of equal length, up to 15 s: nothing is computed for padding
            size = -(-n_frames // -(-n_frames // self.options.chunk))
        if self.front_end is None:
            mel, mel_lengths = self.features(samples, lengths)
            if mel_lengths is not None:
                mel_lengths = (mel_lengths + MEL_PER_FRAME - 1) // MEL_PER_FRAME
            cut = cut_blocks(stack_context(mel, self.context), mel_lengths, size)
            frames = cut.frames
        else:
            samples = functional.pad(samples, (0, max(n_frames * FRAME_SAMPLES - samples.shape[1], 0)))
            in_frames = samples[:, : n_frames * FRAME_SAMPLES].reshape(-1, n_frames, FRAME_SAMPLES)
            cut = cut_blocks(in_frames, None if lengths is None else count_frames(lengths), size)
            frames = self._run_wavlm(cut.frames, cut.lengths)
        encoded = self.transformer(self.norm_in(self.linear_in(frames)), cut.lengths)
        logits = self.speakers(encoded)
        vectors = self.vectors(encoded).unflatten(2, (self.options.n_speakers, -1))
        valid = valid_frames(cut.lengths, frames.shape[1])
        assert valid is not None
        weights = logits.sigmoid() * valid[:, :, None]
        summed = torch.einsum("ctk,ctkd->ckd", weights, functional.normalize(vectors, dim=3))
        chunks = Blocks(cut.clip, cut.first, cut.lengths, logits, functional.normalize(summed, dim=2))
        return chunks, encoded, cut.kept

    def _run_wavlm(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """(chunks, size, samples of a frame), (chunks,) -> (chunks, size, d of WavLM), 0 on padding.

        WavLM has no mask, so chunks of equal length are processed together and nothing is padded.
        """
        assert self.front_end is not None
        found: Tensor | None = None
        for length in sorted(set(lengths.tolist())):
            of_length = (lengths == length).nonzero()[:, 0]
            for rows in of_length.split(len(of_length) if self.training else CHUNKS_AT_ONCE):
                encoded = self.front_end(frames[rows, :length].flatten(1))
                if found is None:
                    found = encoded.new_zeros(*frames.shape[:2], encoded.shape[2])
                found = found.index_put((rows,), functional.pad(encoded, (0, 0, 0, frames.shape[1] - length)))
        assert found is not None
        return found

    def join_chunks(self, chunks: Blocks, n_clips: int, n_frames: int) -> list[Tensor]:
        """Return the logits of each clip, (frames, speakers), by clustering; as many speakers as there are clusters."""
        valid = valid_frames(chunks.lengths, chunks.logits.shape[1])
        assert valid is not None
        activity = (chunks.logits.sigmoid() * valid[:, :, None]).sum(dim=1) / chunks.lengths[:, None]
        speaks = activity > SILENT
        vectors = chunks.vectors[speaks].float()
        return join_blocks(chunks, speaks, -torch.cdist(vectors, vectors), -SAME_SPEAKER, n_clips, n_frames)

    def quantized_parts(self) -> Sequence[nn.Module]:
        return (self.transformer.layers,)
