// The layers of transformers, as modules (dtensor/nn/module.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/nn/module.h"

namespace dtensor {

namespace nn {

// y = x W^T + b; weight [out, in], both uniform(-1/sqrt(in), 1/sqrt(in)) as torch.nn.Linear. With a low-rank adapter
// (LoRA, arXiv:2106.09685): y + alpha / rank * B A x, A uniform as the weight, B zero.
class DTENSOR_API Linear final : public Layer<Linear> {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias = true, at::TensorOptions options = {});
  // Adds an adapter, before the model is distributed; initializes it, if there is one.
  void adapt(std::int64_t rank, double alpha);
  void reset_adapter();
  // The weight with the adapter merged in; without an adapter, the weight itself.
  at::Tensor merged() const;
  // [..., in] to [..., out].
  at::Tensor forward(const at::Tensor& x) const { return without_hooks(x); }
  at::Tensor compute(const at::Tensor& x) const;
  void reset_parameters() override;
  std::int64_t output_dim(const std::string& parameter) const override;
  std::int64_t input_dim(const std::string& parameter) const override;
  // Parameters; undefined without a bias, or without an adapter: lora_a [rank, in], lora_b [out, rank].
  at::Tensor weight, bias, lora_a, lora_b;

 private:
  double lora_scale_ = 0;
};

// weight [count, size] ~ normal(0, 1), the padding row zero, as torch.nn.Embedding.
class DTENSOR_API Embedding final : public Layer<Embedding> {
 public:
  Embedding(std::int64_t count, std::int64_t size, std::int64_t padding_idx = -1, at::TensorOptions options = {});
  // int64 of any shape; the result has one more dimension.
  at::Tensor forward(const at::Tensor& ids) const { return without_hooks(ids); }
  at::Tensor compute(const at::Tensor& ids) const;
  void reset_parameters() override;
  std::int64_t output_dim(const std::string&) const override { return 1; }
  std::int64_t input_dim(const std::string&) const override { return 0; }
  // A parameter.
  at::Tensor weight;

 private:
  std::int64_t padding_idx_;
};

// at::layer_norm over the last dimension, of size `size`. x may have a narrower dtype than weight and bias, which mixed
// precision keeps in float: the result is computed in their dtype and returned in x's, as ATen's CPU kernel does.
// (ATen's GPU kernel does not accept mixed dtypes. DTensors have a kernel that does; a regular x is copied to float.)
DTENSOR_API at::Tensor layer_norm(const at::Tensor& x, std::int64_t size, const at::Tensor& weight,
                                  const at::Tensor& bias, double eps);

// Mean and variance over the last dimension, as torch.nn.LayerNorm.
class DTENSOR_API LayerNorm final : public Layer<LayerNorm> {
 public:
  explicit LayerNorm(std::int64_t size, double eps = 1e-5, bool bias = true, at::TensorOptions options = {});
  // [..., size], over the last dimension.
  at::Tensor forward(const at::Tensor& x) const { return without_hooks(x); }
  at::Tensor compute(const at::Tensor& x) const;
  void reset_parameters() override;
  // Parameters; `bias` is undefined without a bias.
  at::Tensor weight, bias;

 private:
  std::int64_t size_;
  double eps_;
};

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, as torch.nn.RMSNorm.
class DTENSOR_API RMSNorm final : public Layer<RMSNorm> {
 public:
  explicit RMSNorm(std::int64_t size, double eps = 1e-6, at::TensorOptions options = {});
  // [..., size], over the last dimension.
  at::Tensor forward(const at::Tensor& x) const { return without_hooks(x); }
  at::Tensor compute(const at::Tensor& x) const;
  void reset_parameters() override;
  // A parameter.
  at::Tensor weight;

 private:
  std::int64_t size_;
  double eps_;
};

// Rotary position embeddings (RoFormer, arXiv:2104.09864): pairs of elements of a head are rotated by angles
// proportional to the token's position. Includes the usual extensions to longer sequences than those of training.

// How frequencies are scaled for longer sequences.
enum class RopeScaling : std::uint8_t {
  none,
  linear,    // positions are divided by `factor` (arXiv:2306.15595)
  dynamic,   // the base grows with the sequence once it exceeds max_positions ("dynamic NTK")
  yarn,      // low frequencies are divided by `factor`, high ones are not, between them a ramp (arXiv:2309.00071)
  longrope,  // a divisor for each frequency, one list for short and one for long sequences (arXiv:2402.13753)
  llama3,    // as yarn, the ramp over wavelengths (Llama 3.1)
};

// Which elements are rotated, and by which frequencies.
struct RopeOptions {
  std::int64_t size = 0;  // how many leading elements of a head are rotated; even
  // Pair i is rotated by position * base ** (-2 i / size).
  double base = 10000;
  bool interleaved = false;        // elements 2 i and 2 i + 1 are a pair; else i and i + size / 2
  std::int64_t max_positions = 0;  // of the model, including scaling (dynamic)
  // Method and factor of scaling.
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  std::int64_t original_positions = 0;           // in training, before scaling (yarn, longrope, llama3)
  double beta_fast = 32, beta_slow = 1;          // yarn: rotations over the original positions at the ramp's ends
  bool truncate = true;                          // yarn: the ramp's ends are rounded to integers
  double mscale = 0, mscale_all_dim = 0;         // yarn: if both are set, they give the attention factor
  double low_frequency = 1, high_frequency = 4;  // llama3: original_positions / wavelength at the ramp's ends
  std::vector<double> short_factors = {}, long_factors = {};  // longrope: [size / 2]
  std::optional<double> attention_factor = {};  // multiplies sine and cosine; default: that of the scaling
};

// Computes the angles of positions and rotates by them.
class DTENSOR_API Rope {
 public:
  explicit Rope(RopeOptions options);  // throws if the options contradict each other
  // The options of the constructor.
  const RopeOptions& options() const { return options_; }

  // [size / 2] float64 on the CPU: radians from one position to the next, for a sequence of `length` tokens.
  at::Tensor frequencies(std::int64_t length) const;
  double attention_factor() const;

  // Angles of consecutive positions.
  struct Angles {
    at::Tensor cos, sin;  // [count, size / 2], multiplied by the attention factor
  };
  // Angles of the positions first .. first + count - 1. They are regular tensors: ranks that store part of the sequence
  // or of the heads slice them.
  Angles angles(std::int64_t first, std::int64_t count, at::TensorOptions like) const;
  // x: [batch, heads, count, E] with E >= size.
  at::Tensor rotate(const at::Tensor& x, const Angles& angles) const;

 private:
  Angles make(std::int64_t first, std::int64_t count, std::int64_t length, at::TensorOptions like) const;

  RopeOptions options_;
  mutable Angles kept_;  // from position 0, if they do not depend on the length
};

// Scaled dot-product attention on [batch, sequence, hidden]; kv_heads < heads is grouped-query attention. A mask (true:
// visible) of any shape that broadcasts to [batch, heads, sequence, sequence] replaces `causal`. Documents
// (AttentionOptions::row_cu_seqlens, int64 [batch, D]) do not attend to each other, in addition to `causal` or a mask.
class DTENSOR_API Attention final : public Layer<Attention> {
 public:
  // Options of the layer.
  struct Options {
    // Number of features, and of query heads, which must divide it.
    std::int64_t hidden = 0, heads = 1;
    std::int64_t kv_heads = 0;  // 0: heads
    // Whether projections have biases; whether a token attends to no later one.
    bool bias = false, causal = true;
    double rope = 0;  // the base of a Rope of queries and keys; 0: none
    at::TensorOptions tensor = {};
  };
  explicit Attention(const Options& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask = {}, const at::Tensor& documents = {}) const {
    return without_hooks(x, mask, documents);
  }
  // What a call runs; the projections.
  at::Tensor compute(const at::Tensor& x, const at::Tensor& mask = {}, const at::Tensor& documents = {}) const;
  Linear q_proj, k_proj, v_proj, o_proj;

 private:
  Options options_;
  std::optional<Rope> rope_;
};

// Activation functions of MLPs and experts. Gated ones have a third weight: down(f(gate(x)) * up(x)), others
// down(f(up(x))).
enum class Activation : std::uint8_t {
  swiglu,     // gated, f = silu
  geglu,      // gated, f = gelu
  glu,        // gated, f = sigmoid
  gelu,       // exact
  silu,       // x sigmoid(x)
  relu,       // max(x, 0)
  gelu_tanh,  // gelu by tanh
};
// Whether the result of the activation multiplies another projection of the input.
DTENSOR_API bool is_gated(Activation activation);

// down(activation(up(x))), or with a gate: down(activation(gate(x)) * up(x)).
class DTENSOR_API MLP final : public Layer<MLP> {
 public:
  // Options of the layer.
  struct Options {
    // Input and inner features, activation function, biases, dtype and device.
    std::int64_t hidden = 0, ffn = 0;
    Activation activation = Activation::gelu;
    bool bias = false;
    at::TensorOptions tensor = {};
    bool gated = false;  // a gate for an activation that is not gated by itself
  };
  explicit MLP(const Options& options);
  at::Tensor forward(const at::Tensor& x) const { return without_hooks(x); }
  at::Tensor compute(const at::Tensor& x) const;
  std::unique_ptr<Linear> gate_proj;  // null without a gate
  Linear up_proj, down_proj;

 private:
  Activation activation_;
};

// A transformer block: x + attn(norm(x)), then + mlp(norm(x)).
class DTENSOR_API Block final : public Layer<Block> {
 public:
  Block(const Attention::Options& attention, const MLP::Options& mlp);
  // [batch, sequence, hidden].
  at::Tensor forward(const at::Tensor& x) const { return without_hooks(x); }
  at::Tensor compute(const at::Tensor& x) const;
  // Submodules in the order of their use.
  LayerNorm ln1;
  Attention attn;
  LayerNorm ln2;
  MLP mlp;
};

// The tree of modules with their types and tensors: sizes and dtypes, and the placements of DTensors. Consecutive
// children with equal texts are one entry. No communication.
DTENSOR_API std::string to_string(Module& module);
DTENSOR_API std::ostream& operator<<(std::ostream& out, Module& module);

}  // namespace nn
}  // namespace dtensor
