"""Which of NVIDIA's tensors is which of ours."""

from __future__ import annotations

from collections.abc import Mapping

EMBEDDING, OUTPUT = "transf_decoder._embedding", "log_softmax.mlp.layer0"
TRANSFORMER_NAMES = {
    "norm_attention": "layer_norm_1",
    "attention.query": "first_sub_layer.query_net",
    "attention.key": "first_sub_layer.key_net",
    "attention.value": "first_sub_layer.value_net",
    "attention.out": "first_sub_layer.out_projection",
    "norm_feed_forward": "layer_norm_2",
    "feed_forward.linear1": "second_sub_layer.dense_in",
    "feed_forward.linear2": "second_sub_layer.dense_out",
    "norm_out": "final_layer_norm",
}
DECODER_NAMES = {
    "norm_self": "layer_norm_1",
    "self_attention.query": "first_sub_layer.query_net",
    "self_attention.key": "first_sub_layer.key_net",
    "self_attention.value": "first_sub_layer.value_net",
    "self_attention.out": "first_sub_layer.out_projection",
    "norm_cross": "layer_norm_2",
    "cross_attention.query": "second_sub_layer.query_net",
    "cross_attention.key": "second_sub_layer.key_net",
    "cross_attention.value": "second_sub_layer.value_net",
    "cross_attention.out": "second_sub_layer.out_projection",
    "norm_feed_forward": "layer_norm_3",
    "feed_forward.linear1": "third_sub_layer.dense_in",
    "feed_forward.linear2": "third_sub_layer.dense_out",
}
Names = Mapping[str, tuple[str, Mapping[str, str]]]
"""How our names begin -> how NVIDIA's do, and what the modules behind that are called. Others, the encoder's, agree."""

SORTFORMER_NAMES: Names = {
    "encoder_proj.": ("sortformer_modules.encoder_proj.", {}),
    "hidden.": ("sortformer_modules.first_hidden_to_hidden.", {}),
    "speakers.": ("sortformer_modules.single_hidden_to_spks.", {}),
    "transformer.": ("transformer_encoder.", TRANSFORMER_NAMES),
}
NEMOTRON_NAMES: Names = {
    "stacking.": ("encoder.pre_encode.proj.", {}),
    "norm_in.": ("encoder.embed_norm.", {}),
    "norm_out.": ("encoder.final_norm.", {}),
    "layers.": (
        "encoder.layers.",
        {
            "norm_attention": "norm1",
            "query_key_value": "attn.w_qkv",
            "out": "attn.out_proj",
            "norm_feed_forward": "norm2",
            "linear1": "ffn.net.0",
            "linear2": "ffn.net.3",
        },
    ),
    "encoder_proj.": ("sortformer_modules.encoder_proj.", {}),
    "upsampling.conv.": ("sortformer_modules.subpixel_upsample.", {}),
    "hidden.": ("sortformer_modules.first_hidden_to_hidden.", {}),
    "speakers.": ("sortformer_modules.single_hidden_to_spks.", {}),
    "learned_silence": ("sortformer_modules.learnable_sil_emb", {}),
}
CANARY_NAMES: Names = {
    "encoder_proj.": ("encoder_decoder_proj.", {}),
    "transformer.": ("transf_encoder.", TRANSFORMER_NAMES),
    "decoder.embedding.": (f"{EMBEDDING}.token_embedding.", {}),
    "decoder.norm_in.": (f"{EMBEDDING}.layer_norm.", {}),
    "decoder.layers.": ("transf_decoder._decoder.layers.", DECODER_NAMES),
    "decoder.norm_out.": ("transf_decoder._decoder.final_layer_norm.", {}),
    "decoder.bias": (f"{OUTPUT}.bias", {}),
}
TRANSDUCER_NAMES: Names = {
    "transducer.prediction.embed.": ("decoder.prediction.embed.", {}),
    "transducer.prediction.lstm.": ("decoder.prediction.dec_rnn.lstm.", {}),
    "transducer.joint.out.": ("joint.joint_net.2.", {}),
    "transducer.joint.": ("joint.", {}),
}
PARAKEET_NAMES: Names = {**TRANSDUCER_NAMES, "ctc.": ("ctc_decoder.decoder_layers.0.", {})}
CTC_NAMES: Names = {"ctc.": ("decoder.decoder_layers.0.", {})}
KERNEL_NAMES = {"linear1": "0", "linear2": "3"}
MULTITALKER_NAMES: Names = {
    **TRANSDUCER_NAMES,
    "kernels.": ("spk_kernels.", KERNEL_NAMES),
    "background_kernels.": ("bg_spk_kernels.", KERNEL_NAMES),
}


def name_tensor(ours: str, names: Names) -> str:
    """What NVIDIA calls a tensor of ours, such as transformer.layers.0.attention.query.weight."""
    for prefix, (theirs, modules) in names.items():
        if ours.startswith(prefix):
            return theirs + _name_inner(ours.removeprefix(prefix), modules)
    return ours


def _name_inner(ours: str, modules: Mapping[str, str]) -> str:
    module, _, parameter = ours.rpartition(".")
    for name, theirs in modules.items():
        if module == name or module.endswith(f".{name}"):
            return f"{module.removesuffix(name)}{theirs}.{parameter}"
    return ours
