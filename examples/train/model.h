// The model: a GPT in plain ATen, written for one device. It decides the parameters' names, shapes and initial
// distribution and the arithmetic of the loss; it knows nothing of meshes, so the one-device reference and the
// distributed run call the same function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace train {

struct GptConfig {
  std::int64_t vocabulary = 257, hidden = 64, heads = 4, layers = 4, ffn = 256;
  double layer_norm_eps = 1e-5;
  double dropout = 0;  // on the embedding and on each residual branch
};

GptConfig tiny();      // the reference transformer of tests/data/transformer.json
GptConfig gpt_153m();  // Embedding(50257, 1024), 4 blocks, no bias, exact GELU

// How a fresh parameter is filled, as torch.nn does: normal(0, scale), uniform(-scale, scale) or a constant.
struct Init {
  enum class Kind : std::uint8_t { normal, uniform, constant };
  Kind kind = Kind::constant;
  double value = 0;
};

struct ParameterSpec {
  std::string name;  // as torch.nn would call it: h.0.attn.q_proj.weight
  std::vector<std::int64_t> sizes;
  Init init;
};

// In the order of torch.nn's named_parameters().
std::vector<ParameterSpec> parameter_specs(const GptConfig& config);
std::int64_t parameter_count(const GptConfig& config);

class Parameters {
 public:
  void add(std::string name, at::Tensor tensor);
  const at::Tensor& operator[](const std::string& name) const;
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Where those are kept whose names begin with `prefix`, for functions that place or exchange them.
  std::vector<std::pair<std::string, at::Tensor*>> slots(const std::string& prefix = "");

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

// What happens to the logits on their way to the loss: nothing by default, a redistribution where a plan says so.
using LogitsHook = std::function<at::Tensor(const at::Tensor&)>;

// Where a plan may take part in the model; empty: as on one device.
struct ModelHooks {
  // Named activation points: wte.out, for each block h.N.attn.in, h.N.attn.out, h.N.mlp.in, h.N.mlp.out, and
  // lm_head.in.
  std::function<at::Tensor(const std::string& point, const at::Tensor&)> at_point;
  // Runs a block, perhaps again in backward.
  using Block = std::function<at::Tensor(const at::Tensor&)>;
  std::function<at::Tensor(const Block&, const at::Tensor&)> run_block;
};

// ids and targets: int64 [batch, sequence]. Logits: [batch, sequence, vocabulary].
at::Tensor gpt_logits(const GptConfig& config, const Parameters& p, const at::Tensor& ids,
                      const ModelHooks& hooks = {});
// The mean cross entropy over all tokens, a scalar.
at::Tensor gpt_loss(const GptConfig& config, const Parameters& p, const at::Tensor& ids, const at::Tensor& targets,
                    const LogitsHook& on_logits = {}, const ModelHooks& hooks = {});

}  // namespace train
