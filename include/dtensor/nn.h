// A small base for models: named parameters, buffers, children and activation points, and the layers that transformers
// need. Written in plain ATen for one device; where its tensors live is decided elsewhere (a MeshScope around the
// constructor, distribute(), parallelize(), fully_shard()). Any type that lists NamedTensors serves as well.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/named_tensors.h"
#include "dtensor/placement.h"

namespace dtensor {

namespace nn {

// Brings an activation where a plan wants it.
using Constraint = std::function<at::Tensor(const at::Tensor&)>;

// Derive from it, keep tensors and modules as members, and register them by name in the constructor. Members are listed
// by address, so modules neither copy nor move.
class DTENSOR_API Module {
 public:
  Module();
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // In the order of registration, own before children. Undefined ones (no bias) are left out.
  NamedTensors named_parameters(const std::string& prefix = "");
  NamedTensors named_buffers(const std::string& prefix = "");
  std::vector<at::Tensor> parameters();  // each tensor once
  // Direct children, and all modules with their full names (this one first, named `prefix`).
  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  std::vector<std::pair<std::string, Module*>> named_modules(const std::string& prefix = "");

  // Sets the mode of this module and those below it: dropout and the like look at it.
  Module& train(bool on = true);
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }

  // Fills the module's own tensors as the constructor does; then its children's.
  void reset();
  virtual void reset_parameters() {}

  // Makes every plain parameter and buffer a DTensor there; each rank keeps its part. Tensors on the meta device get
  // memory for their part only and are to be filled by reset(). DTensors are redistributed in place. Tied tensors stay
  // tied.
  using PlacementFn = std::function<Placements(const std::string& name, const at::Tensor& tensor)>;
  void distribute(const DeviceMesh& mesh, const PlacementFn& place);

  // The dimension of a parameter that indexes output (input) features, for column-wise (row-wise) parallelism; -1:
  // none. By default 0 and 1, as Linear and convolutions have it.
  virtual std::int64_t output_dim(const std::string& parameter) const;
  virtual std::int64_t input_dim(const std::string& parameter) const;

  // Activation points: places in forward() at which a plan may constrain an activation. Every module has "in" and
  // "out".
  std::vector<std::string> activation_points() const;
  void set_constraint(const std::string& point, Constraint constraint);  // empty: none
  const Constraint& constraint(const std::string& point);                // empty: none

  const std::string& name() const { return name_; }  // in its parent

 protected:
  void register_parameter(std::string name, at::Tensor& member);  // requires_grad is set
  // As register_parameter, without a gradient; a module below this one; a point besides "in" and "out".
  void register_buffer(std::string name, at::Tensor& member);
  void register_module(std::string name, Module& child);
  void register_activation(std::string point);
  at::Tensor constrain(const char* point, const at::Tensor& x) const;  // x itself where no plan says more
  // For reset_parameters(): uniform(-1/sqrt(inputs), 1/sqrt(inputs)), and one value everywhere. Tensors that are
  // undefined or on the meta device stay as they are.
  static void reset_uniform(const at::Tensor& tensor, std::int64_t inputs);
  static void reset_to(const at::Tensor& tensor, double value);

 private:
  Constraint& own_constraint(const std::string& point);

  std::vector<std::pair<std::string, at::Tensor*>> parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::pair<std::string, Constraint>> points_;
  std::string name_;
  bool training_ = true;
};

// Replaces each tensor of `tensors` as Module::distribute does, whoever keeps it.
DTENSOR_API void distribute(const NamedTensors& tensors, const DeviceMesh& mesh, const Module::PlacementFn& place);

// y = x W^T + b; weight [out, in], both uniform(-1/sqrt(in), 1/sqrt(in)) as torch.nn.Linear.
class DTENSOR_API Linear final : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias = true, at::TensorOptions options = {});
  // [..., in] to [..., out].
  at::Tensor forward(const at::Tensor& x) const;
  void reset_parameters() override;
  // Parameters; no bias: undefined.
  at::Tensor weight, bias;
};

// weight [count, size] ~ normal(0, 1), the padding row zero, as torch.nn.Embedding.
class DTENSOR_API Embedding final : public Module {
 public:
  Embedding(std::int64_t count, std::int64_t size, std::int64_t padding_idx = -1, at::TensorOptions options = {});
  // int64 of any sizes to one dimension more.
  at::Tensor forward(const at::Tensor& ids) const;
  void reset_parameters() override;
  std::int64_t output_dim(const std::string&) const override { return 1; }
  std::int64_t input_dim(const std::string&) const override { return 0; }
  // A parameter.
  at::Tensor weight;

 private:
  std::int64_t padding_idx_;
};

// at::layer_norm over the last dimension, of that size, where x may be narrower than weight and bias (which mixed
// precision keeps in float): computed in their type and given in x's, as the CPU's kernel does; a GPU's refuses that.
DTENSOR_API at::Tensor layer_norm(const at::Tensor& x, std::int64_t size, const at::Tensor& weight,
                                  const at::Tensor& bias, double eps);

// Mean and variance over the last dimension, as torch.nn.LayerNorm.
class DTENSOR_API LayerNorm final : public Module {
 public:
  explicit LayerNorm(std::int64_t size, double eps = 1e-5, bool bias = true, at::TensorOptions options = {});
  // [..., size], over the last dimension.
  at::Tensor forward(const at::Tensor& x) const;
  void reset_parameters() override;
  // Parameters; no bias: undefined.
  at::Tensor weight, bias;

 private:
  std::int64_t size_;
  double eps_;
};

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, as torch.nn.RMSNorm.
class DTENSOR_API RMSNorm final : public Module {
 public:
  explicit RMSNorm(std::int64_t size, double eps = 1e-6, at::TensorOptions options = {});
  // [..., size], over the last dimension.
  at::Tensor forward(const at::Tensor& x) const;
  void reset_parameters() override;
  // A parameter.
  at::Tensor weight;

 private:
  std::int64_t size_;
  double eps_;
};

// Scaled dot-product attention on [batch, sequence, hidden]. kv_heads < heads: grouped queries. A mask (true: seen), of
// any shape that broadcasts to [batch, heads, sequence, sequence], says all that may be seen: `causal` is not added.
// Documents (AttentionOptions::row_cu_seqlens, int64 [batch, D]) do not see each other; `causal` and a mask hold
// beside.
class DTENSOR_API Attention final : public Module {
 public:
  // Of the layer.
  struct Options {
    // Features, and heads of queries, which divide them.
    std::int64_t hidden = 0, heads = 1;
    std::int64_t kv_heads = 0;  // 0: heads
    // Biases of the projections; whether a token sees no later one.
    bool bias = false, causal = true;
    // Queries and keys are rotated by their position in the sequence: the pair of elements i and i + size / 2 of a head
    // by position * rope ** (-2 i / size) (RoFormer, arXiv:2104.09864; halves paired as in GPT-NeoX). 0: not rotated.
    double rope = 0;
    at::TensorOptions tensor = {};
  };
  explicit Attention(const Options& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask = {}, const at::Tensor& documents = {}) const;
  Linear q_proj, k_proj, v_proj, o_proj;

 private:
  Options options_;
};

// Of MLP.
enum class Activation : std::uint8_t { gelu, swiglu };

// gelu: down(gelu(up(x))). swiglu: down(silu(gate(x)) * up(x)).
class DTENSOR_API MLP final : public Module {
 public:
  // Of the layer.
  struct Options {
    // Features outside and inside, which activation, biases, dtype and device.
    std::int64_t hidden = 0, ffn = 0;
    Activation activation = Activation::gelu;
    bool bias = false;
    at::TensorOptions tensor = {};
  };
  explicit MLP(const Options& options);
  at::Tensor forward(const at::Tensor& x) const;
  std::unique_ptr<Linear> gate_proj;  // swiglu only
  Linear up_proj, down_proj;

 private:
  Activation activation_;
};

// x + attn(norm(x)), then + mlp(norm(x)).
class DTENSOR_API Block final : public Module {
 public:
  Block(const Attention::Options& attention, const MLP::Options& mlp);
  // [batch, sequence, hidden].
  at::Tensor forward(const at::Tensor& x) const;
  // Its parts, in the order of their use.
  LayerNorm ln1;
  Attention attn;
  LayerNorm ln2;
  MLP mlp;
};

// Rotary positions (RoFormer, arXiv:2104.09864): pairs of elements of a head are turned by angles that grow with the
// token's position, and the usual ways to reach beyond the positions that a model was trained on.

// How far positions reach.
enum class RopeScaling : std::uint8_t {
  none,
  linear,    // positions are divided by `factor` (arXiv:2306.15595)
  dynamic,   // the base grows with the sequence once it exceeds max_positions ("dynamic NTK")
  yarn,      // low frequencies are divided by `factor`, high ones are not, between them a ramp (arXiv:2309.00071)
  longrope,  // a divisor for each frequency, one list for short and one for long sequences (arXiv:2402.13753)
  llama3,    // as yarn, the ramp over wavelengths (Llama 3.1)
};

// Which elements are turned, and how fast.
struct RopeOptions {
  std::int64_t size = 0;  // elements of a head that are turned, its first ones; even
  // Pair i turns by position * base ** (-2 i / size).
  double base = 10000;
  bool interleaved = false;        // elements 2 i and 2 i + 1 are a pair; else i and i + size / 2
  std::int64_t max_positions = 0;  // of the model, scaling included (dynamic)
  // How far positions reach, and by what factor.
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  std::int64_t original_positions = 0;           // trained on, without scaling (yarn, longrope, llama3)
  double beta_fast = 32, beta_slow = 1;          // yarn: turns over the original positions where the ramp ends
  bool truncate = true;                          // yarn: the ramp's ends are whole numbers
  double mscale = 0, mscale_all_dim = 0;         // yarn: both set, of the attention factor
  double low_frequency = 1, high_frequency = 4;  // llama3: original_positions over wavelength, the ramp's ends
  std::vector<double> short_factors = {}, long_factors = {};  // longrope: [size / 2]
  std::optional<double> attention_factor = {};  // multiplies sine and cosine; by default the scaling's own
};

// The angles of positions, and turning by them.
class DTENSOR_API Rope {
 public:
  explicit Rope(RopeOptions options);  // an error where the options contradict each other
  // As given.
  const RopeOptions& options() const { return options_; }

  // [size / 2] float64 on the CPU: radians from one position to the next, for a sequence of `length` tokens.
  at::Tensor frequencies(std::int64_t length) const;
  double attention_factor() const;

  // Of a run of positions.
  struct Angles {
    at::Tensor cos, sin;  // [count, size / 2], the attention factor in them
  };
  // Of the positions first .. first + count - 1. Plain tensors: ranks that hold part of a sequence or of the heads take
  // what they need.
  Angles angles(std::int64_t first, std::int64_t count, at::TensorOptions like) const;
  // x: [batch, heads, count, E] with E >= size.
  at::Tensor rotate(const at::Tensor& x, const Angles& angles) const;

 private:
  Angles make(std::int64_t first, std::int64_t count, std::int64_t length, at::TensorOptions like) const;

  RopeOptions options_;
  mutable Angles kept_;  // of the positions from 0 on, where they do not depend on the length
};

}  // namespace nn
}  // namespace dtensor
