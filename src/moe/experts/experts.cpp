// Experts: activations and grouped matrix products for packed or separate weights, and the weight cache for passes
// without gradients.
#include "moe/experts/experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "dtensor/nn/float8.h"
#include "dtensor/tensor.h"
#include "internal/activations.h"
#include "moe/counting.h"
#include "moe/experts/float8_experts.h"
#include "moe/local_function.h"
#include "moe/row_kernels.h"

namespace dtensor {

namespace {

void check_gate(const ExpertWeights& w, ExpertActivation activation) {
  TORCH_CHECK(w.w3.defined() == is_gated(activation), "experts: expected w3 for gated activations only, but w3 is ",
              w.w3.defined() ? "given" : "missing");
}

// Two batched products, for passes without gradients and equal counts.
at::Tensor run_packed(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeightCache::Packed& packed,
                      ExpertActivation activation) {
  const auto input = x.contiguous().view({static_cast<std::int64_t>(rows.size()), rows[0], x.size(1)});
  auto h = at::bmm(input, packed.up);
  if (is_gated(activation)) {
    const auto half = h.size(2) / 2;
    h = activate(h.narrow(2, 0, half), activation).mul_(h.narrow(2, half, half));
  } else {
    h = activate(h, activation);
  }
  return at::bmm(h, packed.down).view({x.size(0), packed.down.size(2)});
}

ExpertWeights pack(const std::vector<ExpertWeights>& experts) {
  std::vector<at::Tensor> w1, w2, w3;
  for (const auto& e : experts) {
    w1.push_back(e.w1);
    w2.push_back(e.w2);
    if (e.w3.defined()) w3.push_back(e.w3);
  }
  return {at::stack(w1), at::stack(w2), w3.empty() ? at::Tensor() : at::stack(w3)};
}

}  // namespace

at::Tensor moe::activate_expert(const at::Tensor& gate, const at::Tensor& up, ExpertActivation activation) {
  return up.defined() ? activate_gated(gate, up, activation) : activate(gate, activation);
}

at::Tensor run_expert(const at::Tensor& x, const ExpertWeights& w, ExpertActivation activation) {
  return run_expert(x, w, activation, [&](const at::Tensor& rows, const at::Tensor& weight, const RegatherWeight&) {
    // Scales of regular tensors would differ between ranks.
    const bool float8 = nn::Float8Scope::current() && is_dtensor(rows) && moe::fits_float8(rows, w);
    return float8 ? nn::float8_linear(rows, weight) : at::linear(rows, weight);
  });
}

at::Tensor run_expert(const at::Tensor& x, const ExpertWeights& w, ExpertActivation activation,
                      const LinearFunction& linear) {
  check_gate(w, activation);
  auto h = activate(linear(x, w.w1, w.regather1), activation);
  if (w.w3.defined()) h = h * linear(x, w.w3, w.regather3);
  return linear(h, w.w2, w.regather2);
}

at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeights& w, const ExpertOptions& options,
                       ExpertWeightCache* cache) {
  check_gate(w, options.activation);
  const bool batched = options.backend == ExpertBackend::automatic || options.backend == ExpertBackend::batched;
  if (cache != nullptr && batched && moe::all_equal(rows) && !moe::needs_graph(x, w.w1, w.w2, w.w3)) {
    moe::count(&MoeCounters::packed_weights);
    return run_packed(x, rows, cache->get(w), options.activation);
  }
  const bool grouped = !moe::all_equal(rows) && moe::prefers_grouped(x, w, options);
  if (grouped || options.backend == ExpertBackend::grouped) {
    const NoMeshScopeGuard regular;
    return run_grouped_experts(x, at::tensor(rows, at::kLong).to(x.device()), w, options);
  }
  const auto gate = grouped_mm(x, w.w1, rows, options.backend, w.regather1);
  const auto up = w.w3.defined() ? grouped_mm(x, w.w3, rows, options.backend, w.regather3) : at::Tensor();
  return grouped_mm(moe::activate_expert(gate, up, options.activation), w.w2, rows, options.backend, w.regather2);
}

at::Tensor run_grouped_experts(const at::Tensor& x, const at::Tensor& counts, const ExpertWeights& w,
                               const ExpertOptions& options) {
  check_gate(w, options.activation);
  if (x.size(0) == 0) {
    const std::vector<std::int64_t> none(static_cast<std::size_t>(counts.size(0)));
    return run_experts(x, none, w, {.activation = options.activation, .backend = ExpertBackend::loop});
  }
  const auto groups = align_groups(counts, x.size(0), std::max<std::int64_t>(options.block, 1));
  moe::count(&MoeCounters::aligned_passes);
  moe::count(&MoeCounters::aligned_rows, groups.rows);
  const auto spread = groups.pad(x);
  const auto gate = grouped_mm(spread, w.w1, groups, w.regather1);
  const auto up = w.w3.defined() ? grouped_mm(spread, w.w3, groups, w.regather3) : at::Tensor();
  return groups.unpad(grouped_mm(moe::activate_expert(gate, up, options.activation), w.w2, groups, w.regather2));
}

at::Tensor run_experts(const at::Tensor& x, at::IntArrayRef rows, const std::vector<ExpertWeights>& experts,
                       const ExpertOptions& options) {
  TORCH_CHECK(rows.size() == experts.size() && c10::sum_integers(rows) == x.size(0), "experts: rows ", rows, " of ",
              x.sizes(), " for ", experts.size(), " experts");
  const bool loop =
      options.backend == ExpertBackend::loop || (options.backend == ExpertBackend::automatic && !moe::all_equal(rows));
  if (!loop) return run_experts(x, rows, pack(experts), options);
  const auto parts = x.split_with_sizes(rows, 0);
  std::vector<at::Tensor> results;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    results.push_back(run_expert(parts[e], experts[e], options.activation));
  }
  return at::cat(results);
}

struct ExpertWeightCache::Key {
  struct One {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;                  // weak references prevent reuse of the addresses
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;  // differs after set_data
    std::uint64_t version;
  };
  std::vector<One> ones;

  static std::vector<at::Tensor> list(const ExpertWeights& w) {
    if (!w.parameters.empty()) return w.parameters;
    return w.w3.defined() ? std::vector<at::Tensor>{w.w1, w.w2, w.w3} : std::vector<at::Tensor>{w.w1, w.w2};
  }
  // The generation of a DTensor counts writes and replaced data.
  static One describe(const at::Tensor& t) {
    One one{c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr()), {}, 0};
    if (is_dtensor(t)) {
      one.version = DTensor(t).generation();
    } else {
      one.memory = t.storage().getWeakStorageImpl();
      one.version = t.is_inference() ? 0 : t._version();
    }
    return one;
  }
  void set(const ExpertWeights& w) {
    ones.clear();
    for (const auto& t : list(w)) ones.push_back(describe(t));
  }
  bool holds(const ExpertWeights& w) const {
    const auto tensors = list(w);
    if (ones.size() != tensors.size()) return false;
    for (std::size_t i = 0; i < ones.size(); ++i) {
      // Inference tensors have no version counter, so changes cannot be detected.
      if (tensors[i].is_inference() || ones[i].tensor.expired()) return false;
      const auto now = describe(tensors[i]);
      const auto target = [](const auto& weak) { return weak._unsafe_get_target(); };
      if (target(ones[i].tensor) != target(now.tensor) || ones[i].version != now.version) return false;
      if (ones[i].memory.has_value() != now.memory.has_value()) return false;
      if (now.memory && target(*ones[i].memory) != target(*now.memory)) return false;
    }
    return true;
  }
};

ExpertWeightCache::ExpertWeightCache() : key_(std::make_unique<Key>()) {}
ExpertWeightCache::~ExpertWeightCache() = default;

const ExpertWeightCache::Packed& ExpertWeightCache::get(const ExpertWeights& w) {
  if (key_->holds(w)) {
    ++hits_;
    return packed_;
  }
  ++misses_;
  const at::NoGradGuard no_grad;
  const auto up = w.w3.defined() ? at::cat({w.w1, w.w3}, 1) : w.w1;
  packed_ = {up.transpose(1, 2).contiguous(), w.w2.transpose(1, 2).contiguous()};
  key_->set(w);
  return packed_;
}

void ExpertWeightCache::clear() {
  packed_ = {};
  key_->ones.clear();
}

namespace {

struct ScaleBackward final : moe::Node {
  explicit ScaleBackward(at::Tensor f) : factor(std::move(f)) {}
  moe::variable_list apply(moe::variable_list&& grads) override {
    return {grads[0].defined() ? grads[0] * factor.to(grads[0].scalar_type()) : at::Tensor()};
  }
  std::string name() const override { return "ScaleExpertGradientsBackward"; }
  at::Tensor factor;
};

}  // namespace

at::Tensor scale_expert_gradients(const at::Tensor& weight, const at::Tensor& load, const at::Tensor& mean) {
  TORCH_CHECK(load.dim() == 1 && load.size(0) == weight.size(0),
              "scale_expert_gradients: expected load [experts], got ", load.sizes(), " for a weight of sizes ",
              weight.sizes());
  if (!moe::needs_graph(weight)) return weight;
  at::Tensor factor, result;
  {
    const LocalBelowAutogradGuard guard;
    const auto loads = load.to(at::kDouble);
    factor = at::where(loads > 0, mean.to(at::kDouble) / loads, 1.0).view({-1, 1, 1}).to(weight.device());
    result = weight.view(weight.sizes());
  }
  return moe::with_node(result, moe::make_node<ScaleBackward>(factor), weight);
}

}  // namespace dtensor
