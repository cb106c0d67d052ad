// The fixture: slicing, running and combining. Its own test checks that combining slices gives the full tensor.
#include "local_kernels/local_kernel_fixture.h"

#include "dtensor/events.h"
#include "mesh/mesh_impl.h"

namespace dtensor::testing {
namespace {

c10::OperatorHandle find_op(const KernelCase& c) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + c.op).c_str(), c.overload.c_str());
}

std::vector<at::Tensor> flatten(const torch::jit::Stack& results) {
  std::vector<at::Tensor> flat;
  for (const auto& value : results) {
    if (value.isTensor() && value.toTensor().defined()) flat.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const auto& t : value.toTensorVector()) flat.push_back(t);
    }
  }
  return flat;
}

at::Tensor slice_at(const at::Tensor& full, const Placements& placements, at::IntArrayRef shape, at::IntArrayRef at) {
  auto part = full;
  for (std::int64_t d = 0; d < full.dim(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const auto& s : shard_segments(full.size(d), d, placements, shape, at)) {
      pieces.push_back(part.narrow(d, s.offset, s.length));
    }
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, d);
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

void place(at::Tensor& full, const at::Tensor& part, const Placements& placements, at::IntArrayRef shape,
           at::IntArrayRef at, std::int64_t d = 0) {
  if (d == full.dim()) {
    full.copy_(part);
    return;
  }
  std::int64_t before = 0;
  for (const auto& s : shard_segments(full.size(d), d, placements, shape, at)) {
    // Segments of other dimensions depend only on their own sizes, which narrowing this dimension keeps.
    auto target = full.narrow(d, s.offset, s.length);
    auto source = part.narrow(d, before, s.length);
    place(target, source, placements, shape, at, d + 1);
    before += s.length;
  }
}

at::Tensor fold(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (op == ReduceOp::sum) return a + b;
  if (op == ReduceOp::max) return at::maximum(a, b);
  if (op == ReduceOp::min) return at::minimum(a, b);
  if (op == ReduceOp::product) return a * b;
  throw std::runtime_error("fixture: no such reduction");
}

// Reduces or compares local results along the last axis and returns one result per coordinate of the other axes.
std::vector<at::Tensor> close_axis(const std::vector<at::Tensor>& parts, std::int64_t ranks,
                                   const Placement& placement) {
  std::vector<at::Tensor> closed;
  for (std::size_t first = 0; first < parts.size(); first += ranks) {
    auto value = parts[first];
    for (std::int64_t r = 1; r < ranks; ++r) {
      if (placement.is_partial()) value = fold(value, parts[first + r], placement.reduce_op());
      if (placement.is_replicate() && !at::equal(value.nan_to_num(12345), parts[first + r].nan_to_num(12345))) {
        throw std::runtime_error("fixture: replicated results differ between ranks");
      }
    }
    closed.push_back(value);
  }
  return closed;
}

std::vector<std::int64_t> coordinate(std::int64_t index, at::IntArrayRef shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::int64_t a = static_cast<std::int64_t>(shape.size()) - 1; a >= 0; --a) {
    at[a] = index % shape[a];
    index /= shape[a];
  }
  return at;
}

// `parts` has one tensor per rank, row-major. Axes without shards are reduced from right to left.
at::Tensor glue(std::vector<at::Tensor> parts, const Placements& placements, const std::vector<std::int64_t>& mesh,
                const at::Tensor& like) {
  auto shape = mesh;
  for (std::int64_t a = static_cast<std::int64_t>(shape.size()) - 1; a >= 0; --a) {
    if (placements[a].is_shard()) continue;
    // Moves axis `a` to the end: parts are indexed by coordinates.
    std::vector<at::Tensor> moved;
    std::int64_t inner = 1;
    for (std::size_t b = a + 1; b < shape.size(); ++b) inner *= shape[b];
    const std::int64_t outer = static_cast<std::int64_t>(parts.size()) / (inner * shape[a]);
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t i = 0; i < inner; ++i) {
        for (std::int64_t m = 0; m < shape[a]; ++m) moved.push_back(parts[(o * shape[a] + m) * inner + i]);
      }
    }
    parts = close_axis(moved, shape[a], placements[a]);
    shape[a] = 1;
  }
  auto full = at::zeros(like.sizes(), parts[0].options());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto at_ = coordinate(static_cast<std::int64_t>(i), shape);
    auto target = full;
    place(target, parts[i], placements, mesh, at_);
  }
  return full;
}

struct Bound {
  torch::jit::Stack stack;
  std::vector<SpecPtr> specs;
};

// Local arguments of this rank and the specs of their tensors.
Bound bind(const KernelCase& c, const DeviceMesh& mesh) {
  Bound bound;
  auto add = [&](const c10::IValue& value) -> at::Tensor {
    const auto& placements = c.inputs.at(bound.specs.size());
    const bool tensor = value.isTensor() && value.toTensor().defined();
    bound.specs.push_back(tensor && !placements.empty() ? spec_for(value.toTensor(), placements, mesh) : SpecPtr());
    if (!tensor) return {};
    return placements.empty() ? value.toTensor() : slice_for(value.toTensor(), placements, *impl_of(mesh));
  };
  const auto& arguments = find_op(c).schema().arguments();
  for (std::size_t i = 0; i < c.args.size(); ++i) {
    const auto& value = c.args[i];
    if (value.isTensor()) {
      bound.stack.emplace_back(add(value));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const auto& item : value.toTensorVector()) list.push_back(add(item));
      bound.stack.emplace_back(list);
    } else {
      if (arguments[i].type()->isSubtypeOf(*c10::OptionalType::ofTensor())) bound.specs.emplace_back();
      bound.stack.push_back(value);
    }
  }
  return bound;
}

AxisMask sharded_axes(const KernelCase& c) {
  AxisMask axes = 0;
  for (const auto& placements : c.inputs) {
    for (std::size_t a = 0; a < placements.size(); ++a) axes |= AxisMask{placements[a].is_shard()} << a;
  }
  return axes;
}

std::vector<at::Tensor> run_on_rank(const KernelCase& c, const std::vector<at::Tensor>& like, const DeviceMesh& mesh) {
  auto bound = bind(c, mesh);
  std::vector<SpecPtr> outputs;
  for (std::size_t i = 0; i < like.size(); ++i) outputs.push_back(spec_for(like[i], c.outputs.at(i), mesh));
  Decision decision;
  decision.local_kernel = c.kernel;
  decision.local_kernel_axes = sharded_axes(c);
  torch::jit::Stack stack;
  stack.emplace_back(std::string("below the arguments"));  // kernels must not touch entries below their arguments
  for (auto& value : bound.stack) stack.push_back(std::move(value));
  const auto op = find_op(c);
  const OpInfo info(op);
  LocalCall call{info, stack, decision, bound.specs, outputs, as_mesh_impl(*impl_of(mesh))};
  find_local_kernel(c.kernel)(call);
  if (!stack.at(0).isString())
    throw std::runtime_error("fixture: the kernel changed stack entries below its arguments");
  auto results = flatten(stack);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].sizes() != outputs[i]->local_sizes || results[i].scalar_type() != outputs[i]->dtype) {
      std::ostringstream text;
      text << "fixture: output " << i << " is " << results[i].sizes() << results[i].dtype() << " for "
           << outputs[i]->str();
      throw std::runtime_error(text.str());
    }
  }
  return results;
}

}  // namespace

at::Tensor slice_for(const at::Tensor& full, const Placements& placements, const MeshInfo& mesh) {
  return slice_at(full, placements, mesh.layout.shape, mesh.coordinate);
}

SpecPtr spec_for(const at::Tensor& full, const Placements& placements, const DeviceMesh& mesh) {
  return intern_spec(impl_of(mesh), placements, full.sizes(), full.strides(), full.scalar_type());
}

// var() warns about NaN results in hundreds of cases.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::vector<at::Tensor> run_full(const KernelCase& c) {
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  torch::jit::Stack stack = c.args;
  find_op(c).callBoxed(stack);
  return flatten(stack);
}

std::vector<at::Tensor> run_sharded(const KernelCase& c) {
  const auto like = run_full(c);
  std::int64_t ranks = 1;
  for (const auto n : c.mesh) ranks *= n;
  std::vector<std::vector<at::Tensor>> results(ranks);
  run_local(static_cast<int>(ranks), [&](Communicator world) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto mesh = init_device_mesh(world, at::kCPU, c.mesh);
    results[world.rank()] = run_on_rank(c, like, mesh);
  });
  std::vector<at::Tensor> glued;
  for (std::size_t i = 0; i < like.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const auto& of_rank : results) parts.push_back(of_rank.at(i));
    glued.push_back(glue(parts, c.outputs[i], c.mesh, like[i]));
  }
  return glued;
}

std::vector<std::string> collectives_of(const KernelCase& c) {
  const auto like = run_full(c);
  std::vector<std::string> names;
  run_local(static_cast<int>(c.mesh[0]), [&](Communicator world) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto mesh = init_device_mesh(world, at::kCPU, c.mesh);
    EventListener listener([&](const Event& e) {
      if (world.rank() == 0 && e.kind == Event::Kind::collective) names.push_back(e.name);
    });
    run_on_rank(c, like, mesh);
  });
  return names;
}

std::string describe(const KernelCase& c) {
  std::ostringstream text;
  text << c.op << '.' << c.overload << " -> " << c.kernel << " on " << at::IntArrayRef(c.mesh);
  for (const auto& p : c.inputs) text << ' ' << to_string(p);
  text << " gives";
  for (const auto& p : c.outputs) text << ' ' << to_string(p);
  for (const auto& value : c.args) {
    if (value.isTensor() && value.toTensor().defined()) {
      text << "\n" << value.toTensor();
    } else if (!value.isTensor()) {
      text << "\n" << value;
    }
  }
  return text.str();
}

void check_close(const at::Tensor& expected, const at::Tensor& actual, const std::string& what) {
  double tolerance = 0;
  if (at::isFloatingType(expected.scalar_type()) || expected.is_complex()) {
    const auto type = c10::toRealValueType(expected.scalar_type());
    tolerance = type == at::kDouble ? 1e-11 : type == at::kFloat ? 2e-5 : 5e-2;
  }
  const bool alike = expected.sizes() == actual.sizes() && expected.scalar_type() == actual.scalar_type() &&
                     at::allclose(actual, expected, tolerance, tolerance, true);
  if (alike) return;
  std::ostringstream text;
  text << what << "\nexpected\n" << expected << "\ngot\n" << actual;
  RC_FAIL(text.str());
}

void check_case(const KernelCase& c) {
  std::vector<at::Tensor> expected;
  try {
    expected = run_full(c);
  } catch (const c10::Error&) {
    RC_DISCARD("the ATen operator refuses");
  }
  std::vector<at::Tensor> actual;
  try {
    actual = run_sharded(c);
  } catch (const std::exception& error) {
    RC_FAIL(describe(c) + "\n" + error.what());
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    check_close(expected[i], actual[i], describe(c) + "\noutput " + std::to_string(i));
  }
}

bool flip() { return *rc::gen::arbitrary<bool>(); }

RC_GTEST_PROP(LocalKernelFixture, GlueInvertsSlice, ()) {
  const auto mesh = any_mesh();
  const auto sizes = any_sizes(0, 3);
  const auto placements = any_shards(mesh, all_dims(static_cast<std::int64_t>(sizes.size())));
  const auto full = at::rand(sizes);
  std::int64_t ranks = 1;
  for (const auto n : mesh) ranks *= n;
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < ranks; ++i) parts.push_back(slice_at(full, placements, mesh, coordinate(i, mesh)));
  RC_ASSERT(at::equal(glue(parts, placements, mesh, full), full));
}

}  // namespace dtensor::testing
