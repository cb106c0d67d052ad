// The formulas, and the layer in every variant.
#include "twin.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "dtensor/dtensor.h"
#include "dtensor/moe.h"
#include "dtensor/optim.h"
#include "train/layouts/larger.h"

namespace dmoe {

using namespace dtensor;
using train::max_propagate_nan;

namespace {

constexpr std::int64_t kHidden = 256, kExperts = 8, kTopK = 2, kRowsPerRank = 2, kSequence = 3;

at::Tensor uniform(at::IntArrayRef sizes, std::uint64_t seed, const at::TensorOptions& options) {  // (-1, 1)
  std::mt19937_64 engine(seed);
  auto values = at::empty(sizes, at::kDouble);
  auto* out = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) out[i] = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;
  return values.to(options);
}

at::Tensor batch(int step, int ranks, const at::TensorOptions& options) {
  return uniform({kRowsPerRank * ranks, kSequence, kHidden}, 100 + step, options);
}

at::Tensor loss_of(const at::Tensor& y, int ranks) {
  return y.square().sum() * (1.0 / static_cast<double>(kRowsPerRank * ranks * kSequence * kHidden));
}

at::Tensor full(const at::Tensor& t) {
  return (is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach()).to(at::kDouble).clone();
}

// Router [E, D], w1 and v1 [E, F, D], w2 [E, D, F], in the order of the layer's parameters.
struct Formulas {
  std::vector<at::Tensor> parameters;

  explicit Formulas(const at::TensorOptions& options) {
    const std::vector<std::vector<std::int64_t>> sizes = {
        {kExperts, kHidden}, {kExperts, kHidden, kHidden}, {kExperts, kHidden, kHidden}, {kExperts, kHidden, kHidden}};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      parameters.push_back(uniform(sizes[i], 11 + i, options).requires_grad_());
    }
  }

  // Runs every expert on every token; experts that a token did not choose have weight 0. The router and the sum are in
  // float.
  at::Tensor operator()(const at::Tensor& x) const {
    const auto &router = parameters[0], &w1 = parameters[1], &w2 = parameters[2], &v1 = parameters[3];
    const auto p = at::softmax(at::matmul(x.to(at::kFloat), router.to(at::kFloat).t()), -1);
    const auto [best, chosen] = at::topk(p, kTopK, -1);
    const auto weights = best / best.sum(-1, /*keepdim=*/true);
    auto y = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const auto h = at::gelu(at::matmul(x, w1[e].t())) * at::matmul(x, v1[e].t());
      y = y + at::matmul(h, w2[e].t()).to(at::kFloat) * (weights * (chosen == e)).sum(-1, /*keepdim=*/true);
    }
    return y.to(x.scalar_type());
  }
};

using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Job {
  std::vector<at::Tensor> parameters;
  Forward forward;                                      // From the full batch to this rank's output.
  std::function<at::Tensor(const at::Tensor&)> gather;  // From that output to the full one.
  std::function<void()> after_backward;
};

TrainingRun train(const Job& job, int ranks, const at::TensorOptions& options) {
  AdamW optimizer(job.parameters, {.lr = 1e-2});
  TrainingRun course;
  for (int step = 0; step < kSteps; ++step) {
    const auto y = job.forward(batch(step, ranks, options));
    loss_of(y, ranks).backward();
    if (job.after_backward) job.after_backward();
    course.outputs.push_back(job.gather(y.detach()));
    for (const auto& p : job.parameters) {
      if (step == 0) course.gradients.push_back(full(p.grad()));
    }
    course.norms.push_back(clip_grad_norm_(job.parameters, 1.0).item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& p : job.parameters) course.parameters.push_back(full(p));
  return course;
}

TrainingRun run_formulas(const Communicator& world, bool parallel, const at::TensorOptions& options) {
  const Formulas formulas(options);
  Job job{formulas.parameters, formulas, full, {}};
  if (parallel) {
    job.forward = [&](const at::Tensor& x) { return formulas(x.chunk(world.size())[world.rank()]); };
    job.gather = [&](const at::Tensor& y) {
      return all_gather_rows(y, std::vector<std::int64_t>(world.size(), y.size(0)), world).to(at::kDouble);
    };
    job.after_backward = [&] {
      for (const auto& p : formulas.parameters) {
        auto gradient = p.grad();
        world.all_reduce(gradient, ReduceOp::sum).wait();
      }
    };
  }
  return train(job, world.size(), options);
}

MoeOptions layer_options(const at::TensorOptions& options) {
  MoeOptions o;
  o.hidden = o.ffn = kHidden;
  o.router.experts = kExperts;
  o.router.top_k = kTopK;
  o.router.normalize = true;
  o.experts.activation = ExpertActivation::geglu;
  o.tensor = options;
  return o;
}

void place(MixtureOfExperts& layer, Variant form, const DeviceMesh& mesh) {
  if (form == Variant::one_mesh) {
    return layer.distribute(mesh.flatten("fsdp"),
                            [](const auto&, const auto&) { return Placements{Shard(0).as_storage()}; });
  }
  const bool slices = form == Variant::slices;
  apply_expert_parallel(layer, slices ? mesh["expert_parallel"] : mesh,
                        {.ep = "expert_parallel", .edp = "weight_parallel"});
  nn::distribute({{"gate.weight", &layer.gate.weight}}, slices ? mesh["weight_parallel"] : mesh,
                 [&](const auto&, const auto&) {
                   return slices ? Placements{Shard(0)} : Placements{Shard(0).as_storage(), Replicate()};
                 });
}

TrainingRun run_layer(const Communicator& world, Variant form, const at::TensorOptions& options) {
  const auto mesh =
      init_device_mesh(world, options.device().type(), {1, world.size()}, {"weight_parallel", "expert_parallel"});
  MixtureOfExperts layer(layer_options(options));
  const Formulas values(options);
  std::size_t i = 0;
  for (const auto& [name, p] : layer.named_parameters())
    *p = values.parameters.at(i++).detach().clone().requires_grad_();
  place(layer, form, mesh);
  const auto forward = [&](const at::Tensor& x) -> at::Tensor {
    if (form == Variant::slices) return layer(x.chunk(world.size())[world.rank()].clone());
    if (form == Variant::one_mesh) return layer(distribute_tensor(x, mesh.flatten("fsdp"), {Shard(0)}));
    return layer(distribute_tensor(x, mesh, {Shard(0), Shard(0)}));
  };
  const auto gather = [&](const at::Tensor& y) {
    if (is_dtensor(y)) return full(y);
    return all_gather_rows(y, std::vector<std::int64_t>(world.size(), y.size(0)), world).to(at::kDouble);
  };
  return train({layer.parameters(), forward, gather, {}}, world.size(), options);
}

double apart(const at::Tensor& got, const at::Tensor& wanted) {
  return (got - wanted).norm().item<double>() / wanted.norm().item<double>();
}

}  // namespace

const std::vector<Variant>& distributed_variants() {
  static const std::vector<Variant> forms = {Variant::data_parallel, Variant::two_axes, Variant::one_mesh,
                                             Variant::slices};
  return forms;
}

std::string name_of(Variant form) {
  switch (form) {
    case Variant::one_device:
      return "formulas, one device";
    case Variant::data_parallel:
      return "formulas, data parallel";
    case Variant::two_axes:
      return "experts split, router replicated";
    case Variant::one_mesh:
      return "all Shard(0) on one mesh";
    case Variant::slices:
      return "router and experts on slices";
  }
  return "?";
}

TrainingRun run(const Communicator& world, Variant form, const at::TensorOptions& options) {
  TORCH_CHECK(kExperts % world.size() == 0, "dmoe: expected a number of ranks that divides ", kExperts,
              " experts, got ", world.size());
  const bool formulas = form == Variant::one_device || form == Variant::data_parallel;
  return formulas ? run_formulas(world, form == Variant::data_parallel, options) : run_layer(world, form, options);
}

double Difference::largest() const {
  return max_propagate_nan(max_propagate_nan(output, gradient), max_propagate_nan(norm, parameter));
}

Difference difference(const TrainingRun& course, const TrainingRun& reference) {
  Difference d;
  for (std::size_t i = 0; i < reference.outputs.size(); ++i) {
    d.output = max_propagate_nan(d.output, apart(course.outputs.at(i), reference.outputs[i]));
    d.norm = max_propagate_nan(d.norm, std::abs(course.norms.at(i) / reference.norms[i] - 1));
  }
  for (std::size_t i = 0; i < reference.gradients.size(); ++i) {
    d.gradient = max_propagate_nan(d.gradient, apart(course.gradients.at(i), reference.gradients[i]));
    d.parameter = max_propagate_nan(d.parameter, apart(course.parameters.at(i), reference.parameters[i]));
  }
  return d;
}

double bound(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 2e-2; }

}  // namespace dmoe
