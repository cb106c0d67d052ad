// Random chains of operators. They are drawn from every overload of the dispatcher that has a rule and takes tensors
// and simple numbers. Values and gradients equal those of one device, also if each rank's cache forgets other
// decisions.
// RC_PARAMS="max_success=20000" runs more chains than the default of 100. rapidcheck prints the seed and shrinks a
// failing chain.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "mesh/mesh_impl.h"
#include "ops/cache/decision_cache.h"
#include "ops/dispatch/boxed_kernel.h"
#include "ops/plan/compile_call.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Numbers = std::vector<std::uint64_t>;

bool contains(const std::string& name, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

bool is_simple(const c10::Argument& argument) {
  if (argument.default_value() || argument.name() == "dim") return true;
  const auto kind = argument.type()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::NumberType || kind == c10::TypeKind::BoolType ||
         kind == c10::TypeKind::FloatType;
}

// Functional and deterministic operators on tensors, with a rule, except those that do not check their arguments.
bool belongs(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  if (schema.name().rfind("aten::", 0) != 0 || name[0] == '_' || !needs_kernel(op)) return false;
  if (contains(name, {"backward", "empty", "_like", "new_", "mkldnn", "cudnn", "quantize", "special_", "unpool"}))
    return false;
  // lift returns the leaf that it gets; autograd makes it its own history, a cycle that is never freed.
  if (name == "lift" || name == "lift_fresh") return false;
  if (schema.returns().size() != 1 || schema.returns()[0].type()->kind() != c10::TypeKind::TensorType) return false;
  const auto& info = entry_of(op);
  if (info.rule().entry->source != RuleSource::rule || info.is_random || info.mutates) return false;
  const auto& arguments = schema.arguments();
  return !arguments.empty() && arguments[0].type()->kind() == c10::TypeKind::TensorType &&
         std::all_of(arguments.begin(), arguments.end(), is_simple);
}

const std::vector<c10::OperatorHandle>& operators() {
  static const auto* all = [] {
    auto* list = new std::vector<c10::OperatorHandle>;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op && belongs(*op)) list->push_back(*op);
    }
    std::sort(list->begin(), list->end(), [](const auto& a, const auto& b) {
      return c10::toString(a.operator_name()) < c10::toString(b.operator_name());
    });
    return list;
  }();
  return *all;
}

// Another operand: of the same sizes, or of the size of the last dimension.
at::Tensor another(Draw& draw, const at::Tensor& x) {
  const bool row = x.dim() > 0 && draw.coin() && draw.coin();
  return draw.normal(row ? Shape{x.size(-1)} : x.sizes().vec());
}

// One value for each argument after the first; tensors are regular.
std::vector<c10::IValue> draw_arguments(const c10::OperatorHandle& op, const at::Tensor& x, Draw& draw) {
  std::vector<c10::IValue> values;
  for (std::size_t i = 1; i < op.schema().arguments().size(); ++i) {
    const auto& argument = op.schema().arguments()[i];
    const auto kind = argument.type()->kind();
    const auto dim = draw.integer(0, std::max<std::int64_t>(x.dim(), 1) - 1);
    if (argument.name() == "dim" && kind == c10::TypeKind::IntType)
      values.emplace_back(dim);
    else if (argument.name() == "dim" && draw.coin())
      values.emplace_back(std::vector<std::int64_t>{dim});
    else if (argument.name() == "keepdim")
      values.emplace_back(draw.coin());
    else if (argument.default_value())
      values.push_back(*argument.default_value());
    else if (kind == c10::TypeKind::TensorType)
      values.emplace_back(another(draw, x));
    else if (kind == c10::TypeKind::BoolType)
      values.emplace_back(draw.coin());
    else
      values.emplace_back(0.5);
  }
  return values;
}

struct Link {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
};

using Place = std::function<at::Tensor(const at::Tensor&)>;
using Before = std::function<void(const c10::OperatorHandle&, const torch::jit::Stack&)>;

at::Tensor apply(const Link& link, const at::Tensor& x, const Place& place, const Before& before = {}) {
  torch::jit::Stack stack{x};
  for (const auto& value : link.arguments) {
    stack.push_back(value.isTensor() ? c10::IValue(place(value.toTensor())) : value);
  }
  if (before) before(link.op, stack);
  link.op.callBoxed(stack);
  return stack.at(0).toTensor();
}

const Place as_it_is = [](const at::Tensor& t) { return t; };

bool is_usable(const at::Tensor& result) {
  return result.defined() && result.scalar_type() == at::kDouble && result.numel() < 3000 && result.dim() < 5;
}

// An operator that refuses its operands is replaced by another draw.
std::vector<Link> draw_chain(const Numbers& numbers, const at::Tensor& start) {
  std::vector<Link> chain;
  at::Tensor x = start;
  for (const auto number : numbers) {
    Draw draw(number);
    for (int tries = 0; tries < 20; ++tries) {
      const auto pick = static_cast<std::size_t>(draw.integer(0, std::ssize(operators()) - 1));
      try {
        Link link{operators()[pick], draw_arguments(operators()[pick], x, draw)};
        const auto result = apply(link, x, as_it_is);
        if (!is_usable(result)) continue;
        x = result;
        chain.push_back(std::move(link));
        break;
      } catch (const std::exception&) {
      }
    }
  }
  return chain;
}

struct Outcome {
  at::Tensor value, grad;
};

Outcome run(const std::vector<Link>& chain, at::Tensor x, const Place& place, const Before& before = {}) {
  x = x.detach().requires_grad_();
  at::Tensor y = x;
  for (const auto& link : chain) y = apply(link, y, place, before);
  if (y.requires_grad()) y.sum().backward();
  return {y.detach(), x.grad()};
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.sizes() == b.sizes() && at::allclose(a, b, 1e-6, 1e-6, true));
}

// ATen's vectorized kernels round and sign zeros differently from its scalar ones: softshrink gives -0 in the tail of a
// row, from which atan2 makes -pi. Such results depend on memory layout. This runs the chain row by row in memory that
// is not dense.
bool depends_on_vectors(const std::vector<Link>& chain, const at::Tensor& x) {
  const auto sparse = [](const at::Tensor& t) { return at::stack({t, t}, -1).select(-1, 0); };
  at::Tensor dense = x, loose = x;
  try {
    for (const auto& link : chain) {
      dense = apply(link, dense, as_it_is);
      loose = apply(link, sparse(loose), as_it_is);
      if (!same(dense, loose)) return true;
    }
  } catch (const std::exception&) {  // A view that needs dense memory.
  }
  return false;
}

// False at jumps and poles: if one device gives different results for neighboring values, a different summation order
// may too.
bool is_smooth(const std::vector<Link>& chain, const at::Tensor& x, const Outcome& at_x) {
  if (depends_on_vectors(chain, x)) return false;
  for (const double step : {1e-11, -1e-11}) {
    const auto near = run(chain, x * (1 + step) + step, as_it_is);
    if (!same(near.value, at_x.value) || !same(near.grad, at_x.grad)) return false;
  }
  return true;
}

std::string describe(const std::vector<Link>& chain) {
  std::string text;
  for (const auto& link : chain) text += c10::toString(link.op.operator_name()) + " ";
  return text;
}

// Throws instead of recording a failure, so that rapidcheck distinguishes cases while shrinking. Collective.
void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  TORCH_CHECK(actual.defined() == expected.defined(), what, ": expected both results to be defined, or neither");
  if (!actual.defined()) return;
  const auto regular = is_dtensor(actual) ? DTensor(actual).full_tensor() : actual;
  const bool close = regular.sizes() == expected.sizes() && at::allclose(regular, expected, 1e-5, 1e-5);
  TORCH_CHECK(close, what, "\nexpected\n", expected, "\nactual\n", regular);
}

// If an intermediate value is NaN or infinite, ATen's formulas for tensor subclasses may give another result. With two
// zeros, for example, the gradient of prod is zero there whatever the upstream gradient is, but here it is a product.
bool stays_finite(const std::vector<Link>& chain, const at::Tensor& start) {
  bool finite = true;
  const auto look = [&](const at::Tensor& tensor) { finite &= tensor.isfinite().all().item<bool>(); };
  const at::Tensor x = start.detach().requires_grad_();
  at::Tensor y = x;
  x.register_hook(look);
  for (const auto& link : chain) {
    y = apply(link, y, as_it_is);
    look(y);
    if (y.requires_grad()) y.register_hook(look);
  }
  if (y.requires_grad()) y.sum().backward();
  return finite;
}

// Changes the cache of one rank: clears it, limits it to one decision for each operator, or fills it before the call.
class CacheOfARank {
 public:
  explicit CacheOfARank(std::uint64_t seed) : draw_(seed) {}
  ~CacheOfARank() { set_cache_limit(); }

  void operator()(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    switch (draw_.integer(0, 5)) {
      case 0:
        return clear_cache();
      case 1:
        return set_cache_limit(1);
      case 2:
        return set_cache_limit();
      case 3:
        return warm(op, stack);
    }
  }

 private:
  static void warm(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
    const KernelGuard guard;
    const auto& entry = entry_of(op);
    const CallOperands operands(entry, stack);
    if (entry.special != nullptr || operands.mesh == nullptr || find_call(entry.index, operands.key)) return;
    insert_call(entry.index, compile_call(entry, stack, operands), book_version);
  }

  Draw draw_;
};

struct Trial {
  std::vector<Link> chain;
  at::Tensor x;
  Outcome expected;
};

std::optional<Trial> draw_trial(const Numbers& numbers, Draw& draw) {
  Trial trial;
  trial.x = draw.normal(draw.sizes(draw.integer(1, 3), 1, 6));
  trial.chain = draw_chain(numbers, trial.x);
  try {
    trial.expected = run(trial.chain, trial.x, as_it_is);
  } catch (const std::exception&) {
    return std::nullopt;  // No gradient on one device either.
  }
  const bool judged = stays_finite(trial.chain, trial.x) && is_smooth(trial.chain, trial.x, trial.expected);
  return judged ? std::optional(trial) : std::nullopt;
}

// Some operands remain regular tensors.
void run_on_ranks(const Trial& trial, const DeviceMesh& mesh, std::uint64_t seed, int times, bool disturb) {
  CacheOfARank cache(seed + static_cast<std::uint64_t>(impl_of(mesh)->world_rank));
  for (int time = 0; time < times; ++time) {
    Draw mine(seed);
    const auto distributed = [&](const at::Tensor& t) {
      return distribute_tensor(t.clone(), mesh, mine.placements_of(mesh, t.sizes()));
    };
    const auto place = [&](const at::Tensor& t) { return mine.integer(0, 3) == 0 ? t : distributed(t); };
    const at::Tensor start = distributed(trial.x);
    const std::string what = describe(trial.chain) + DTensor(start).spec_str();
    Outcome actual;
    try {
      actual = run(trial.chain, start, place, disturb ? Before(std::ref(cache)) : Before());
    } catch (const std::exception& e) {
      TORCH_CHECK(false, what, " raises: ", e.what());
    }
    expect_same(actual.value, trial.expected.value, what);
    expect_same(actual.grad, trial.expected.grad, what + " grad");
  }
}

void check_chain(const Numbers& numbers, int times, bool disturb) {
  Draw draw(numbers.size() + (numbers.empty() ? 0 : numbers[0]));
  const auto trial = draw_trial(numbers, draw);
  if (!trial) return;
  const auto& mesh_shape = mesh_shapes()[static_cast<std::size_t>(draw.integer(1, std::ssize(mesh_shapes()) - 2))];
  const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 20));
  on_mesh(mesh_shape, [&](const DeviceMesh& mesh) { run_on_ranks(*trial, mesh, seed, times, disturb); });
}

void check_chains(int times, bool disturb) {
  ASSERT_GT(operators().size(), 150u);
  EXPECT_TRUE(rc::check("chains of up to six operators", [=] {
    const auto length = *rc::gen::inRange<std::size_t>(1, 7);
    check_chain(*rc::gen::container<Numbers>(length, rc::gen::inRange<std::uint64_t>(0, 1u << 30)), times, disturb);
  }));
}

TEST(Chains, MatchSingleDevice) { check_chains(1, false); }

TEST(Chains, MatchSingleDeviceWithDifferentCaches) { check_chains(3, true); }

}  // namespace
}  // namespace dtensor::test
