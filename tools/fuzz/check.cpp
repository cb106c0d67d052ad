// Distributes the tensors, calls the operator, gathers the results and classifies the outcomes of the ranks.
#include "fuzz/check.h"

#include <ATen/ATen.h>

#include "dtensor/dtensor.h"
#include "fuzz/guard.h"

namespace dtensor::fuzz {
namespace {

using Values = std::vector<c10::IValue>;

struct Outcome {
  std::string error;  // Empty: none.
  std::vector<at::Tensor> tensors;
};

// A separate tensor for each rank: in-place operators write sizes as well, and may have nothing else to write.
at::Tensor fresh(const at::Tensor& tensor) {
  if (tensor.is_meta()) return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  return tensor.detach().clone();
}

Placements placements_for(const at::Tensor& tensor, std::size_t axes, Random& random) {
  Placements placements;
  for (std::size_t a = 0; a < axes; ++a) {
    const auto pick = draw(random, -1, tensor.dim() - 1);
    const bool partial = pick < 0 && tensor.is_floating_point() && draw(random, 0, 3) == 0;
    placements.push_back(pick >= 0 ? Placement(Shard(pick)) : partial ? Placement(Partial()) : Replicate());
  }
  return placements;
}

// Equal on every rank with the same seed. Some tensors stay regular, as do those of another device.
Values place(const Values& args, const DeviceMesh& mesh, std::uint64_t seed) {
  Random random(seed);
  bool first = true;
  return replace_tensors(args, [&](const at::Tensor& tensor) -> at::Tensor {
    const bool regular = !std::exchange(first, false) && draw(random, 0, 4) == 0;
    const auto placements = placements_for(tensor, static_cast<std::size_t>(mesh.ndim()), random);
    return regular || tensor.is_meta() ? fresh(tensor) : at::Tensor(distribute_tensor(fresh(tensor), mesh, placements));
  });
}

std::vector<at::Tensor> call(const c10::OperatorHandle& op, const Values& args) {
  torch::jit::Stack stack(args.begin(), args.end());
  op.callBoxed(stack);
  std::vector<at::Tensor> tensors;
  for (const auto& value : stack) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& t : value.toTensorVector()) tensors.push_back(t);
  }
  return tensors;
}

std::string message_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  std::string text = error != nullptr ? error->what_without_backtrace() : e.what();
  return text.empty() ? "an error without a message" : text.substr(0, 600);
}

// Thousands of mistakes cause warnings that carry no information.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

template <class Run>
Outcome outcome_of(Run&& run) {
  static Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  Outcome outcome;
  try {
    outcome.tensors = run();
  } catch (const std::exception& e) {
    outcome.error = message_of(e);
  }
  return outcome;
}

at::Tensor full(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_dtensor(tensor)) return tensor;
  const DTensor d(tensor);
  return tensor.is_meta() || d.to_local().is_meta() ? at::Tensor() : d.full_tensor();
}

// Results that rounding determines (signs of factors, nearly singular matrices, tiny variances), or the order of equal
// values.
bool is_decided_by_rounding(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const auto says = [&](const char* part) { return name.find(part) != std::string::npos; };
  return says("linalg") || says("svd") || says("lstsq") || says("sort") || says("softmax_backward") ||
         says("batch_norm") || says("_fused_");
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.is_meta() || b.is_meta()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const bool exact = !a.is_floating_point() && !a.is_complex();
  const auto wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor x = exact ? a : a.to(wide), y = exact ? b : b.to(wide);
  if (exact) return at::equal(x, y);
  // Partial summands of different infinities add up to NaN, so any value is accepted if one device gives infinity.
  const at::Tensor finite = y.isfinite();
  return at::allclose(x.masked_select(finite), y.masked_select(finite), 2e-2, 2e-2);
}

std::string values_of(const at::Tensor& tensor) {
  std::string text;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(tensor.numel(), 40); ++i)
    text += c10::str(" ", tensor.flatten()[i].item());
  return text;
}

std::string difference(const Outcome& actual, const Outcome& expected) {
  if (actual.tensors.size() != expected.tensors.size()) return "different numbers of results";
  for (std::size_t i = 0; i < actual.tensors.size(); ++i) {
    const at::Tensor &a = actual.tensors[i], &e = expected.tensors[i];
    if (same(a, e)) continue;
    return c10::str("result ", i, ": ", a.sizes(), " ", a.scalar_type(), values_of(a), "\nfor ", e.sizes(), " ",
                    e.scalar_type(), values_of(e));
  }
  return "";
}

// Runs the call on this rank. All ranks meet in a barrier before results are gathered. A rank that failed waits there
// until the others have finished communicating; then it leaves, so that no rank waits for it.
Outcome run_on_rank(const Communicator& world, const c10::OperatorHandle& op, const Values& args) {
  Outcome mine = outcome_of([&] { return call(op, args); });
  const Outcome met = outcome_of([&] { return world.barrier(), std::vector<at::Tensor>(); });
  if (mine.error.empty()) mine.error = met.error;
  if (!mine.error.empty()) return mine;
  return outcome_of([&] {
    for (auto& t : mine.tensors) t = full(t);
    world.barrier();
    return mine.tensors;
  });
}

// The outcome of each rank.
std::vector<Outcome> on_ranks(const std::vector<std::int64_t>& mesh_shape, const std::function<Values(int)>& args_of,
                              const c10::OperatorHandle& op, std::uint64_t seed) {
  const auto ranks = static_cast<int>(c10::multiply_integers(mesh_shape));
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  RunOptions options;
  options.timeout = std::chrono::seconds(8);
  options.set_threads = false;
  const auto body = [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, mesh_shape);
    std::vector<Values> placed;  // Collective, so all ranks create the same tensors.
    for (int r = 0; r < ranks; ++r) placed.push_back(place(args_of(r), mesh, seed));
    world.barrier();
    auto& mine = outcomes[static_cast<std::size_t>(world.rank())];
    mine = run_on_rank(world, op, placed[static_cast<std::size_t>(world.rank())]);
    TORCH_CHECK(mine.error.empty(), mine.error);
  };
  try {
    run_local(ranks, body, options);
  } catch (const std::exception& e) {
    for (auto& outcome : outcomes) {
      if (outcome.error.empty()) outcome.error = "before the call: " + message_of(e);
    }
  }
  return outcomes;
}

std::string list_of(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (const auto& o : outcomes) text += "\n    " + (o.error.empty() ? "no error" : o.error.substr(0, 220));
  return text;
}

// The error without local sizes, the rank that failed first, and the position of each rank.
std::string error_signature(std::string text) {
  text.erase(std::min(text.size(), text.find(" (in ")));
  if (const auto at = text.rfind(" [rank "); at != std::string::npos) text.erase(at);
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return std::isdigit(c) != 0; }), text.end());
  if (text.rfind("rank  failed: ", 0) == 0) text.erase(0, 14);
  return text;
}

std::size_t count_raised(const std::vector<Outcome>& outcomes) {
  return static_cast<std::size_t>(
      std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return !o.error.empty(); }));
}

bool contains(const std::vector<Outcome>& outcomes, const char* part) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [&](const Outcome& o) { return o.error.find(part) != std::string::npos; });
}

// The library implements an operator that ATen lacks for the device.
bool is_missing(const DrawResult& regular) { return regular.text.rfind("Could not run '", 0) == 0; }
bool accepts(const DrawResult& regular) { return regular.word == "ok" || regular.word == "unsteady"; }

// Whether the error on one device depends on values: the call succeeds with other values or zeros. Only some ranks have
// the value; the others receive the error.
bool depends_on_values(const Draw& draw) {
  const RegularCall& regular = draw.mistaken;
  if (regular.str() == draw.valid.str()) return true;
  const auto zeros = replace_tensors(regular.args, [](const at::Tensor& t) { return at::zeros_like(t); });
  return outcome_of([&] { return call(regular.op, zeros); }).error.empty();
}

// Calls that one device accepts and a rank with the index refuses (docs/design/coverage.md, Shortcomings).
bool is_documented_refusal(const std::vector<Outcome>& outcomes) {
  return contains(outcomes, "an index lies outside of its window");
}

DrawResult compare_outcomes(const Draw& draw, const DrawResult& regular, const std::vector<Outcome>& outcomes) {
  const std::size_t raised = count_raised(outcomes);
  const bool reported = raised != 0 && contains(outcomes, " failed: ");
  for (const auto& outcome : outcomes) {
    if (error_signature(outcome.error) != error_signature(outcomes[0].error)) return {"diverged", list_of(outcomes)};
  }
  if (reported && accepts(regular) && is_documented_refusal(outcomes)) return {"refused", list_of({outcomes[0]})};
  if (reported && (accepts(regular) || !depends_on_values(draw))) return {"diverged", list_of(outcomes)};
  if (raised != 0) return {accepts(regular) ? "refused" : "raises", list_of({outcomes[0]})};
  if (!accepts(regular)) return {is_missing(regular) ? "ok" : "accepted", regular.text};
  if (regular.word != "ok" || is_decided_by_rounding(draw.mistaken.op)) return {"ok", ""};
  const auto expected = outcome_of([&] { return call(draw.mistaken.op, replace_tensors(draw.mistaken.args, fresh)); });
  const std::string differs = difference(outcomes[0], expected);
  return {differs.empty() ? "ok" : "differs", differs};
}

// Ranks with communicating calls must end together. A call that is local on each rank reports to no other rank. A rank
// checks only its shard of a tensor: one device may refuse values of other shards.
DrawResult judge_outcome(const Draw& draw, const DrawResult& regular, const std::vector<Outcome>& outcomes) {
  const std::size_t raised = count_raised(outcomes);
  if (raised != 0 && raised != outcomes.size()) return {"diverged", list_of(outcomes)};
  if (raised == 0 && !accepts(regular) && !is_missing(regular) && !depends_on_values(draw))
    return {"accepted", regular.text};
  return {raised != 0 ? "raises" : "ok", ""};
}

// Checks that the valid call still gives the results of one device.
std::string find_changed_operands(const Draw& draw) {
  const DrawResult regular = run_regular(draw.valid);
  if (regular.word != "ok" || is_decided_by_rounding(draw.valid.op)) return "";
  const auto expected = outcome_of([&] { return call(draw.valid.op, replace_tensors(draw.valid.args, fresh)); });
  const auto outcomes = on_ranks(
      draw.mesh, [&](int) { return draw.valid.args; }, draw.valid.op, draw.seed);
  if (count_raised(outcomes) == outcomes.size())
    return outcomes[0].error == outcomes.back().error ? "" : list_of(outcomes);
  return count_raised(outcomes) != 0 ? list_of(outcomes) : difference(outcomes[0], expected);
}

}  // namespace

std::string Draw::str() const {
  std::string text = mistaken.str() + " on " + c10::str(at::IntArrayRef(mesh));
  return only_rank < 0 ? text : text + " on rank " + std::to_string(only_rank) + " only, others " + valid.str();
}

Draw draw_call(const CallSource& source, std::uint64_t seed, std::uint64_t index) {
  Random random(seed * 1000003 + index);
  random.discard(8);
  static const std::vector<std::vector<std::int64_t>> meshes{{2}, {3}, {2, 2}};
  const RegularCall& valid = source.draw_valid(random);
  Draw d{valid, with_mistake(valid, random), meshes[static_cast<std::size_t>(draw(random, 0, 2))]};
  const auto ranks = c10::multiply_integers(d.mesh);
  d.only_rank = draw(random, 0, 2) == 0 ? static_cast<int>(draw(random, 0, ranks - 1)) : -1;
  d.seed = random();
  return d;
}

DrawResult run_regular(const RegularCall& regular) {
  const auto once = [&](unsigned char byte) {
    fill_memory_with(byte);
    return outcome_of([&] { return call(regular.op, replace_tensors(regular.args, fresh)); });
  };
  const Outcome first = once(0x40), second = once(0xc1);
  if (wrote_out_of_bounds()) return {"beside", ""};
  if (!first.error.empty() && !second.error.empty()) return {"raises", first.error};
  const bool same = first.error.empty() == second.error.empty() && difference(first, second).empty() &&
                    !regular.op.hasTag(at::Tag::nondeterministic_seeded);
  return {same ? "ok" : "unsteady", ""};
}

DrawResult run_on_ranks(const Draw& draw, const DrawResult& regular) {
  const auto args_of = [&](int rank) -> Values {
    return draw.only_rank < 0 || draw.only_rank == rank ? draw.mistaken.args : draw.valid.args;
  };
  const auto outcomes = on_ranks(draw.mesh, args_of, draw.mistaken.op, draw.seed);
  if (wrote_out_of_bounds()) return {"beside", list_of(outcomes)};
  if (contains(outcomes, "timeout after")) return {"hang", list_of(outcomes)};
  const DrawResult ending =
      draw.only_rank < 0 ? compare_outcomes(draw, regular, outcomes) : judge_outcome(draw, regular, outcomes);
  if (!is_fine(ending)) return ending;
  const std::string after = find_changed_operands(draw);
  return after.empty() ? ending : DrawResult{"after", after};
}

bool is_fine(const DrawResult& ending) {
  return ending.word == "ok" || ending.word == "raises" || ending.word == "refused" || ending.word == "left out";
}

}  // namespace dtensor::fuzz
