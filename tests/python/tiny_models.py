"""Tiny random models of the transformers package in float64, and their inputs.

Text models need only the name of their family; SPECIAL has options that a family needs besides TINY. OTHERS has models of
images, sound and several modalities.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import nn

TINY = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "head_dim": 8, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "n_ctx": 64, "n_inner": 48, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "ffn_dim": 48,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "word_embed_proj_dim": 32, "rotary_dim": 4, "embedding_size": 32,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "dropout": 0.0,
    "activation_dropout": 0.0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_rate": 0.0,
    "layerdrop": 0.0, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 1,
    "sliding_window": 8, "mamba_d_state": 8, "state_size": 8, "ssm_state_size": 8, "time_step_rank": 4, "is_decoder": True,
    "attention_hidden_size": 32, "ffn_hidden_size": 48, "multi_query_group_num": 2, "hidden_act_dim": 8,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "num_kv_shared_layers": 0, "lru_width": 32,
    "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "lm_head_dim": 32, "num_key_value_groups": 2,
}  # fmt: skip

LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "linear_num_key_heads": 2, "linear_num_value_heads": 4}  # fmt: skip
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 4}
# Options that a family of text models needs besides TINY, mostly state-space layers together with attention layers.
SPECIAL = {
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**MAMBA2, "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 24},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "chunk_size": 4, "n_groups": 1, "hidden_size": 32},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 8,
                   "n_groups": 1, "chunk_size": 4, "use_mamba_kernels": False, "moe_shared_expert_intermediate_size": 24},
    "olmo_hybrid": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_next": LINEAR,
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 8, "num_key_value_heads": 1},
    "roc_bert": {"pronunciation_vocab_size": 96, "shape_vocab_size": 96, "pronunciation_embed_dim": 16, "shape_embed_dim": 16},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2},
    "zamba2": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
               "hybrid_layer_ids": [1, 3], "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1, "chunk_size": 4,
               "use_mamba_kernels": False, "attention_hidden_size": 64, "attention_head_dim": 16,
               "num_key_value_heads": 4},
}  # fmt: skip

IMAGE = {"image_size": 32, "num_channels": 3, "num_labels": 3, "drop_path_rate": 0.0}
VIT = {**IMAGE, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
STAGES = {**IMAGE, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
WINDOWS = {**IMAGE, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
WAVES = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "conv_dim": [16, 16], "conv_stride": [4, 2], "conv_kernel": [8, 3], "num_conv_pos_embeddings": 16,
         "num_conv_pos_embedding_groups": 4,
         "classifier_proj_size": 16, "hidden_dropout": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0,
         "final_dropout": 0.0, "layerdrop": 0.0, "apply_spec_augment": False, "num_labels": 3, "num_feat_extract_layers": 2}  # fmt: skip
TEXT = {key: TINY[key] for key in ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                                   "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"]}  # fmt: skip
EYES = {key: value for key, value in VIT.items() if key not in ("num_labels", "drop_path_rate")}
PAIR = {"text_config": {**TEXT, "eos_token_id": 2}, "vision_config": EYES, "projection_dim": 16}
LLAMA = {**TEXT, "model_type": "llama", "num_key_value_heads": 2, "head_dim": 8}


def seeing(kind, **more):
    return {"text_config": LLAMA, "vision_config": {**EYES, "model_type": kind}, "image_token_index": 90, "image_token_id": 90, **more}


# name: class that creates it from a configuration, options, names of inputs (see `inputs_of`).
OTHERS = {
    "beit": ("AutoModelForImageClassification", VIT, "pixels class"),
    "bit": ("AutoModelForImageClassification", {**STAGES, "embedding_size": 8, "num_groups": 4}, "pixels class"),
    "convnext": ("AutoModelForImageClassification", STAGES, "pixels class"),
    "convnextv2": ("AutoModelForImageClassification", STAGES, "pixels class"),
    "data2vec-vision": ("AutoModelForImageClassification", VIT, "pixels class"),
    "deit": ("DeiTForImageClassification", VIT, "pixels class"),
    "dinov2": ("AutoModelForImageClassification", VIT, "pixels class"),
    "dinov2_with_registers": ("AutoModelForImageClassification", VIT, "pixels class"),
    "donut-swin": ("AutoModelForImageClassification", WINDOWS, "pixels class"),
    "focalnet": ("AutoModelForImageClassification", {**IMAGE, "embed_dim": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                                                     "focal_levels": [2, 2],
                                                     "focal_windows": [3, 3]}, "pixels class"),
    "hiera": ("AutoModelForImageClassification", {**IMAGE, "image_size": [32, 32], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2],
                                                  "num_query_pool": 1, "masked_unit_size": [2, 2], "masked_unit_attention": [True, False]},
              "pixels class"),
    "ijepa": ("AutoModelForImageClassification", VIT, "pixels class"),
    "levit": ("LevitForImageClassification", {**IMAGE, "drop_path_rate": 0, "hidden_sizes": [16, 16, 32], "num_attention_heads": [2, 2,
                                                                                                                                  4],





                                                                                                                             "depths": [1,
                                                                                                                                        1,
                                                                                                                                        1],
                                                  "key_dim": [4, 4, 4]}, "pixels class"),
    "mobilenet_v1": ("AutoModelForImageClassification", {**IMAGE, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.0},
                     "pixels class"),
    "mobilenet_v2": ("AutoModelForImageClassification", {**IMAGE, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.0},
                     "pixels class"),
    "mobilevit": ("AutoModelForImageClassification", {**IMAGE, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 8, 16, 16, 16,
                                                                                                                   32]},
                  "pixels class"),
    "poolformer": ("AutoModelForImageClassification", STAGES, "pixels class"),
    "pvt": ("AutoModelForImageClassification", {**STAGES, "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2]}, "pixels class"),
    "pvt_v2": ("AutoModelForImageClassification", {**STAGES, "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2]},
               "pixels class"),
    "regnet": ("AutoModelForImageClassification", {**STAGES, "embedding_size": 8, "groups_width": 4}, "pixels class"),
    "resnet": ("AutoModelForImageClassification", {**STAGES, "embedding_size": 8}, "pixels class"),
    "segformer": ("AutoModelForImageClassification", {**STAGES, "num_attention_heads": [1, 2, 2, 4]}, "pixels class"),
    "swiftformer": ("AutoModelForImageClassification", {**IMAGE, "embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, "pixels class"),
    "swin": ("AutoModelForImageClassification", WINDOWS, "pixels class"),
    "swinv2": ("AutoModelForImageClassification", WINDOWS, "pixels class"),
    "vit": ("AutoModelForImageClassification", VIT, "pixels class"),
    "vit_msn": ("AutoModelForImageClassification", VIT, "pixels class"),
    "videomae": ("AutoModelForVideoClassification", {**VIT, "num_frames": 4}, "video class"),
    "timesformer": ("AutoModelForVideoClassification", {**VIT, "drop_path_rate": 0, "num_frames": 4}, "video class"),
    "vivit": ("AutoModelForVideoClassification", {**VIT, "num_frames": 4, "tubelet_size": [2, 8, 8]}, "video class"),
    "audio-spectrogram-transformer": ("AutoModelForAudioClassification", {**VIT, "max_length": 24, "num_mel_bins": 16},
                                      "spectrogram class"),
    "data2vec-audio": ("AutoModelForCTC", WAVES, "waves letters"),
    "hubert": ("AutoModelForCTC", WAVES, "waves letters"),
    "sew": ("AutoModelForCTC", WAVES, "waves letters"),
    "unispeech": ("AutoModelForCTC", WAVES, "waves letters"),
    "unispeech-sat": ("AutoModelForCTC", WAVES, "waves letters"),
    "wav2vec2": ("AutoModelForCTC", WAVES, "waves letters"),
    "wav2vec2-conformer": ("AutoModelForCTC", {**WAVES, "conv_depthwise_kernel_size": 5}, "waves letters"),
    "wavlm": ("AutoModelForAudioClassification", {**WAVES, "num_buckets": 32, "max_bucket_distance": 64}, "waves class"),
    "whisper": ("AutoModelForSpeechSeq2Seq", {**TINY, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32,
                                              "begin_suppress_tokens": None}, "mels text_labels"),
    "speech_to_text": ("AutoModelForSpeechSeq2Seq", {**TINY, "input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 32,
                                                     "max_target_positions": 32}, "features text_labels"),
    "moonshine": ("AutoModelForSpeechSeq2Seq", {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
                                                "encoder_num_hidden_layers": 2,
                                                "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4,
                                                "decoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4,
                                                "decoder_num_key_value_heads": 4, "eos_token_id": None, "pad_token_id": 0},
                  "long_waves text_labels"),
    "clip": ("AutoModelForZeroShotImageClassification", PAIR, "ids pixels pairs"),
    "siglip": ("AutoModelForZeroShotImageClassification", PAIR, "ids pixels pairs"),
    "metaclip_2": ("AutoModelForZeroShotImageClassification", PAIR, "ids pixels pairs"),
    "chinese_clip": ("AutoModelForZeroShotImageClassification", PAIR, "ids pixels pairs"),
    "clipseg": ("AutoModelForZeroShotImageClassification", PAIR, "ids pixels pairs"),
    "blip": ("BlipForConditionalGeneration", {**PAIR, "image_text_hidden_size": 16}, "pixels ids text_labels"),
    "aya_vision": ("AutoModelForImageTextToText", seeing("siglip_vision_model", downsample_factor=2, adapter_layer_norm_eps=1e-6),
                   "four_image_tokens pixels text_labels"),
    "idefics3": ("AutoModelForImageTextToText", seeing("idefics3_vision", scale_factor=2, pad_token_id=0),
                 "four_image_tokens images text_labels"),
    "internvl": ("AutoModelForImageTextToText", {**seeing("internvl_vision", downsample_ratio=0.5), "vision_config": {
        **EYES, "image_size": [32, 32], "patch_size": [8, 8], "model_type": "internvl_vision"}}, "four_image_tokens pixels text_labels"),
    "llava": ("AutoModelForImageTextToText", seeing("clip_vision_model"), "image_tokens pixels text_labels"),
    "paligemma": ("AutoModelForImageTextToText", {**seeing("siglip_vision_model", projection_dim=32, hidden_size=32), "text_config":
                                                  {**LLAMA, "model_type": "gemma"}}, "image_tokens pixels text_labels"),
    "smolvlm": ("AutoModelForImageTextToText", seeing("smolvlm_vision", scale_factor=2, pad_token_id=0), "four_image_tokens images text_labels"),
    "vipllava": ("AutoModelForImageTextToText", seeing("clip_vision_model", vision_feature_layers=[-2, -1]), "image_tokens pixels text_labels"),
    "patchtst": ("PatchTSTForRegression", {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4,
                                                      "num_hidden_layers": 2, "d_model": 32, "num_attention_heads": 4, "ffn_dim": 48,
                                                      "num_targets": 1}, "past targets"),
    "patchtsmixer": ("PatchTSMixerForRegression", {"num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4,
                                                          "num_layers": 2, "d_model": 16, "num_targets": 1}, "past targets"),
}  # fmt: skip


class NoTinyModel(Exception):
    """The package has the model, but no tiny one could be created here: the comparison is not possible."""


@dataclasses.dataclass
class Tiny:
    model: nn.Module
    inputs: dict[str, torch.Tensor]  # batch first
    model_kwargs: dict[str, object]  # other arguments of forward
    prompt: dict[str, torch.Tensor] | None  # inputs of `generate`; None if the model does not generate
    generating: dict[str, object]


def known_families():
    from transformers.models.auto import modeling_auto as auto

    names = {**auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, **auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    names.update(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return sorted({*names, *OTHERS})


def make(family) -> Tiny:
    try:
        return make_other(family) if family in OTHERS else make_text(family)
    except NoTinyModel:
        raise
    except Exception as error:
        raise NoTinyModel(f"{type(error).__name__}: {error}") from error


def batch():
    generator = torch.Generator().manual_seed(7)
    return torch.randint(2, 90, (4, 6), generator=generator)


def numbers(*sizes):
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(11))


def inputs_of(names) -> tuple[dict, dict]:
    """Inputs of four samples by the names in OTHERS, and other arguments of forward."""
    ids, inputs, model_kwargs = batch(), {}, {}
    for name in names.split():
        if name in ("image_tokens", "four_image_tokens"):  # placeholders of an image's 16 patches (4 if merged)
            count = 16 if name == "image_tokens" else 4
            ids = torch.cat([torch.full((4, count), 90), ids], 1)
            inputs["input_ids"] = ids
        elif name == "pairs":
            model_kwargs["return_loss"] = True
        else:
            key, value = {
                "pixels": ("pixel_values", numbers(4, 3, 32, 32)), "images": ("pixel_values", numbers(4, 1, 3, 32, 32)),
                "video": ("pixel_values", numbers(4, 4, 3, 32, 32)), "class": ("labels", torch.tensor([0, 2, 1, 0])),
                "waves": ("input_values", numbers(4, 160)), "long_waves": ("input_values", numbers(4, 4000)),
                "spectrogram": ("input_values", numbers(4, 24, 16)), "mels": ("input_features", numbers(4, 8, 32)),
                "features": ("input_features", numbers(4, 32, 8)), "letters": ("labels", ids[:, :4] % 20 + 2), "ids": ("input_ids", ids),
                "text_labels": ("labels", ids), "past": ("past_values", numbers(4, 16, 2)), "targets": ("target_values", numbers(4, 1)),
            }[name]  # fmt: skip
            inputs[key] = value
    return inputs, model_kwargs


def build_model(build, config):
    with torch.device("meta"):
        size = sum(p.numel() for p in build(copy.deepcopy(config)).parameters())
    if size > 4_000_000:
        raise NoTinyModel(f"it has {size} parameters; a tiny model has at most 4000000")
    model = build(config).double().eval()
    for part in model.modules():  # modules that store a dtype at construction
        vars(part).update({key: torch.float64 for key, value in vars(part).items() if value is torch.float32})
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = None
    return model


def make_other(family) -> Tiny:
    import transformers

    kind, options, names = OTHERS[family]
    config = transformers.CONFIG_MAPPING[family](**copy.deepcopy(options))
    found = getattr(transformers, kind)
    model = build_model(found.from_config if kind.startswith("Auto") else found, config)
    inputs, model_kwargs = inputs_of(names)
    generates = "text_labels" in names
    prompt = {key: value for key, value in inputs.items() if key != "labels"} if generates else None
    return Tiny(model, inputs, model_kwargs, prompt, {"pad_token_id": 0} if "ImageTextToText" in kind else {})


def make_text(family) -> Tiny:
    import transformers
    from transformers.models.auto import modeling_auto as auto

    config_class = transformers.CONFIG_MAPPING[family]
    default = config_class()
    fixed = {key for key in dir(config_class) if isinstance(getattr(config_class, key), property)}  # derived from others
    options = {key: value for key, value in TINY.items() if hasattr(default, key) and key not in fixed}
    if "kv_lora_rank" in options:  # multi-head latent attention: every head has its keys
        options["num_key_value_heads"] = options["num_attention_heads"]
    for key in ["layer_types", "mlp_layer_types", "layers_block_type"]:
        if key not in fixed and family not in SPECIAL and isinstance(getattr(default, key, None), list):
            options[key] = getattr(default, key)[:2]
    for names, kind in [
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM"),
        (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "AutoModelForSeq2SeqLM"),
        (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "AutoModelForMaskedLM"),
    ]:
        if family in names:
            break
    if kind != "AutoModelForCausalLM":
        options.pop("is_decoder", None)
    if kind == "AutoModelForSeq2SeqLM":
        options["decoder_start_token_id"] = 1
    options["experts_implementation"] = "eager"  # the grouped kernel does not support float64
    options.update(copy.deepcopy(SPECIAL.get(family, {})))
    model = build_model(getattr(transformers, kind).from_config, config_class(**options))
    ids = batch()
    prompt = None if kind == "AutoModelForMaskedLM" else {"input_ids": ids}
    return Tiny(model, {"input_ids": ids, "labels": ids}, {}, prompt, {} if kind == "AutoModelForSeq2SeqLM" else {"pad_token_id": 0})
