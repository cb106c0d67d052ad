// Kinds of divergence: one rank of a mesh calls another operator, while all collectives are equal. The programs use two
// square tensors, so that only the operators reveal the divergence.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"

namespace dtensor::test {

struct Tensors {
  DeviceMesh mesh;
  at::Tensor a, b;  // f64[8, 8], Shard(0), leaves that require gradients
};

struct Divergence {
  std::string name;
  std::string says;  // an operator of one side that the error must name
  std::function<at::Tensor(const Tensors& t, bool astray)> run;
};

inline std::vector<Divergence> divergent_arguments() {
  const auto of_a = [](auto call) {
    return [call](const Tensors& t, bool astray) -> at::Tensor { return call(t.a.detach(), astray); };
  };
  using T = at::Tensor;
  return {
      {"sum and mean", "aten::mean", of_a([](T a, bool o) { return o ? a.mean(1) : a.sum(1); })},
      {"a number", "aten::mul", of_a([](T a, bool o) { return a * (o ? 3 : 2); })},
      {"alpha", "aten::add", of_a([](T a, bool o) { return a.add(a, o ? 0.5 : 0.25); })},
      {"bounds of a slice", "aten::slice", of_a([](T a, bool o) { return a.slice(1, o ? 4 : 0, o ? 8 : 4); })},
      {"step of a slice", "aten::slice", of_a([](T a, bool o) { return a.slice(1, 0, o ? 4 : 8, o ? 1 : 2); })},
      {"index of select", "aten::select", of_a([](T a, bool o) { return a.select(1, o ? 3 : 2); })},
      {"bounds of clamp", "aten::clamp", of_a([](T a, bool o) { return a.clamp(o ? -1 : -2, 2); })},
      {"an exponent", "aten::pow", of_a([](T a, bool o) { return a.pow(o ? 3 : 4); })},
      {"a dimension of softmax", "aten::_softmax", of_a([](T a, bool o) { return a.t().softmax(o ? 0 : 1); })},
      {"a dimension of cumsum", "aten::cumsum", of_a([](T a, bool o) { return a.cumsum(o ? 1 : 0); })},
      {"eps", "aten::native_layer_norm",
       of_a([](T a, bool o) { return at::layer_norm(a, {8}, {}, {}, o ? 1e-3 : 1e-5); })},
      {"a type there and back", "aten::_to_copy",
       of_a([](T a, bool o) { return o ? a.to(at::kFloat).to(at::kDouble) : a; })},
      {"sizes of a view", "aten::view", of_a([](T a, bool o) {
         return a.view({8, o ? 4 : 2, o ? 2 : 4});
       })},
      {"a permutation", "aten::permute", of_a([](T a, bool o) {
         return a.view({8, 2, 4}).permute(o ? at::IntArrayRef{0, 2, 1} : at::IntArrayRef{0, 1, 2});
       })},
      {"dimensions of flip", "aten::flip", of_a([](T a, bool o) {
         return a.flip(o ? at::IntArrayRef{1} : at::IntArrayRef{0, 1});
       })},
      {"shifts of roll", "aten::roll", of_a([](T a, bool o) { return a.roll({o ? 2 : 1}, {1}); })},
      {"a correction", "aten::std", of_a([](T a, bool o) { return a.std(at::IntArrayRef{1}, o); })},
      {"the p of a norm", "aten::linalg_vector_norm",
       of_a([](T a, bool o) { return at::linalg_vector_norm(a, o ? 1 : 2); })},
      {"a slope", "aten::leaky_relu", of_a([](T a, bool o) { return at::leaky_relu(a, o ? 0.1 : 0.2); })},
      {"value of addcmul", "aten::addcmul", of_a([](T a, bool o) { return at::addcmul(a, a, a, o ? 1 : 2); })},
      {"weight of lerp", "aten::lerp", of_a([](T a, bool o) { return a.lerp(a, o ? 0.1 : 0.2); })},
      {"value of masked_fill", "aten::masked_fill", of_a([](T a, bool o) { return a.masked_fill(a > 0, o ? 1 : 2); })},
      {"value of full_like", "aten::full_like", of_a([](T a, bool o) { return at::full_like(a, o ? 1 : 2); })},
      {"a text", "aten::gelu", of_a([](T a, bool o) { return at::gelu(a, o ? "tanh" : "none"); })},
      {"a diagonal", "aten::tril", of_a([](T a, bool o) { return a.tril(o ? 1 : 0); })},
      {"largest", "aten::topk", of_a([](T a, bool o) { return std::get<0>(a.topk(2, 1, o)); })},
      {"descending", "aten::sort", of_a([](T a, bool o) { return std::get<0>(a.sort(1, o)); })},
      {"a number in a tensor", "aten::mul",
       of_a([](T a, bool o) { return a * at::scalar_tensor(o ? 2 : 3, at::kDouble); })},
      {"a number for a list", "aten::_foreach_mul", of_a([](T a, bool o) {
         return at::_foreach_mul({a, a}, o ? 2 : 3)[1];
       })},
      {"numbers for a list", "aten::_foreach_mul", of_a([](T a, bool o) {
         return at::_foreach_mul({a, a}, std::vector<at::Scalar>{1, o ? 2 : 3})[1];
       })},
  };
}

inline std::vector<Divergence> divergent_orders() {
  using T = at::Tensor;
  const auto of_both = [](auto call) {
    return [call](const Tensors& t, bool astray) -> at::Tensor {
      const T a = t.a.detach(), b = t.b.detach();
      return call(a, b, astray);
    };
  };
  return {
      {"two operators", "aten::relu",
       of_both([](T a, T, bool o) { return o ? a.relu().sigmoid() : a.sigmoid().relu(); })},
      {"two operands", "aten::sub", of_both([](T a, T b, bool o) { return o ? a - b : b - a; })},
      {"two matrices", "aten::mm", of_both([](T a, T b, bool o) { return o ? a.mm(b) : b.mm(a); })},
      {"entries of a list", "aten::cat", of_both([](T a, T b, bool o) {
         return o ? at::cat({a, b}) : at::cat({b, a});
       })},
      {"two sums of equal shapes", "aten::sum", of_both([](T a, T b, bool o) {
         const T first = (o ? b : a).sum(), second = (o ? a : b).sum();
         return DTensor(first).full_tensor() + DTensor(second).full_tensor();
       })},
      {"one operator more", "aten::neg", of_both([](T a, T, bool o) { return o ? a.neg() : a; })},
      {"one operator less", "aten::neg", of_both([](T a, T, bool o) { return o ? a : a.neg(); })},
      {"in place", "aten::mul_", of_both([](T a, T, bool o) { return o ? a.mul_(2) : a.mul(2); })},
      {"another branch", "aten::cos", of_both([](T a, T, bool o) { return o ? a.cos() : a.sin(); })},
  };
}

inline std::vector<Divergence> divergent_random_numbers() {
  using T = at::Tensor;
  return {
      {"dropout on one rank", "aten::empty_like", [](const Tensors& t, bool o) { return at::dropout(t.a, 0.5, o); }},
      {"probability of dropout", "aten::bernoulli_",
       [](const Tensors& t, bool o) { return at::dropout(t.a, o ? 0.4 : 0.5, true); }},
      {"another distribution", "aten::normal_",
       [](const Tensors& t, bool o) -> T {
         const T x = at::empty_like(t.a);
         return o ? x.detach().normal_() : x.detach().uniform_();
       }},
      {"parameters of a distribution", "aten::normal_",
       [](const Tensors& t, bool o) -> T { return at::empty_like(t.a).detach().normal_(o ? 1 : 0); }},
      {"another seed", "aten::uniform_",
       [](const Tensors& t, bool o) -> T {
         manual_seed(t.mesh, o ? 5 : 6);
         return at::empty_like(t.a).detach().uniform_();
       }},
      {"a later position in the random stream", "aten::uniform_",
       [](const Tensors& t, bool o) -> T {
         if (o) set_rng_state(t.mesh, {get_rng_state(t.mesh).seed, get_rng_state(t.mesh).counter + 1});
         return at::empty_like(t.a).detach().uniform_();
       }},
  };
}

inline std::vector<Divergence> divergent_training() {
  using T = at::Tensor;
  const auto gradient = [](auto loss) {
    return [loss](const Tensors& t, bool astray) -> T {
      T value = loss(t, astray);
      value.backward();
      return t.a.grad();
    };
  };
  return {
      {"a scale of the loss", "aten::mul",
       gradient([](const Tensors& t, bool o) { return (t.a * t.b).sum() * (o ? 2 : 4); })},
      {"detached", "aten::mul",
       gradient([](const Tensors& t, bool o) { return ((o ? t.a.detach() : t.a) * t.b + t.a).sum(); })},
      {"two passes", "aten::", gradient([](const Tensors& t, bool o) {
         if (o) (t.a * t.b).sum().backward();
         return (t.a * t.b).sum();
       })},
      {"a learning rate", "aten::add_",
       [](const Tensors& t, bool o) -> T {
         (t.a * t.a).sum().backward();
         return t.a.detach().add_(t.a.grad(), o ? -0.1 : -0.2);
       }},
      {"a parameter left out", "aten::_foreach_add_",
       [](const Tensors& t, bool o) -> T {
         const T a = t.a.detach(), b = t.b.detach();
         std::vector<T> all{a, b};
         if (o) all.pop_back();
         at::_foreach_add_(all, 1);
         return a;
       }},
  };
}

inline std::vector<Divergence> divergences() {
  std::vector<Divergence> all;
  for (const auto& part :
       {divergent_arguments(), divergent_orders(), divergent_random_numbers(), divergent_training()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

inline Tensors make_tensors(const Communicator& world) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"dp"});
  manual_seed(mesh, 1);
  const auto leaf = [&](double begin) -> at::Tensor {
    const auto full = at::arange(begin, begin + 64, at::kDouble).view({8, 8}) / 64;
    return distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
  };
  return {mesh, leaf(-8), leaf(-16)};
}

// Runs a divergence on the rank with `astray`, then a collective and a barrier on every rank.
inline void run_divergence(const Divergence& what, const Communicator& world, bool astray) {
  const auto tensors = make_tensors(world);
  static const std::string block = "block", layer = "layer";
  at::Tensor result;
  {
    const ModuleScope outer(block), inner(layer);
    result = what.run(tensors, astray);
  }
  if (is_dtensor(result)) DTensor(result.detach().sum()).full_tensor();
  world.barrier();
}

}  // namespace dtensor::test
