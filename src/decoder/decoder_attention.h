// Attention of a decoder block.
#pragma once

#include <memory>

#include "dtensor/nn/decoder.h"

namespace dtensor::nn {

// Attention of one layer: heads, grouped or latent, with positions, window and cache.
class DecoderAttention final : public Layer<DecoderAttention> {
 public:
  DecoderAttention(const DecoderConfig& config, std::int64_t layer);
  // x: [batch, sequence, hidden]
  at::Tensor forward(const at::Tensor& x, const DecoderPass& pass) const { return without_hooks(x, pass); }
  at::Tensor compute(const at::Tensor& x, const DecoderPass& pass) const;

 private:
  struct Projected;
  Projected project(const at::Tensor& x) const;
  at::Tensor with_cache(const Projected& p, const DecoderPass& pass) const;
  at::Tensor fold_heads_into_batch(const Projected& p, const DecoderPass& pass) const;
  at::Tensor normed(const Norm* norm, const at::Tensor& x) const;

  DecoderConfig config_;
  std::int64_t layer_;
  Rope rope_;
  std::unique_ptr<Linear> q_proj_, k_proj_, v_proj_;  // without latent attention
  std::unique_ptr<Linear> q_a_proj_, q_b_proj_, kv_a_proj_, kv_b_proj_;
  std::unique_ptr<Norm> q_norm_, k_norm_, q_a_norm_, kv_a_norm_;
  Linear o_proj_;
};

}  // namespace dtensor::nn
