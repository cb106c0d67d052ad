// Overhead of decoding with a cache: a token of a decoder with DTensor parameters on a mesh of one rank, compared with
// the same model in ATen on local tensors. Both alternate; medians are reported.
#include <ATen/ATen.h>

#include <cstdio>
#include <map>

#include "dtensor/inspect.h"
#include "dtensor/launch.h"
#include "dtensor/nn/decoder.h"
#include "dtensor/tensor.h"
#include "timing.h"

namespace {

using dtensor::nn::Decoder;
using dtensor::nn::DecoderConfig;

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kCapacity = 256, kPrompt = 32, kTokens = 32, kRounds = 15;

DecoderConfig config_of(std::int64_t hidden) {
  DecoderConfig c;
  c.vocabulary = 1024, c.hidden = hidden, c.layers = 4, c.ffn = 4 * hidden;
  c.heads = kHeads, c.kv_heads = kKvHeads;
  c.ropes = {{.size = hidden / kHeads}};
  return c;
}

// A hand-written implementation of this model.
class ManualDecoder {
 public:
  ManualDecoder(const DecoderConfig& config, std::map<std::string, at::Tensor> weights)
      : c_(config), w_(std::move(weights)) {
    const std::int64_t size = c_.hidden / kHeads, half = size / 2;
    const auto position = at::arange(kCapacity, at::kDouble).unsqueeze(1);
    const auto angle = position * at::pow(10000.0, at::arange(half, at::kDouble) / -static_cast<double>(half));
    cos_ = angle.cos().to(at::kFloat), sin_ = angle.sin().to(at::kFloat);
    for (std::int64_t i = 0; i < c_.layers; ++i) {
      const auto at = "layers." + std::to_string(i) + ".";
      const auto w = [&](const char* name) { return w_.at(at + name + ".weight"); };
      layers_.push_back({w("attn_norm"), w("attn.q_proj"), w("attn.k_proj"), w("attn.v_proj"), w("attn.o_proj"),
                         w("mlp_norm"), w("mlp.gate_proj"), w("mlp.up_proj"), w("mlp.down_proj"),
                         at::empty({1, kKvHeads, kCapacity, size}), at::empty({1, kKvHeads, kCapacity, size})});
    }
  }

  at::Tensor forward(const at::Tensor& ids) {
    const std::int64_t n = ids.size(1);
    at::Tensor x = at::embedding(w_.at("embed.weight"), ids);
    for (Layer& l : layers_) {
      const auto h = at::rms_norm(x, {c_.hidden}, l.attn_norm, 1e-6);
      const auto q = rotated(heads(at::linear(h, l.q), kHeads));
      l.keys.narrow(2, length_, n).copy_(rotated(heads(at::linear(h, l.k), kKvHeads)));
      l.values.narrow(2, length_, n).copy_(heads(at::linear(h, l.v), kKvHeads));
      const auto k = l.keys.narrow(2, 0, length_ + n), v = l.values.narrow(2, 0, length_ + n);
      const auto grouped = n > 1 ? q : q.view({1, kKvHeads, kHeads / kKvHeads, q.size(3)});
      const auto y = at::scaled_dot_product_attention(grouped, k, v, std::nullopt, 0.0, n > 1, std::nullopt, n > 1);
      x = x + at::linear(y.view({1, kHeads, n, q.size(3)}).transpose(1, 2).flatten(2, 3), l.o);
      const auto m = at::rms_norm(x, {c_.hidden}, l.mlp_norm, 1e-6);
      x = x + at::linear(at::silu(at::linear(m, l.gate)) * at::linear(m, l.up), l.down);
    }
    length_ += n;
    return at::linear(at::rms_norm(x, {c_.hidden}, w_.at("norm.weight"), 1e-6), w_.at("lm_head.weight"));
  }
  void truncate(std::int64_t length) { length_ = length; }

 private:
  struct Layer {
    at::Tensor attn_norm, q, k, v, o, mlp_norm, gate, up, down, keys, values;
  };
  at::Tensor heads(const at::Tensor& x, std::int64_t count) const {
    return x.view({1, x.size(1), count, x.size(2) / count}).transpose(1, 2);
  }
  at::Tensor rotated(const at::Tensor& x) const {
    const std::int64_t half = x.size(3) / 2;
    const auto cos = cos_.narrow(0, length_, x.size(2)), sin = sin_.narrow(0, length_, x.size(2));
    const auto a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
    return at::cat({a * cos - b * sin, b * cos + a * sin}, 3);
  }

  DecoderConfig c_;
  std::map<std::string, at::Tensor> w_;
  std::vector<Layer> layers_;
  at::Tensor cos_, sin_;
  std::int64_t length_ = 0;
};

void measure(const dtensor::Communicator& world, std::int64_t hidden) {
  const at::NoGradGuard no_grad;
  Decoder ours(config_of(hidden));
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, slot] : ours.named_parameters()) weights[name] = slot->detach().clone();
  ManualDecoder manual(ours.config(), weights);
  const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {1}, {"tp"});
  parallelize(ours, mesh, tensor_parallel_plan(ours.config()));
  dtensor::nn::KVCache cache(ours.config().layers, kCapacity);
  const auto placed = [&](const at::Tensor& ids) {
    return dtensor::DTensor::from_local(ids, mesh, {dtensor::Replicate()}, ids.sizes());
  };
  const auto prompt = at::arange(kPrompt, at::kLong).unsqueeze(0), token = at::ones({1, 1}, at::kLong);
  const auto difference =
      (dtensor::DTensor(ours(placed(prompt), &cache)).to_local() - manual.forward(prompt)).abs().max();
  TORCH_CHECK(difference.item<double>() < 1e-4,
              "expected equal outputs of both models (difference below 1e-4), got a difference of ",
              difference.item<double>());
  ours(placed(token), &cache);
  const auto misses = dtensor::cache_stats().misses;
  const auto decode = [&](const auto& forward, auto& state) {
    state.truncate(kPrompt);
    for (std::int64_t i = 0; i < kTokens; ++i) forward();
  };
  const bench::Pair pair =
      bench::side_by_side([&] { decode([&] { manual.forward(token); }, manual); },
                          [&] { decode([&] { ours(placed(token), &cache); }, cache); }, 1, kRounds);
  std::printf(
      "hidden %4ld: %.1f us per token, hand-written %.1f us, ratio %.3f; cache misses after the first token: %lu\n",
      static_cast<long>(hidden), pair.ours / kTokens, pair.regular / kTokens, 1 + pair.overhead / pair.regular,
      static_cast<unsigned long>(dtensor::cache_stats().misses - misses));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](dtensor::Communicator world) {
    for (const std::int64_t hidden : {64, 256}) measure(world, hidden);
  });
}
