// A small base class for models: named parameters, buffers, children and activation points, and the call operator.
// Modules are written in regular ATen calls for one device. A MeshScope around the constructor, distribute(),
// parallelize() or fully_shard() distributes their tensors. These accept any type that lists NamedTensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtensor/debug.h"
#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor::nn {

// Tensors among the inputs or results of a call.
using TensorSlots = std::vector<at::Tensor*>;

namespace detail {

template <class T>
concept ListsTensors = requires(T& value) {
  TensorSlots(value.tensors());
};

// Whether values of a type may contain tensors that add_tensors() finds.
template <class T>
struct HoldsTensors : std::bool_constant<std::is_base_of_v<at::Tensor, T> || ListsTensors<T>> {};
template <class T, class A>
struct HoldsTensors<std::vector<T, A>> : HoldsTensors<T> {};
template <class T, std::size_t n>
struct HoldsTensors<std::array<T, n>> : HoldsTensors<T> {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};

// Lists the defined tensors of a value: a tensor; an optional, a vector, an array, a pair or a tuple; a struct whose
// tensors() returns TensorSlots. Other values have none.
template <class T>
void add_tensors(T& value, TensorSlots& slots) {
  if constexpr (!HoldsTensors<T>::value) {
    return;
  } else if constexpr (std::is_base_of_v<at::Tensor, T>) {
    if (value.defined()) slots.push_back(&value);
  } else if constexpr (requires { value.tensors(); }) {
    for (at::Tensor* tensor : value.tensors()) add_tensors(*tensor, slots);
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) add_tensors(*value, slots);
  } else if constexpr (requires { value.data(); }) {
    for (auto& element : value) add_tensors(element, slots);
  } else {
    std::apply([&](auto&... element) { (add_tensors(element, slots), ...); }, value);
  }
}

}  // namespace detail

// Base class of modules. A module defines forward(), of any signature, and derives from Callable, which gives it the
// call operator. Keep tensors and modules as members and register them by name in the constructor. Registration
// stores the members' addresses, so modules can be neither copied nor moved.
class DTENSOR_API Module {
 public:
  Module();
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // In the order of registration, own before children's. Undefined tensors (no bias) are left out.
  NamedTensors named_parameters(const std::string& prefix = "");
  NamedTensors named_buffers(const std::string& prefix = "");
  std::vector<at::Tensor> parameters();  // each tensor once
  // Direct children, and all modules with their full names (this one first, as `prefix`).
  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  std::vector<std::pair<std::string, Module*>> named_modules(const std::string& prefix = "");

  // Sets the mode of this module and its descendants, which dropout and similar layers read.
  Module& train(bool on = true);
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }

  // Initializes the module's own tensors as the constructor does, then those of its children.
  void reset();
  virtual void reset_parameters() {}

  // Replaces every regular parameter and buffer by a DTensor on `mesh`; each rank keeps its local tensor. Tensors on
  // the meta device get memory for their local tensor only; reset() initializes it. DTensors are redistributed in
  // place. Tied tensors stay tied.
  using PlacementFn = std::function<Placements(const std::string& name, const at::Tensor& tensor)>;
  void distribute(const DeviceMesh& mesh, const PlacementFn& place);

  // The dimension of a parameter that indexes output (input) features, for column-wise (row-wise) parallelism; -1:
  // none. The default is 0 (1), as in Linear and convolutions.
  virtual std::int64_t output_dim(const std::string& parameter) const;
  virtual std::int64_t input_dim(const std::string& parameter) const;

  // Activation points: named positions in forward() at which a plan may redistribute an activation. Every module has
  // "in" and "out".
  std::vector<std::string> activation_points() const;
  using Constraint = std::function<at::Tensor(const at::Tensor&)>;  // redistributes an activation as a plan requires
  void set_constraint(const std::string& point, Constraint constraint);  // empty: none
  const Constraint& constraint(const std::string& point);                // empty: none

  const std::string& name() const { return name_; }  // its name in the parent module

  // Runs around forward() in each call of the module, in the order of registration. Receives the tensors among the
  // inputs, which it may replace; what it returns receives those among the results, in reverse order, and is destroyed
  // when the call ends, by an exception too. May be empty.
  using LeaveHook = std::function<void(const TensorSlots& outputs)>;
  using CallHook = std::function<LeaveHook(const TensorSlots& inputs)>;
  void register_call_hook(CallHook hook);

  // Calls forward(inputs...) as this module: in its module scope, with the point "in" at the first tensor of the inputs
  // and "out" at the first of the results, and with hooks. For modules that do not derive from Callable.
  template <class Forward, class... Inputs>
  auto call(const Forward& forward, Inputs&&... inputs) const {
    return run_call(/*hooks=*/true, forward, std::forward<Inputs>(inputs)...);
  }

 protected:
  void register_parameter(std::string name, at::Tensor& member);  // requires_grad is set
  // A buffer, which requires no gradient; a child module; an activation point besides "in" and "out".
  void register_buffer(std::string name, at::Tensor& member);
  void register_module(std::string name, Module& child);
  void register_activation(std::string point);
  at::Tensor constrain(const char* point, const at::Tensor& x) const;  // returns x without a constraint
  // For reset_parameters(): fill with uniform(-1/sqrt(inputs), 1/sqrt(inputs)), or with one value. Tensors that are
  // undefined or on the meta device are not changed.
  static void reset_uniform(const at::Tensor& tensor, std::int64_t inputs);
  static void reset_to(const at::Tensor& tensor, double value);

  // call(), with or without hooks.
  template <class Forward, class... Inputs>
  auto run_call(bool hooks, const Forward& forward, Inputs&&... inputs) const;

 private:
  class Call;
  Constraint& own_constraint(const std::string& point);

  std::vector<std::pair<std::string, at::Tensor*>> parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::pair<std::string, Constraint>> points_;  // "in" and "out" first
  std::vector<CallHook> call_hooks_;
  std::string name_;
  bool training_ = true;
};

// One call of a module.
class DTENSOR_API Module::Call {
 public:
  Call(const Module& module, bool hooks);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool needs_tensors() const;  // there is a hook, or a constraint at "in" or "out"
  // Before and after forward(), with the tensors of its inputs and results.
  void enter(const TensorSlots& inputs);
  void leave(const TensorSlots& outputs);

 private:
  const Module& module_;
  const bool runs_hooks_;
  ModuleScope scope_;
  std::vector<LeaveHook> leave_hooks_;
};

template <class Forward, class... Inputs>
auto Module::run_call(bool hooks, const Forward& forward, Inputs&&... inputs) const {
  Call call(*this, hooks);
  if (!call.needs_tensors()) return forward(std::forward<Inputs>(inputs)...);
  // Values that may contain tensors are copied, so that these can be replaced.
  std::tuple<std::conditional_t<detail::HoldsTensors<std::decay_t<Inputs>>::value, std::decay_t<Inputs>, Inputs&&>...>
  given(std::forward<Inputs>(inputs)...);
  TensorSlots tensors;
  std::apply([&](auto&... input) { (detail::add_tensors(input, tensors), ...); }, given);
  call.enter(tensors);
  const auto run = [&](auto&... input) { return forward(static_cast<Inputs&&>(input)...); };
  tensors.clear();
  if constexpr (std::is_void_v<decltype(std::apply(run, given))>) {
    std::apply(run, given);
    call.leave(tensors);
  } else {
    auto result = std::apply(run, given);
    detail::add_tensors(result, tensors);
    call.leave(tensors);
    return result;
  }
}

template <class Derived>
class Layer;

// Gives a class that derives from it the call operator: struct Net : nn::Callable<Net> { at::Tensor forward(...); }.
// net(x) is net.call() of its forward().
template <class Derived>
class Callable : public Module {
 public:
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return this->call(forward_of(static_cast<Derived&>(*this)), std::forward<Inputs>(inputs)...);
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) const {
    return this->call(forward_of(static_cast<const Derived&>(*this)), std::forward<Inputs>(inputs)...);
  }

 protected:
  // What a call runs, as a function object.
  template <class Self>
  static auto forward_of(Self& self) {
    return [&self](auto&&... inputs) {
      if constexpr (std::is_base_of_v<Layer<Derived>, Derived>) {
        return self.compute(std::forward<decltype(inputs)>(inputs)...);
      } else {
        return self.forward(std::forward<decltype(inputs)>(inputs)...);
      }
    };
  }
};

// A layer of this library: a call runs compute(). Its forward() is a call without hooks, so that code that calls
// forward() directly keeps module names and the points of a plan.
template <class Derived>
class Layer : public Callable<Derived> {
 protected:
  // Calls compute(inputs...) without hooks.
  template <class... Inputs>
  auto without_hooks(Inputs&&... inputs) const {
    const auto& self = static_cast<const Derived&>(*this);
    return this->run_call(/*hooks=*/false, this->forward_of(self), std::forward<Inputs>(inputs)...);
  }
  // The same.
  template <class... Inputs>
  auto without_hooks(Inputs&&... inputs) {
    auto& self = static_cast<Derived&>(*this);
    return this->run_call(/*hooks=*/false, this->forward_of(self), std::forward<Inputs>(inputs)...);
  }
};

namespace detail {

// Calls a module whose class may define forward() only.
template <class M, class... Inputs>
auto call_module(M& module, Inputs&&... inputs) {
  if constexpr (std::is_base_of_v<Callable<std::remove_const_t<M>>, M>) {
    return module(std::forward<Inputs>(inputs)...);
  } else {
    return module.call([&module](auto&&... x) { return module.forward(std::forward<decltype(x)>(x)...); },
                       std::forward<Inputs>(inputs)...);
  }
}

}  // namespace detail

// Replaces each tensor of `tensors` as Module::distribute does.
DTENSOR_API void distribute(const NamedTensors& tensors, const DeviceMesh& mesh, const Module::PlacementFn& place);

}  // namespace dtensor::nn
