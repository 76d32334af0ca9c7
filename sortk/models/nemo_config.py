"""What a NeMo config means in our options. Every key that could change a model's numbers is understood or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from sortk.models.canary import CanaryOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import WINDOW_SAMPLES, FeatureOptions
from sortk.models.frames import HOP_SAMPLES, MEL_PER_FRAME, SAMPLE_RATE
from sortk.models.multitalker import MultitalkerOptions
from sortk.models.nemotron import NemotronOptions
from sortk.models.options import MAX_SIZE
from sortk.models.parakeet import ParakeetOptions
from sortk.models.rnnt import TransducerOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions

MAX_ROPE_BASE = 1e9  # language models have up to 1e7


class Section:
    """A table of the config. Its reader says which values are supported, and at the end that no other key may be there.

    A key that is left out has the default of NeMo.
    """

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        table = config.get(name)
        if not isinstance(table, dict):
            raise ValueError(f"no section {name!r} in the model's config")
        self.name, self._table = name, table
        self._known = {"_target_"}
        self._target = str(table.get("_target_", ""))

    def check_class(self, name: str) -> None:
        """Raise ValueError unless the section describes this class of NeMo."""
        if self._target.rpartition(".")[2] != name:
            raise ValueError(f"{self.name}._target_ is {self._target!r}; sortk supports {name} only")

    def get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        return self._table.get(key, default)

    def check(self, key: str, default: Any, *supported: Any) -> None:
        """Raise ValueError unless the value is one of these."""
        value = self.get(key, default)
        if value not in supported:
            only = " or ".join(map(repr, supported))
            raise ValueError(f"{self.name}.{key} is {value!r}; sortk supports {only} only")

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(key, default)
        if type(value) is not int or not least <= value <= MAX_SIZE:
            raise ValueError(f"{self.name}.{key} is {value!r}, not a whole number from {least} to {MAX_SIZE}")
        return value

    def number(self, key: str, default: float, most: float = MAX_SIZE) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 <= value <= most:
            raise ValueError(f"{self.name}.{key} is {value!r}, not a number from 0 to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise ValueError(f"{self.name}.{key} is {value!r}, neither true nor false")
        return value

    def ignore(self, *keys: str) -> None:
        """Accept keys that do not change what a trained model computes."""
        self._known.update(keys)

    def end(self) -> None:
        """Raise ValueError if a key is left that no reader knows."""
        for key, value in self._table.items():
            if key not in self._known:
                raise ValueError(f"{self.name}.{key} is {value!r}; sortk does not know this setting")


def _feature_options(config: Mapping[str, Any], gain: bool) -> FeatureOptions:
    section = Section(config, "preprocessor")
    section.check_class("AudioToMelSpectrogramPreprocessor")
    section.check("sample_rate", SAMPLE_RATE, SAMPLE_RATE)
    for key, n_samples, default in (("window_size", WINDOW_SAMPLES, 0.02), ("window_stride", HOP_SAMPLES, 0.01)):
        in_samples = section.get(f"n_{key}", None) is not None
        section.check(f"n_{key}", None, None, n_samples)
        section.check(key, default, *([None] if in_samples else [n_samples / SAMPLE_RATE]))
    section.check("window", "hann", "hann")
    section.check("n_fft", None, None, 512)
    section.check("preemph", 0.97, 0.97)
    section.check("lowfreq", 0, 0)
    section.check("highfreq", None, None, SAMPLE_RATE / 2)
    section.check("log", True, True)
    section.check("log_zero_guard_type", "add", "add")
    section.check("log_zero_guard_value", 2**-24, 2**-24)
    section.check("mag_power", 2.0, 2.0)
    section.check("mel_norm", "slaney", "slaney")
    section.check("normalize", "per_feature", "per_feature", "NA", None)
    section.check("frame_splicing", 1, 1)
    section.check("pad_value", 0, 0)
    for key in ("exact_pad", "stft_exact_pad", "stft_conv", "use_torchaudio"):
        section.check(key, False, False)
    section.ignore("pad_to", "rng", "nb_augmentation_prob", "nb_max_freq")
    options = FeatureOptions(
        n_mels=section.count("features", 64),
        gain=gain,
        normalize="per_feature" if section.get("normalize", "per_feature") == "per_feature" else "none",
        dither=section.number("dither", 1e-5),
    )
    section.end()
    return options


def _encoder_options(config: Mapping[str, Any], n_mels: int, may_be_causal: bool = False) -> FastConformerOptions:
    """Return the options of a FastConformer; the default context is the first of `_contexts`."""
    section = Section(config, "encoder")
    section.check_class("ConformerEncoder")
    d_model, conv_kernel = section.count("d_model"), section.count("conv_kernel_size", 31)
    section.check("feat_in", None, n_mels)
    section.check("feat_out", -1, -1, d_model)
    section.check("subsampling", "striding", "dw_striding")
    section.check("subsampling_factor", 4, MEL_PER_FRAME)
    section.check("causal_downsampling", False, False, *([True] if may_be_causal else []))
    section.check("reduction", None, None)
    section.check("self_attention_model", "rel_pos", "rel_pos")
    section.flag("untie_biases", True)  # every layer has its own in a checkpoint, shared or not
    contexts = [(-1, -1)]
    if may_be_causal and section.get("att_context_style", "regular") == "chunked_limited":
        contexts = _contexts(config)
        section.ignore("att_context_size")
    else:
        section.check("att_context_size", None, None, [-1, -1], [[-1, -1]])
        section.check("att_context_style", "regular", "regular")
    section.check("att_chunk_context_size", None, None)
    section.check("conv_norm_type", "batch_norm", "batch_norm", *(["layer_norm"] if may_be_causal else []))
    causal = ["causal", [conv_kernel - 1, 0]] if may_be_causal else []
    section.check("conv_context_size", None, None, [conv_kernel // 2, conv_kernel // 2], *causal)
    section.check("conv_context_style", "regular", "regular")
    section.check("conv_dual_mode", False, False)
    section.flag("use_bias", True)  # see `_name_absent`
    section.ignore(
        "att_context_probs", "dropout_pre_encoder", "dropout_emb", "dropout_att",
        "stochastic_depth_drop_prob", "stochastic_depth_mode", "stochastic_depth_start_layer",
    )  # fmt: skip  # of training
    section.ignore("global_tokens", "global_tokens_spacing", "global_attn_separate", "rope_base", "rotary_fraction")
    section.ignore("pos_emb_max_len", "reduction_position", "reduction_factor", "subsampling_conv_chunking_factor")
    section.ignore("use_pytorch_sdpa", "use_pytorch_sdpa_backends", "sync_max_audio_length", "use_triton")
    as_wide = section.get("subsampling_conv_channels", -1) == -1
    options = FastConformerOptions(
        d_model=d_model,
        n_layers=section.count("n_layers"),
        n_heads=section.count("n_heads", 4),
        ff_expansion=section.count("ff_expansion_factor", 4),
        conv_kernel=conv_kernel,
        subsampling_channels=d_model if as_wide else section.count("subsampling_conv_channels"),
        scale_input=section.flag("xscaling", True),
        dropout=section.number("dropout", 0.1),
        causal_subsampling=section.flag("causal_downsampling", False),
        causal_convolution=section.get("conv_context_size", None) in causal,
        conv_norm=section.get("conv_norm_type", "batch_norm"),
        left_context=contexts[0][0],
        right_context=contexts[0][1],
    )
    section.end()
    return options


def _contexts(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the attention contexts of a streaming encoder, [left, right] or a list of such, as pairs."""
    given = config["encoder"].get("att_context_size")
    pairs = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(size) is int for size in pair)
        if not is_pair or pair[0] < -1 or pair[1] < 0 or max(pair) > MAX_SIZE:
            raise ValueError(f"encoder.att_context_size is {given!r}; sortk supports [left, right] frames, or a list")
    return [(left, right) for left, right in pairs]


def _transformer_options(config: Mapping[str, Any], name: str) -> TransformerOptions:
    section = Section(config, name)
    section.check_class("TransformerEncoder")
    section.check("mask_future", False, False)
    section.check("hidden_act", "relu", "relu")
    pre_norm = section.flag("pre_ln", False)
    section.check("pre_ln_final_layer_norm", True, True, *([] if pre_norm else [False]))
    section.ignore("attn_score_dropout", "attn_layer_dropout")
    options = TransformerOptions(
        d_model=section.count("hidden_size"),
        n_layers=section.count("num_layers"),
        n_heads=section.count("num_attention_heads", 1),
        d_inner=section.count("inner_size"),
        dropout=section.number("ffn_dropout", 0.0),
        pre_norm=pre_norm,
    )
    section.end()
    return options


# What StreamingOptions calls NVIDIA's settings, and their defaults.
STREAMING_COUNTS = {
    "chunk_len": ("chunk", 188),
    "chunk_left_context": ("left_context", 1),
    "chunk_right_context": ("right_context", 1),
    "fifo_len": ("fifo", 0),
    "spkcache_update_period": ("update_period", 188),
    "spkcache_len": ("cache", 188),
    "spkcache_sil_frames_per_spk": ("silence_per_speaker", 3),
}
STREAMING_NUMBERS = {
    "sil_threshold": ("silence_threshold", 0.2),
    "pred_score_threshold": ("prob_floor", 0.25),
    "scores_boost_latest": ("recent_bonus", 0.05),
    "strong_boost_rate": ("strong_boost", 0.75),
    "weak_boost_rate": ("weak_boost", 1.5),
    "min_pos_scores_rate": ("min_alone", 0.5),
}


CACHE_COUNTS = ("spkcache_len", "spkcache_sil_frames_per_spk")


def _cache_settings(section: Section, **defaults: int) -> dict[str, Any]:
    """Return how the speaker cache is filled, as StreamingOptions calls it."""
    settings: dict[str, Any] = {}
    for theirs in CACHE_COUNTS:
        ours, default = STREAMING_COUNTS[theirs]
        settings[ours] = section.count(theirs, defaults.get(ours, default), least=0)
    return settings | {ours: section.number(theirs, default) for theirs, (ours, default) in STREAMING_NUMBERS.items()}


def convert_sortformer(config: Mapping[str, Any]) -> dict[str, Any]:
    whole = Section({"model": dict(config)}, "model")
    streaming = whole.flag("streaming_mode", False)
    whole.check("eps", 1e-3, 1e-3)  # of the gain
    whole.check("high_resolution", False, False)
    whole.check("output_subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    features = _feature_options(config, gain=not streaming)
    encoder = _encoder_options(config, features.n_mels)
    transformer = _transformer_options(config, "transformer_encoder")
    section = Section(config, "sortformer_modules")
    section.check_class("SortformerModules")
    section.check("fc_d_model", 512, encoder.d_model)
    section.check("tf_d_model", 192, transformer.d_model)
    section.check("subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    section.check("upsample_factor", 1, 1)
    section.check("use_learnable_sil_emb", False, False)
    section.ignore("causal_attn_rate", "causal_attn_rc", "scores_add_rnd", "max_index", "async_desync_updates")
    settings = _cache_settings(section) | {
        ours: section.count(theirs, default, least=0)
        for theirs, (ours, default) in STREAMING_COUNTS.items()
        if theirs not in CACHE_COUNTS
    }
    n_speakers, dropout = section.count("num_spks", 4), section.number("dropout_rate", 0.5)
    section.end()
    options = SortformerOptions(n_speakers, dropout, features, encoder, transformer)
    converted = {"model": "sortformer", "options": options.to_json()}
    return converted | ({"streaming": settings} if streaming else {})


def convert_nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a Nemotron-3-Diarization. Presets replace the chunk sizes in the file, those of training."""
    whole = Section({"model": dict(config)}, "model")
    whole.check("streaming_mode", False, True)
    whole.check("high_resolution", False, True)
    whole.check("output_subsampling_factor", MEL_PER_FRAME, 1)
    whole.check("transformer_encoder", None, None)
    features = _feature_options(config, gain=False)
    encoder = Section(config, "encoder")
    encoder.check_class("TransformerEncoder")
    d_model = encoder.count("d_model")
    encoder.check("feat_in", None, features.n_mels)
    encoder.check("feat_out", -1, -1, d_model)
    encoder.check("subsampling", None, "feature_stacking")
    encoder.check("subsampling_factor", None, MEL_PER_FRAME)
    encoder.check("self_attention_model", None, "rope")
    encoder.check("attn_mode", "full", "full")
    encoder.check("pre_block_norm", True, True)
    encoder.check("qkv_bias", False, False)
    encoder.check("qk_norm", False, False)
    encoder.check("causal_tail_len", 0, 0)
    encoder.ignore("pos_emb_max_len", "drop_path_rate", "sync_max_audio_length")
    section = Section(config, "sortformer_modules")
    section.check_class("SortformerModules")
    section.check("fc_d_model", 512, d_model)
    section.check("use_learnable_sil_emb", False, True)
    section.check("subsampling_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    section.check("upsample_factor", MEL_PER_FRAME, MEL_PER_FRAME)
    cache = _cache_settings(section, silence_per_speaker=1)
    published = NemotronOptions()
    options = NemotronOptions(
        n_speakers=section.count("num_spks", 4),
        d_model=d_model,
        n_layers=encoder.count("n_layers"),
        n_heads=encoder.count("n_heads"),
        d_inner=round(encoder.number("ff_expansion", 4.0) * d_model),
        d_head=section.count("tf_d_model", 192),
        rope_base=encoder.number("rope_base", 10000.0, MAX_ROPE_BASE),
        dropout=encoder.number("drop_rate", 0.1),
        features=features,
        offline=replace(published.offline, **cache),
        streaming=replace(published.streaming, **cache),
    )
    section.ignore("dropout_rate", *(name for name in STREAMING_COUNTS if name not in CACHE_COUNTS))
    section.ignore("causal_attn_rate", "causal_attn_rc", "scores_add_rnd", "max_index", "async_desync_updates")
    section.end()
    encoder.end()
    return {"model": "nemotron", "options": options.to_json()}


def convert_encoder(config: Mapping[str, Any]) -> dict[str, Any]:
    whole = Section({"model": dict(config)}, "model")
    whole.check("mask_position", "pre_conv", "pre_conv")  # after the convolutions, there are others
    features = _feature_options(config, gain=False)
    encoder = _encoder_options(config, features.n_mels)
    return {"model": "encoder", "options": {"features": asdict(features), "encoder": asdict(encoder)}}


def convert_canary(config: Mapping[str, Any]) -> dict[str, Any]:
    features = _feature_options(config, gain=False)
    encoder = _encoder_options(config, features.n_mels)
    transformer = None
    if config.get("transf_encoder") is not None and Section(config, "transf_encoder").count("num_layers", least=0):
        transformer = _transformer_options(config, "transf_encoder")
    section = Section(config, "transf_decoder")
    section.check_class("get_nemo_transformer")
    section.check("model_name", None, None)
    section.check("pretrained", False, False)
    section.check("encoder", None, None, False)
    section.check("pre_ln_final_layer_norm", True, True)
    sizes = section.get("config_dict", None)
    section.end()
    decoder, max_tokens = _decoder_options({"transf_decoder.config_dict": sizes})
    sizes_of_both = Section(config, "model_defaults")
    sizes_of_both.check("asr_enc_hidden", None, encoder.d_model)
    sizes_of_both.check("lm_dec_hidden", None, decoder.d_model)
    head = Section(config, "head")
    head.check_class("TokenClassifier")
    head.check("num_layers", 1, 1)
    head.check("log_softmax", True, True)
    head.check("hidden_size", None, decoder.d_model)
    head.ignore("activation", "dropout", "use_transformer_init")
    n_tokens = head.count("num_classes")
    head.end()
    options = CanaryOptions(n_tokens, max_tokens, features, encoder, transformer, decoder)
    return {"model": "canary", "options": options.to_json()}


def _decoder_options(config: Mapping[str, Any]) -> tuple[TransformerOptions, int]:
    """Return sizes of the decoder, and the most tokens that it counts."""
    section = Section(config, "transf_decoder.config_dict")
    section.check("num_token_types", 2, 0)
    section.check("learn_positional_encodings", False, False)
    section.check("hidden_act", "relu", "relu")
    section.check("pre_ln", False, True)
    section.ignore("embedding_dropout", "attn_score_dropout", "attn_layer_dropout")
    section.ignore("vocab_size")  # NVIDIA's code takes that of the tokenizers, and the head has it
    options = TransformerOptions(
        d_model=section.count("hidden_size"),
        n_layers=section.count("num_layers"),
        n_heads=section.count("num_attention_heads"),
        d_inner=section.count("inner_size"),
        dropout=section.number("ffn_dropout", 0.0),
        pre_norm=True,
    )
    max_tokens = section.count("max_sequence_length", 512)
    section.end()
    return options, max_tokens


def convert_parakeet(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a Parakeet with a transducer, with CTC, or with both (hybrid)."""
    features = _feature_options(config, gain=False)
    encoder = _encoder_options(config, features.n_mels, may_be_causal=True)
    transducer, n_tokens = None, 0
    if config.get("joint") is not None:
        transducer, n_tokens = _transducer_options(config, encoder.d_model)
    head: Any = None
    if transducer is None:
        head = Section(config, "decoder")
    elif config.get("aux_ctc") is not None:
        Section(config, "aux_ctc")
        head = Section({"aux_ctc.decoder": config["aux_ctc"].get("decoder")}, "aux_ctc.decoder")
    if head is not None:
        n_ctc = _ctc_tokens(head, encoder.d_model)
        if transducer is not None and n_ctc != n_tokens:
            raise ValueError(f"{head.name}.num_classes is {n_ctc}, but joint.num_classes is {n_tokens}")
        n_tokens = n_ctc
    options = ParakeetOptions(n_tokens, features, encoder, transducer, ctc=head is not None)
    return {"model": "parakeet", "options": options.to_json()}


def convert_multitalker(config: Mapping[str, Any]) -> dict[str, Any]:
    whole = Section({"model": dict(config)}, "model")
    whole.check("spk_kernel_type", None, "ff")
    layers, background = whole.get("spk_kernel_layers", [0]), whole.flag("add_bg_spk_kernel", True)
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise ValueError(f"spk_kernel_layers is {layers!r}, not a list of layers")
    features = _feature_options(config, gain=False)
    encoder = _encoder_options(config, features.n_mels, may_be_causal=True)
    if encoder.right_context < 0 or not encoder.causal_subsampling or not encoder.causal_convolution:
        raise ValueError(
            "a multitalker Parakeet must be causal: causal_downsampling, conv_context_size, chunked_limited"
        )
    transducer, n_tokens = _transducer_options(config, encoder.d_model)
    options = MultitalkerOptions(
        n_tokens, features, encoder, transducer, tuple(_contexts(config)), tuple(layers), background
    )
    return {"model": "multitalker", "options": options.to_json()}


def _transducer_options(config: Mapping[str, Any], d_encoder: int) -> tuple[TransducerOptions, int]:
    """Return sizes of prediction and joint network, and the number of tokens without blank."""
    section = Section(config, "decoder")
    section.check_class("RNNTDecoder")
    section.check("normalization_mode", None, None)
    section.check("blank_as_pad", True, True)
    section.ignore("random_state_sampling", "vocab_size", "prednet")
    section.end()
    prediction = Section({"decoder.prednet": config["decoder"].get("prednet")}, "decoder.prednet")
    prediction.check("rnn_hidden_size", -1, -1)
    prediction.check("norm", None, None)
    prediction.check("proj_size", 0, 0)
    prediction.ignore("t_max", "dropout", "norm_first_rnn", "weights_init_scale", "hidden_hidden_bias_scale")
    prediction.ignore("forget_gate_bias", "rnn_hidden_size")
    d_prediction, n_layers = prediction.count("pred_hidden"), prediction.count("pred_rnn_layers", 1)
    prediction.end()
    section = Section(config, "joint")
    section.check_class("RNNTJoint")
    section.ignore("log_softmax", "preserve_memory", "fuse_loss_wer", "fused_batch_size", "experimental_fuse_loss_wer")
    section.ignore("vocabulary", "jointnet", "masking_prob")
    n_tokens, n_extra = section.count("num_classes"), section.count("num_extra_outputs", 0, least=0)
    section.end()
    joint = Section({"joint.jointnet": config["joint"].get("jointnet")}, "joint.jointnet")
    joint.check("activation", "relu", "relu")
    joint.check("encoder_hidden", d_encoder, d_encoder)
    joint.check("pred_hidden", d_prediction, d_prediction)
    joint.ignore("dropout")
    d_joint = joint.count("joint_hidden")
    joint.end()
    durations = _find_durations(config) if n_extra else []
    if len(durations) != n_extra:
        raise ValueError(f"joint.num_extra_outputs is {n_extra}, but there are {len(durations)} durations")
    greedy = _inner(config, "decoding", "greedy")
    max_symbols = greedy.get("max_symbols", greedy.get("max_symbols_per_step"))
    if max_symbols is not None and (type(max_symbols) is not int or not 1 <= max_symbols <= MAX_SIZE):
        raise ValueError(f"decoding.greedy.max_symbols is {max_symbols!r}, not a whole number from 1 to {MAX_SIZE}")
    return TransducerOptions(d_prediction, n_layers, d_joint, tuple(durations), max_symbols or 10), n_tokens


def _find_durations(config: Mapping[str, Any]) -> list[int]:
    """Return the durations of a TDT, which a config has in up to three places."""
    places = (
        _inner(config, "decoding").get("durations"),
        _inner(config, "model_defaults").get("tdt_durations"),
        _inner(config, "loss", "tdt_kwargs").get("durations"),
    )
    found: Any = next((durations for durations in places if durations), [])
    if not isinstance(found, list) or not all(type(value) is int and 0 <= value <= MAX_SIZE for value in found):
        raise ValueError(f"the durations of the TDT are {found!r}, not a list of numbers of frames")
    return found


def _inner(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a table inside tables; an empty one if there is none."""
    table: Any = config
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _ctc_tokens(head: Section, d_encoder: int) -> int:
    """Return the number of tokens of a CTC head, without blank."""
    head.check_class("ConvASRDecoder")
    head.check("feat_in", None, None, d_encoder)
    head.check("add_blank", True, True)
    head.ignore("vocabulary", "init_mode")
    n_tokens = head.count("num_classes")
    head.end()
    return n_tokens


def find_tokenizers(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokenizers of a config: one for everything, or one for special tokens and one for each language."""
    section = Section(config, "tokenizer")
    section.check("type", None, "agg", "bpe")
    if section.get("type", None) == "bpe":
        return {"tokenizer.model": _model_file(section)}
    languages = section.get("langs", None)
    if not isinstance(languages, dict) or not languages:
        raise ValueError(f"tokenizer.langs is {languages!r}, not a table of tokenizers")
    files = {}
    for name in languages:
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ValueError(f"tokenizer.langs has {name!r}, which is not the name of a language")
        inner = Section({f"tokenizer.langs.{name}": languages[name]}, f"tokenizer.langs.{name}")
        inner.check("type", None, "bpe")
        files[f"tokenizer.{name}.model"] = _model_file(inner)
    return files


def _model_file(section: Section) -> str:
    path = section.get("model_path", None)
    if not isinstance(path, str) or not path.startswith("nemo:"):
        raise ValueError(f"{section.name}.model_path is {path!r}, not a file of the archive")
    return path.removeprefix("nemo:")
