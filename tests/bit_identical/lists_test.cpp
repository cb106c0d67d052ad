// Fused optimizers, norms and sums in a BitIdentical scope, for sizes that are no multiple of a vector or of a subtree.
#include <cmath>

#include "bit_identical/bits.h"
#include "dtensor/optim.h"
#include "support/draws.h"

namespace dtensor::test {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const Tensors& parameters, bool fused)>;

const std::vector<std::pair<const char*, MakeOptimizer>>& optimizers() {
  static const std::vector<std::pair<const char*, MakeOptimizer>> all{
      {"AdamW",
       [](const Tensors& p, bool fused) {
         return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .weight_decay = 0.1, .fused = fused});
       }},
      {"AMSGrad",
       [](const Tensors& p, bool fused) {
         return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .fused = fused, .amsgrad = true});
       }},
      {"SGD",
       [](const Tensors& p, bool fused) {
         return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .fused = fused});
       }},
  };
  return all;
}

// Parameters after three steps; their gradients are the second half of the given tensors.
Computation steps_of(const MakeOptimizer& make, bool fused) {
  return [=](const Tensors& given) {
    const auto half = static_cast<std::ptrdiff_t>(given.size() / 2);
    Tensors parameters;
    for (auto t = given.begin(); t != given.begin() + half; ++t) parameters.push_back(t->clone().requires_grad_());
    const auto optimizer = make(parameters, fused);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad() = given[i + parameters.size()] * (step + 1.0);
      }
      optimizer->step();
    }
    return parameters;
  };
}

Tensors parameters_and_gradients(at::ScalarType type) {
  Draw draw(11);
  Tensors all;
  for (int i = 0; i < 2; ++i) {
    for (const Shape& shape : {Shape{37}, Shape{1}, Shape{130, 3}, Shape{5, 64}, Shape{64, 4}, Shape{2}}) {
      all.push_back(draw.normal(shape, type));
    }
  }
  return all;
}

void expect_steps_on_meshes(const char* name, const Computation& compute, const Tensors& in, const Tensors& expected) {
  for (const int ranks : {2, 3}) {
    on_mesh({ranks}, [&](const DeviceMesh& mesh) {
      for (const std::int64_t dim : {0, 1}) {
        std::vector<Placements> placements;
        for (const at::Tensor& t : in) placements.push_back({Shard(std::min(dim, t.dim() - 1))});
        require_same_bits(run_placed(mesh, compute, in, placements), expected,
                          std::string(name) + " on " + mesh.str() + " dimension " + std::to_string(dim));
      }
    });
  }
}

TEST(BitIdenticalLists, FusedOptimizersHaveTheBitsOfOneDevice) {
  for (const auto& [name, make] : optimizers()) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const auto in = parameters_and_gradients(type);
      const auto compute = steps_of(make, true);
      const auto expected = on_one_device(compute, in, 1);
      EXPECT_NO_THROW(require_same_bits(on_one_device(compute, in, 2), expected, name));
      expect_steps_on_meshes(name, compute, in, expected);
    }
  }
}

TEST(BitIdenticalLists, FusedOptimizersHaveTheValuesOfLists) {
  for (const auto& [name, make] : optimizers()) {
    const auto in = parameters_and_gradients(at::kFloat);
    const auto expected = steps_of(make, false)(in), actual = on_one_device(steps_of(make, true), in, 2);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i], expected[i].detach(), 1e-5, 1e-6)) << name << ", parameter " << i;
      EXPECT_FALSE(at::allclose(actual[i], in[i], 1e-5, 1e-6)) << name << ", parameter " << i;
    }
  }
}

// The definition: level by level, neighbors are added, and a number without a neighbor passes on.
template <class T>
T tree_of(std::vector<T> numbers) {
  while (numbers.size() > 1) {
    std::vector<T> parents;
    for (std::size_t i = 0; i < numbers.size(); i += 2) {
      parents.push_back(i + 1 < numbers.size() ? numbers[i] + numbers[i + 1] : numbers[i]);
    }
    numbers = std::move(parents);
  }
  return numbers[0];
}

at::Tensor tree_of_columns(const at::Tensor& rows) {
  const at::Tensor sums = at::empty({rows.size(1)}, rows.options());
  for (std::int64_t c = 0; c < rows.size(1); ++c) {
    const at::Tensor column = rows.select(1, c).contiguous();
    const auto* begin = column.const_data_ptr<float>();
    sums[c] = tree_of(std::vector<float>(begin, begin + column.numel()));
  }
  return sums;
}

// ATen's square root is MKL's, which is not always the nearest number.
at::Tensor tree_norm(const at::Tensor& t) {
  std::vector<double> squares;
  const at::Tensor wide = t.to(at::kDouble).reshape({-1}).contiguous();
  for (std::int64_t i = 0; i < wide.numel(); ++i) squares.push_back(std::pow(wide.const_data_ptr<double>()[i], 2));
  return at::scalar_tensor(tree_of(squares), at::kDouble).sqrt();
}

Tensors sums_of(const Tensors& in) { return {in[0].sum(0), in[0].sum(), at::_foreach_norm(in, 2, at::kDouble)[0]}; }

void sums_are_trees() {
  Draw draw(*rc::gen::inRange<std::uint64_t>(0, 1u << 30));
  const auto columns = draw.integer(0, 3) == 0 ? draw.integer(500, 1100) : draw.integer(1, 5);
  const at::Tensor x = draw.normal({draw.integer(1, columns > 5 ? 80 : 5000), columns}, at::kFloat);
  const Tensors expected{tree_of_columns(x), tree_of_columns(x.reshape({-1, 1}))[0], tree_norm(x)};
  require_same_bits(on_one_device(sums_of, {x}, 2), expected, "sums on one device");
  on_mesh({*rc::gen::inRange(2, 4)}, [&, dim = draw.integer(0, 1)](const DeviceMesh& mesh) {
    require_same_bits(run_placed(mesh, sums_of, {x}, {{Shard(dim)}}), expected, "sums on " + mesh.str());
  });
}

TEST(BitIdenticalLists, SumsAreTreesOverGlobalIndices) { check_property("sums are trees", sums_are_trees, 30); }

// As outside of the scope: what is summed over no dimension is a copy.
TEST(BitIdenticalLists, SumsOfOneNumberDoNotShareItsMemory) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const BitIdentical scope;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor x = distribute_tensor(at::zeros({}, dtype), mesh, {Replicate()});
      for (const at::Tensor& sum : {x.sum(), x.sum(at::IntArrayRef{0}, true), x.mean()}) sum.add_(1);
      EXPECT_EQ(DTensor(x).full_tensor().item<double>(), 0) << dtype;
    }
  });
}

}  // namespace
}  // namespace dtensor::test
