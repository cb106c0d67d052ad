// Negative log-likelihood over split classes and batches against the ATen operator: weights, ignored targets, every
// reduction, ranks and batches without a valid target.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Loss {
  std::vector<std::int64_t> mesh = any_mesh();
  int form = static_cast<int>(pick(0, 2));  // (C), (N, C), (N, C, H, W)
  std::int64_t classes = pick(1, 6);
  std::vector<std::int64_t> batch = form == 0   ? std::vector<std::int64_t>{}
                                    : form == 1 ? std::vector<std::int64_t>{pick(0, 6)}
                                                : std::vector<std::int64_t>{pick(1, 3), pick(1, 3), pick(1, 2)};
  at::ScalarType type = any_float();
  std::int64_t ignore = pick(0, 2) == 0 ? pick(0, classes - 1) : -100;
  std::int64_t reduction = pick(0, 2);
  at::Tensor self = at::randn(self_sizes()).to(type);
  at::Tensor target = any_target();
  c10::IValue weight = flip() ? c10::IValue(at::rand({classes}).to(type)) : c10::IValue();
  std::int64_t class_dim = form == 0 ? 0 : 1;
  std::vector<int> role = roles();  // per axis: 0 nothing, 1 classes, 2 batch
  bool weight_split = flip();

  std::vector<std::int64_t> self_sizes() const {
    auto sizes = batch;
    sizes.insert(sizes.begin() + (form == 0 ? 0 : 1), classes);
    return sizes;
  }
  at::Tensor any_target() const {
    auto t = at::randint(classes, batch, at::kLong);
    const int kind = static_cast<int>(pick(0, 4));
    if (kind == 0) return t.fill_(ignore);
    return kind == 1 ? t.masked_fill_(at::rand(batch).lt(0.5), ignore) : t;
  }
  std::vector<int> roles() const {
    std::vector<int> r(mesh.size());
    for (auto& x : r) x = static_cast<int>(pick(0, form == 0 ? 1 : 2));
    return r;
  }
  Placements by_role(const Placement& nothing, const Placement& by_class, const Placement& by_batch) const {
    Placements p(mesh.size());
    for (std::size_t a = 0; a < p.size(); ++a) p[a] = role[a] == 1 ? by_class : role[a] == 2 ? by_batch : nothing;
    return p;
  }
  Placements self_placements() const { return by_role({}, Shard(class_dim), Shard(0)); }
  Placements target_placements() const { return by_role({}, {}, Shard(0)); }
  Placements weight_placements() const {
    if (weight.isNone()) return {};
    return by_role({}, weight_split ? Shard(0) : Replicate(), {});
  }
  bool each() const { return reduction == 0 && form != 0; }  // ATen reduces a single sample
  KernelCase forward() const {
    return {name("forward"),
            "",
            "nll_loss_forward",
            {self, target, weight, reduction, ignore},
            {self_placements(), target_placements(), weight_placements()},
            {each() ? by_role({}, flip() ? Partial() : Replicate(), Shard(0)) : replicated(mesh), replicated(mesh)},
            mesh};
  }
  std::string name(const std::string& end) const { return (form == 2 ? "nll_loss2d_" : "nll_loss_") + end; }
};

RC_GTEST_PROP(NllLoss, ForwardEqualsAten, ()) {
  const Loss l;
  check_case(l.forward());
}

RC_GTEST_PROP(NllLoss, BackwardEqualsAten, ()) {
  const Loss l;
  torch::jit::Stack forward{l.self, l.target, l.weight, l.reduction, l.ignore};
  c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + l.name("forward")).c_str(), "").callBoxed(forward);
  const auto grad = at::randn(forward[0].toTensor().sizes()).to(l.type);
  const auto out = l.self_placements();
  check_case({l.name("backward"),
              "",
              "nll_loss_backward",
              {grad, l.self, l.target, l.weight, l.reduction, l.ignore, forward[1].toTensor()},
              {l.reduction == 0 ? l.target_placements() : replicated(l.mesh), out, l.target_placements(),
               l.weight_placements(), replicated(l.mesh)},
              {out},
              l.mesh});
}

KernelCase class_sharded(const at::Tensor& target) {
  return {"nll_loss_forward",
          "",
          "nll_loss_forward",
          {at::rand({3, 5}), target, c10::IValue(), 1, -100},
          {{Shard(1)}, {Replicate()}, {}},
          {{Replicate()}, {Replicate()}},
          {2}};
}

TEST(NllLoss, NoValidTargetIsNaN) {
  const auto results = run_sharded(class_sharded(at::full({3}, -100, at::kLong)));
  EXPECT_TRUE(at::allclose(results[0], at::full({}, kNan), 0, 0, true));
  EXPECT_EQ(results[1].item<float>(), 0);
}

TEST(NllLoss, TargetOutOfRangeIsRefusedByName) {
  auto c = class_sharded(at::full({3}, 4, at::kLong));
  EXPECT_NO_THROW(run_sharded(c));
  c.outputs = {{Replicate()}, {Replicate()}};
  try {
    c.args[1] = at::full({3}, 5, at::kLong);
    run_sharded(c);
    FAIL() << "target 5 of 5 classes was accepted";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("5"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace dtensor::testing
