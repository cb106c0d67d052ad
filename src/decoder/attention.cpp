// Attention of a decoder. Projections are DTensor operators; with a cache, attention itself runs on each rank's local
// heads.
#include <ATen/ATen.h>

#include <cmath>

#include "decoder/causal_attention.h"
#include "decoder/decoder_attention.h"
#include "dtensor/bit_identical.h"
#include "dtensor/debug.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"

namespace dtensor::nn {
namespace {

std::unique_ptr<Linear> projection(const DecoderConfig& c, std::int64_t in, std::int64_t out, bool bias) {
  return in > 0 ? std::make_unique<Linear>(in, out, bias, c.tensor) : nullptr;
}
std::unique_ptr<Norm> norm(const DecoderConfig& c, bool present, std::int64_t size) {
  return present ? std::make_unique<Norm>(size, c.norm, c.norm_eps, c.tensor) : nullptr;
}

Rope rope_of(const DecoderConfig& c, std::int64_t layer) {
  TORCH_CHECK(layer >= 0 && layer < static_cast<std::int64_t>(c.layer.size()), "a decoder block of layer ", layer,
              ": expected a configuration with that layer, got ", c.layer.size(),
              " layers; DecoderConfig::checked() sets the defaults");
  const std::int64_t rope = c.layer[static_cast<std::size_t>(layer)].rope;
  return rope < 0 ? Rope({.size = 2}) : Rope(c.ropes[static_cast<std::size_t>(rope)]);
}

std::int64_t value_size(const DecoderConfig& c) { return c.latent ? c.latent->value_size : c.head_size; }

// [batch, sequence, heads * size] -> [batch, heads, sequence, size]
at::Tensor by_heads(const at::Tensor& x, std::int64_t size) {
  return x.unflatten(2, {x.size(2) / size, size}).transpose(1, 2);
}

}  // namespace

// [batch, sequence, heads * size]. With latent attention, k contains each head's key without position and its value, v
// is undefined, and shared is the rotated key, [batch, sequence, rope_size].
struct DecoderAttention::Projected {
  at::Tensor q, k, v, shared;
};

DecoderAttention::DecoderAttention(const DecoderConfig& c, std::int64_t layer)
    : config_(c),
      layer_(layer),
      rope_(rope_of(c, layer)),
      o_proj_(c.heads * value_size(c), c.hidden, c.o_bias, c.tensor) {
  const std::int64_t q_size = c.heads * c.head_size, kv_size = c.kv_heads * c.head_size;
  if (c.latent) {
    const LatentAttention& l = *c.latent;
    if (l.q_rank == 0) q_proj_ = projection(c, c.hidden, q_size, false);
    q_a_proj_ = projection(c, l.q_rank == 0 ? 0 : c.hidden, l.q_rank, c.qkv_bias);
    q_a_norm_ = norm(c, l.q_rank > 0, l.q_rank);
    q_b_proj_ = projection(c, l.q_rank, q_size, false);
    kv_a_proj_ = projection(c, c.hidden, l.kv_rank + l.rope_size, c.qkv_bias);
    kv_a_norm_ = norm(c, true, l.kv_rank);
    kv_b_proj_ = projection(c, l.kv_rank, c.heads * (l.nope_size + l.value_size), false);
  } else {
    q_proj_ = projection(c, c.hidden, q_size, c.qkv_bias);
    k_proj_ = projection(c, c.hidden, kv_size, c.qkv_bias);
    v_proj_ = projection(c, c.hidden, kv_size, c.qkv_bias);
    q_norm_ = norm(c, c.qk_norm, c.head_size);
    k_norm_ = norm(c, c.qk_norm, c.head_size);
  }
  const auto add = [&](const char* name, auto& child) {
    if (child) register_module(name, *child);
  };
  add("q_proj", q_proj_), add("k_proj", k_proj_), add("v_proj", v_proj_);
  add("q_a_proj", q_a_proj_), add("q_a_norm", q_a_norm_), add("q_b_proj", q_b_proj_);
  add("kv_a_proj", kv_a_proj_), add("kv_a_norm", kv_a_norm_), add("kv_b_proj", kv_b_proj_);
  register_module("o_proj", o_proj_);
  add("q_norm", q_norm_), add("k_norm", k_norm_);
}

// Normalizes each head separately.
at::Tensor DecoderAttention::normed(const Norm* norm, const at::Tensor& x) const {
  if (norm == nullptr) return x;
  return (*norm)(x.unflatten(2, {x.size(2) / config_.head_size, config_.head_size})).flatten(2, 3);
}

DecoderAttention::Projected DecoderAttention::project(const at::Tensor& x) const {
  if (!config_.latent) {
    return {normed(q_norm_.get(), (*q_proj_)(x)), normed(k_norm_.get(), (*k_proj_)(x)), (*v_proj_)(x), {}};
  }
  const LatentAttention& l = *config_.latent;
  const at::Tensor q = q_proj_ ? (*q_proj_)(x) : (*q_b_proj_)((*q_a_norm_)((*q_a_proj_)(x)));
  const at::Tensor both = (*kv_a_proj_)(x);
  const at::Tensor inner = (*kv_a_norm_)(both.narrow(2, 0, l.kv_rank));
  return {q, (*kv_b_proj_)(inner), {}, both.narrow(2, l.kv_rank, l.rope_size)};
}

at::Tensor DecoderAttention::fold_heads_into_batch(const Projected& p, const DecoderPass& pass) const {
  const DecoderConfig& c = config_;
  const DecoderConfig::Layer& layer = c.layer[static_cast<std::size_t>(layer_)];
  at::Tensor q = by_heads(p.q, c.head_size), k, v;
  const auto turned = [&](const at::Tensor& x) {
    return layer.rope < 0 ? x : rope_.rotate(x, pass.angles[static_cast<std::size_t>(layer.rope)]);
  };
  if (c.latent) {
    const LatentAttention& l = *c.latent;
    const at::Tensor kv = by_heads(p.k, l.nope_size + l.value_size);
    q = at::cat({q.narrow(3, 0, l.nope_size), turned(q.narrow(3, l.nope_size, l.rope_size))}, 3);
    k = at::cat({kv.narrow(3, 0, l.nope_size), turned(p.shared.unsqueeze(1)).expand({-1, kv.size(1), -1, -1})}, 3);
    v = kv.narrow(3, l.nope_size, l.value_size);
  } else {
    q = turned(q), k = turned(by_heads(p.k, c.head_size)), v = by_heads(p.v, c.head_size);
  }
  const bool cached = pass.cache != nullptr;
  if (cached)
    std::tie(k, v) = is_dtensor(k) ? pass.cache->append_placed(layer_, k, v) : pass.cache->append(layer_, k, v);
  const AttendOptions options{c.attention_scale, c.attention_softcap, layer.window, pass.documents};
  at::Tensor y;
  if (q.size(1) == 0) {
    y = at::empty({q.size(0), 0, q.size(2), v.size(3)}, q.options());
  } else if (cached && pass.cache->sequence_group(layer_)) {
    y = attend_split_cache(q, k, v, pass.first, pass.cache->sequence_group(layer_), options);
  } else {
    y = attend(q, k, v, options);
  }
  return y.transpose(1, 2).flatten(2, 3);
}

namespace {

// Placements of the projections while each rank computes attention on its local heads.
struct HeadSizes {
  Placements rest;         // of tensors that all heads share
  std::int64_t axis = -1;  // the mesh axis that shards heads; -1: none
  std::int64_t ranks = 1;

  // Shards `dim`, which consists of `groups` blocks of `size` elements, without dividing a block.
  Placements split(std::int64_t dim, std::int64_t groups, std::int64_t size) const {
    Placements placements = rest;
    if (axis < 0) return placements;
    const bool even = groups % ranks == 0;
    placements[static_cast<std::size_t>(axis)] = even ? Shard(dim) : BlockShard(dim, groups * size, size, ranks);
    return placements;
  }
};

HeadSizes layout_of(const std::vector<DTensor>& projections) {
  HeadSizes layout;
  const DeviceMesh mesh = projections[0].mesh();
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) {
    const auto placement = [&](const DTensor& t) { return t.placements()[static_cast<std::size_t>(a)]; };
    const Placement first = placement(projections[0]);
    layout.rest.push_back(first.is_shard(0) ? first : Replicate());
    const bool heads = first.is_shard(2) || placement(projections[1]).is_shard(2);
    if (heads && layout.axis < 0 && mesh.size(a) > 1) layout.axis = a, layout.ranks = mesh.size(a);
  }
  return layout;
}

// The local tensor; empty on a rank outside the mesh.
at::Tensor local_at(const at::Tensor& x, const Placements& placements, bool split) {
  if (!x.defined()) return x;
  const DTensor given(x);
  if (!given.mesh().is_member()) return at::empty({0, x.size(1), split ? 0 : x.size(2)}, x.options());
  return given.placements() == placements ? given.to_local() : given.redistribute(placements).to_local();
}

}  // namespace

at::Tensor DecoderAttention::with_cache(const Projected& p, const DecoderPass& pass) const {
  const NoMeshScopeGuard regular;  // masks are local
  if (!is_dtensor(p.q)) {
    pass.cache->set_layout(layer_);
    return fold_heads_into_batch(p, pass);
  }
  const DecoderConfig& c = config_;
  const DTensor q(p.q);
  const HeadSizes layout = layout_of({q, DTensor(p.k)});
  const std::int64_t groups = c.kv_heads, group = c.heads / groups;
  const bool same_bits = BitIdentical::current();
  auto of_keys = layout.split(1, groups, 1);
  // There, projections of one token may have other placements than those of a prompt.
  const Placements& kept = pass.cache->placements(layer_);
  if (same_bits && pass.first > 0 && kept.size() == of_keys.size()) of_keys = kept;
  pass.cache->set_layout(layer_, q.mesh(), of_keys, q.size(0), groups);
  if (same_bits) return fold_heads_into_batch(p, pass);  // only operators on DTensors have such forms
  const std::int64_t kv_size = c.latent ? c.latent->nope_size + c.latent->value_size : c.head_size;
  const Projected local{local_at(p.q, layout.split(2, groups, group * c.head_size), /*split=*/true),
                        local_at(p.k, layout.split(2, groups, kv_size), /*split=*/true),
                        local_at(p.v, layout.split(2, groups, kv_size), /*split=*/true),
                        local_at(p.shared, layout.rest, /*split=*/false)};
  const at::Tensor y = fold_heads_into_batch(local, pass);
  const std::int64_t size = value_size(c);
  return DTensor::from_local(y, q.mesh(), layout.split(2, groups, group * size),
                             {q.size(0), q.size(1), c.heads * size});
}

at::Tensor DecoderAttention::compute(const at::Tensor& x, const DecoderPass& pass) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !pass.documents.defined() || (pass.cache == nullptr && config_.attention_softcap == 0),
      "Decoder: documents are not supported with a cache or with attention_softcap; pass each document as a sequence");
  const Projected p = project(x);
  const at::Tensor y = pass.cache != nullptr ? with_cache(p, pass) : fold_heads_into_batch(p, pass);
  return o_proj_(y);
}

}  // namespace dtensor::nn
