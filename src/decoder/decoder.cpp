// Builds a decoder from its configuration, and its tensor-parallel plan.
#include <ATen/ATen.h>

#include <cmath>

#include "decoder/decoder_attention.h"
#include "dtensor/debug.h"

namespace dtensor::nn {
namespace {

std::int64_t size_of_head(const LatentAttention& l) {
  TORCH_CHECK(
      l.kv_rank > 0 && l.value_size > 0 && l.q_rank >= 0 && l.rope_size >= 0 && l.nope_size >= 0 &&
          l.rope_size + l.nope_size > 0,
      "Decoder: latent attention expects kv_rank > 0, value_size > 0, q_rank >= 0, rope_size >= 0, nope_size >= 0 and "
      "rope_size + nope_size > 0, got kv_rank ",
      l.kv_rank, ", value_size ", l.value_size, ", q_rank ", l.q_rank, ", rope_size ", l.rope_size, " and nope_size ",
      l.nope_size);
  return l.nope_size + l.rope_size;
}

}  // namespace

DecoderConfig DecoderConfig::checked() const {
  DecoderConfig c = *this;
  TORCH_CHECK(c.vocabulary > 0 && c.hidden > 0 && c.layers > 0 && c.heads > 0,
              "Decoder: expected positive sizes, got vocabulary ", c.vocabulary, ", hidden ", c.hidden, ", layers ",
              c.layers, " and heads ", c.heads);
  TORCH_CHECK(
      !is_gated(c.activation),
      "Decoder: expected the activation silu, gelu, gelu_tanh or relu, with DecoderConfig::gated for a gate, got "
      "Activation number ",
      static_cast<int>(c.activation));
  TORCH_CHECK(c.dropout >= 0 && c.dropout < 1 && c.predict_tokens > 0,
              "Decoder: expected dropout in [0, 1) and predict_tokens > 0, got ", c.dropout, " and ", c.predict_tokens);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  TORCH_CHECK(c.kv_heads > 0 && c.heads % c.kv_heads == 0,
              "Decoder: expected heads to be a multiple of kv_heads, got heads ", c.heads, " and kv_heads ",
              c.kv_heads);
  if (c.latent) c.head_size = size_of_head(*c.latent);
  TORCH_CHECK(!c.latent || c.kv_heads == c.heads, "Decoder: latent attention expects kv_heads equal to heads, got ",
              c.kv_heads, " for ", c.heads);
  TORCH_CHECK(c.head_size > 0 || (c.head_size == 0 && c.hidden % c.heads == 0),
              "Decoder: expected head_size > 0, or 0 and hidden a multiple of heads, got head_size ", c.head_size,
              ", hidden ", c.hidden, " and heads ", c.heads);
  if (c.head_size == 0) c.head_size = c.hidden / c.heads;
  if (c.attention_scale == 0) c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  if (c.layer.empty()) c.layer.assign(static_cast<std::size_t>(c.layers), {.rope = c.ropes.empty() ? -1 : 0});
  TORCH_CHECK(static_cast<std::int64_t>(c.layer.size()) == c.layers,
              "Decoder: expected an entry of `layer` for each of ", c.layers, " layers, got ", c.layer.size());
  const std::int64_t turned = c.latent ? c.latent->rope_size : c.head_size;
  for (const Layer& l : c.layer) {
    TORCH_CHECK(l.rope >= -1 && l.rope < static_cast<std::int64_t>(c.ropes.size()),
                "Decoder: expected the rope of a layer in [-1, ", c.ropes.size(), "), got ", l.rope);
    TORCH_CHECK(!l.experts || c.experts, "Decoder: a layer has experts, but DecoderConfig::experts is not set");
    const std::int64_t size = l.rope < 0 ? 0 : c.ropes[static_cast<std::size_t>(l.rope)].size;
    TORCH_CHECK(size <= turned, "Decoder: expected a rope of at most ", turned, " elements, the size of a head, got ",
                size);
  }
  return c;
}

namespace {

std::unique_ptr<MixtureOfExperts> make_experts(const DecoderConfig& c) {
  MoeOptions options = *c.experts;
  options.hidden = c.hidden;
  options.tensor = c.tensor;
  return std::make_unique<MixtureOfExperts>(options);
}

MLP::Options mlp_options(const DecoderConfig& c) {
  return {.hidden = c.hidden,
          .ffn = c.ffn,
          .activation = c.activation,
          .bias = c.mlp_bias,
          .tensor = c.tensor,
          .gated = c.gated};
}

bool has_experts(const DecoderConfig& c, std::int64_t layer) {
  return c.layer[static_cast<std::size_t>(layer)].experts;
}

at::Tensor dropped(const Module& module, double probability, const at::Tensor& x) {
  return probability > 0 && module.is_training() ? at::dropout(x, probability, /*train=*/true) : x;
}

// Rounds to the embedding's dtype, as models with an embedding scale do.
double rounded(double value, at::ScalarType dtype) { return at::scalar_tensor(value, dtype).item<double>(); }

void add_adapters(Module& model, const LoraOptions& lora) {
  std::size_t count = 0;
  for (const auto& [name, module] : model.named_modules()) {
    auto* projection = dynamic_cast<Linear*>(module);
    const bool wanted = std::find(lora.targets.begin(), lora.targets.end(), module->name()) != lora.targets.end();
    if (projection != nullptr && wanted) projection->adapt(lora.rank, lora.alpha), ++count;
  }
  TORCH_CHECK(count > 0, "Decoder: LoraOptions::targets names no projection, got ", c10::Join(", ", lora.targets));
}

}  // namespace

Norm::Norm(std::int64_t size, NormKind kind, double eps, at::TensorOptions options)
    : weight(at::empty({size}, options)), size_(size), kind_(kind), eps_(eps) {
  if (kind == NormKind::layer) bias = at::empty({size}, options);
  register_parameter("weight", weight);
  register_parameter("bias", bias);
  Norm::reset_parameters();
}

void Norm::reset_parameters() {
  reset_to(weight, kind_ == NormKind::rms_offset ? 0 : 1);
  reset_to(bias, 0);
}

at::Tensor Norm::compute(const at::Tensor& x) const {
  if (kind_ == NormKind::layer) return layer_norm(x, size_, weight, bias, eps_);
  return at::rms_norm(x, {size_}, kind_ == NormKind::rms ? weight : weight + 1, eps_);
}

DecoderBlock::DecoderBlock(const DecoderConfig& c, std::int64_t layer)
    : attn_norm_(c.hidden, c.norm, c.norm_eps, c.tensor),
      attn_(std::make_unique<DecoderAttention>(c, layer)),
      mlp_norm_(c.hidden, c.norm, c.norm_eps, c.tensor),
      dropout_(c.dropout) {
  register_module("attn_norm", attn_norm_);
  register_module("attn", *attn_);
  register_module("mlp_norm", mlp_norm_);
  if (has_experts(c, layer)) {
    register_module("moe", *(moe_ = make_experts(c)));
  } else {
    register_module("mlp", *(mlp_ = std::make_unique<MLP>(mlp_options(c))));
  }
  if (!c.post_norms) return;
  attn_post_norm_ = std::make_unique<Norm>(c.hidden, c.norm, c.norm_eps, c.tensor);
  mlp_post_norm_ = std::make_unique<Norm>(c.hidden, c.norm, c.norm_eps, c.tensor);
  register_module("attn_post_norm", *attn_post_norm_);
  register_module("mlp_post_norm", *mlp_post_norm_);
}

DecoderBlock::~DecoderBlock() = default;

DecoderBlock::Output DecoderBlock::compute(const at::Tensor& x, const DecoderPass& pass) const {
  const auto post = [this](const std::unique_ptr<Norm>& norm, const at::Tensor& y) {
    return dropped(*this, dropout_, norm ? (*norm)(y) : y);
  };
  const at::Tensor h = x + post(attn_post_norm_, (*attn_)(attn_norm_(x), pass));
  const at::Tensor normal = mlp_norm_(h);
  const auto made = moe_ ? moe_->call_with_loss(normal) : MixtureOfExperts::Output{(*mlp_)(normal), {}};
  return {h + post(mlp_post_norm_, made.y), made.loss};
}

Decoder::Decoder(const DecoderConfig& given)
    : config_(given.checked()),
      embed_(config_.vocabulary, config_.hidden, /*padding_idx=*/-1, config_.tensor),
      norm_(config_.hidden, config_.norm, config_.norm_eps, config_.tensor),
      lm_head_(config_.hidden, config_.tied ? 0 : config_.vocabulary, /*bias=*/false, config_.tensor) {
  const DecoderConfig& c = config_;
  for (const RopeOptions& rope : c.ropes) ropes_.emplace_back(rope);
  register_module("embed", embed_);
  if (c.learned_positions > 0) {
    positions_ = std::make_unique<Embedding>(c.learned_positions, c.hidden, /*padding_idx=*/-1, c.tensor);
    register_module("positions", *positions_);
  }
  for (std::int64_t i = 0; i < c.layers; ++i) {
    blocks_.push_back(std::make_unique<DecoderBlock>(c, i));
    register_module("layers." + std::to_string(i), *blocks_.back());
  }
  register_module("norm", norm_);
  if (c.tied) lm_head_.weight = embed_.weight;
  register_module("lm_head", lm_head_);
  for (std::int64_t ahead = 1; ahead < c.predict_tokens; ++ahead) {
    further_heads_.push_back(std::make_unique<Linear>(c.hidden, c.vocabulary, /*bias=*/false, c.tensor));
    register_module("further_heads." + std::to_string(ahead - 1), *further_heads_.back());
  }
  if (c.lora.rank > 0) add_adapters(*this, c.lora);
}

at::Tensor Decoder::embed(const at::Tensor& ids, std::int64_t first) const {
  const DecoderConfig& c = config_;
  TORCH_CHECK(ids.dim() == 2 && !ids.is_floating_point(), "Decoder: expected integer ids [batch, sequence], got sizes ",
              ids.sizes(), " and dtype ", ids.scalar_type());
  const std::int64_t count = ids.size(1);
  TORCH_CHECK(c.learned_positions == 0 || first + count <= c.learned_positions, "Decoder: expected at most ",
              c.learned_positions, " tokens, the number of learned positions, got ", first + count);
  at::Tensor x = embed_(ids);
  if (c.embedding_scale != 1) x = x * rounded(c.embedding_scale, x.scalar_type());
  if (positions_) x = x + (*positions_)(at::arange(first, first + count, ids.options().device(ids.device())));
  return dropped(*this, c.dropout, x);
}

DecoderPass Decoder::pass(std::int64_t count, const at::TensorOptions& options, KVCache* cache) const {
  DecoderPass pass{.cache = cache, .first = cache != nullptr ? cache->length() : 0};
  for (const Rope& rope : ropes_) pass.angles.push_back(rope.angles(pass.first, count, options));
  return pass;
}

at::Tensor Decoder::hidden(const at::Tensor& ids, KVCache* cache, std::vector<at::Tensor>* losses) const {
  at::Tensor x = embed(ids, cache != nullptr ? cache->length() : 0);
  const DecoderPass shared = pass(ids.size(1), x.options(), cache);
  for (const auto& block : blocks_) {
    const auto out = (*block)(x, shared);
    x = out.y;
    if (losses != nullptr && out.loss.defined()) losses->push_back(out.loss);
  }
  if (cache != nullptr) cache->advance(ids.size(1));
  return norm(x);
}

const Linear& Decoder::head_layer(std::int64_t ahead) const {
  TORCH_CHECK_INDEX(ahead >= 0 && ahead < config_.predict_tokens, "Decoder: expected a head in [0, ",
                    config_.predict_tokens, "), got ", ahead);
  return ahead == 0 ? lm_head_ : *further_heads_[static_cast<std::size_t>(ahead - 1)];
}

at::Tensor Decoder::head(const at::Tensor& hidden, std::int64_t ahead) const {
  const at::Tensor logits = head_layer(ahead)(hidden);
  const double cap = config_.logit_softcap;
  return cap > 0 ? at::tanh(logits / cap) * cap : logits;
}

ParallelPlan tensor_parallel_plan(const DecoderConfig& given, bool gather_logits) {
  const DecoderConfig c = given.checked();
  const std::string attn = "layers.*.attn.", mlp = "layers.*.mlp.", shared = "layers.*.moe.shared.";
  const auto column = [](std::int64_t block = 1) { return ColwiseParallel{.in = {}, .out = {}, .block = block}; };
  const auto row = [](std::int64_t block = 1) { return RowwiseParallel{.in = {}, .out = {}, .block = block}; };
  const std::int64_t group = c.heads / c.kv_heads;
  ParallelPlan plan = {{"embed", row()}};
  if (c.latent) {
    const std::int64_t kv = c.latent->nope_size + c.latent->value_size;
    plan.emplace_back(attn + (c.latent->q_rank > 0 ? "q_b_proj" : "q_proj"), column(c.head_size));
    plan.emplace_back(attn + "kv_b_proj", column(kv));
    plan.emplace_back(attn + "o_proj", row(c.latent->value_size));
  } else {
    plan.emplace_back(attn + "q_proj", column(group * c.head_size));
    plan.emplace_back(attn + "k_proj", column(c.head_size));
    plan.emplace_back(attn + "v_proj", column(c.head_size));
    plan.emplace_back(attn + "o_proj", row(group * c.head_size));
  }
  bool dense = false, sparse = false;
  for (const DecoderConfig::Layer& l : c.layer) (l.experts ? sparse : dense) = true;
  if (dense && c.gated) plan.emplace_back(mlp + "gate_proj", column());
  if (dense) plan.emplace_back(mlp + "up_proj", column());
  if (dense) plan.emplace_back(mlp + "down_proj", row());
  if (sparse && c.experts->shared_ffn > 0) {
    plan.emplace_back(shared + "w1", ShardParameter{0});
    plan.emplace_back(shared + "w2", ShardParameter{1});
    if (is_gated(c.experts->experts.activation)) plan.emplace_back(shared + "w3", ShardParameter{0});
  }
  ColwiseParallel head = column();
  if (gather_logits) head.out = Replicate();
  plan.emplace_back("lm_head", head);
  if (c.predict_tokens > 1) plan.emplace_back("further_heads.*", head);
  return plan;
}

}  // namespace dtensor::nn
