// Runs samples rank by rank and compares the results.
#include "verify/oracle.h"

#include <ATen/ATen.h>

#include "ops/dispatch/for_each_tensor.h"
#include "ops/dispatch/operator_entry.h"
#include "placement/stride_order.h"
#include "sharding_prop/propagate.h"
#include "sharding_prop/strategies/split_call.h"

namespace dtensor {
namespace {

MeshRef make_mesh(at::IntArrayRef shape, std::int64_t rank) {
  MeshLayout layout;
  layout.shape = shape.vec();
  for (std::int64_t i = 0; i < c10::multiply_integers(shape); ++i) layout.ranks.push_back(i);
  return c10::make_intrusive<MeshInfo>(std::move(layout), rank, at::kCPU);
}

// Calls fn(argument, list index, tensor) for each operand.
template <class Fn>
void each_operand(const Sample& sample, Fn fn) {
  for_each_operand(entry_of(sample.op), sample.args, [&](std::size_t arg, int list_index, const c10::IValue& value) {
    fn(static_cast<int>(arg), list_index, value.isTensor() ? value.toTensor() : at::Tensor());
  });
}

void append_tensors(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(tensor);
  } else {
    out.emplace_back();
  }
}

// Returned tensors, and the written operands after the call.
struct Outcome {
  std::vector<at::Tensor> results, written;
};

Outcome run(const c10::OperatorHandle& op, std::vector<c10::IValue> args, const std::vector<at::Tensor>& tensors,
            const std::vector<int>& written) {
  torch::jit::Stack stack(args.begin(), args.end());
  op.callBoxed(stack);
  Outcome outcome;
  for (const c10::IValue& value : stack) append_tensors(value, outcome.results);
  for (const int i : written) outcome.written.push_back(tensors[static_cast<std::size_t>(i)]);
  return outcome;
}

// Keeps the strides, including gaps.
at::Tensor clone_strided(const at::Tensor& tensor) {
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) return tensor.clone();
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

std::vector<at::Tensor> cloned(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? clone_strided(tensor) : tensor);
    if (tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      copies.back().unsafeGetTensorImpl()->set_wrapped_number(true);
    }
  }
  return copies;
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || !a.sizes().equals(b.sizes())) return false;
  return same_values(a, b);
}

std::string decision_text(const Decision& d) {
  std::string text;
  for (const Placements& p : d.inputs) text += (text.empty() ? "" : ", ") + (p.empty() ? "-" : to_string(p));
  text += " ->";
  for (const OutputDecision& o : d.outputs) text += " " + (o.mesh ? to_string(o.placements) : std::string("-"));
  return text + "  by " + d.why;
}

// Runs every rank according to a decision and compares the result with one device.
class Verifier {
 public:
  Verifier(const Sample& sample, at::IntArrayRef shape, const std::vector<Placements>& placements, Chooser chooser)
      : sample_(sample), shape_(shape.vec()), placements_(placements), chooser_(std::move(chooser)) {}

  Verdict verify() {
    Verdict verdict;
    try {
      full_ = sample_operands(sample_);
      decision_ = decide_at(0);
      if (!decision_.local_kernel.empty()) return {Verdict::Kind::needs_kernel, decision_text(decision_)};
    } catch (const c10::NotImplementedError& e) {
      return {Verdict::Kind::refused, e.what_without_backtrace()};
    } catch (const c10::Error& e) {
      return {Verdict::Kind::unsound, std::string("propagation: ") + e.what_without_backtrace()};
    }
    try {
      compare();
    } catch (const std::exception& e) {
      verdict = {Verdict::Kind::unsound, first_line(e.what())};
    }
    verdict.text = decision_text(decision_) + (verdict.text.empty() ? "" : ": " + verdict.text);
    return verdict;
  }

 private:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  Decision decide_at(std::int64_t rank) {
    MeshCall mc = mesh_call(sample_, shape_, rank, placements_);
    specs_.clear();
    for (const Operand& operand : mc.call.operands) specs_.push_back(operand.spec);
    infer_outputs(mc.call);
    return decide(mc.call, chooser_);
  }

  void compare() {
    const std::vector<at::Tensor> copies = cloned(full_);
    const Outcome one = run(sample_.op, with_tensors(sample_, copies), copies, decision_.mutated);
    std::vector<Outcome> ranks;
    for (std::int64_t r = 0; r < c10::multiply_integers(shape_); ++r) ranks.push_back(run_rank(r));
    for (std::size_t i = 0; i < one.results.size(); ++i) check_result(one, ranks, i);
    if (!one.results.empty()) return;
    for (std::size_t i = 0; i < one.written.size(); ++i) {
      check(one.written[i], parts_of(ranks, i, &Outcome::written),
            decision_.inputs[static_cast<std::size_t>(decision_.mutated[i])], "written operand", i);
    }
  }

  Outcome run_rank(std::int64_t rank) {
    const Decision decision = rank == 0 ? decision_ : decide_at(rank);
    std::vector<at::Tensor> local;
    for (std::size_t i = 0; i < full_.size(); ++i) {
      const bool placed = !decision.inputs[i].empty() && full_[i].defined();
      local.push_back(
          placed ? to_stride_order(part_of_rank(full_[i], decision.inputs[i], shape_, rank, 17 + i), *specs_[i])
                 : full_[i]);
    }
    local = cloned(local);
    std::vector<c10::IValue> args = with_tensors(sample_, local);
    for (const ArgPatch& patch : decision.patches) args[static_cast<std::size_t>(patch.arg)] = patch.value;
    try {
      return run(sample_.op, std::move(args), local, decision.mutated);
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "rank ", rank, " raises: ", first_line(e.what()));
    }
  }

  static std::vector<at::Tensor> parts_of(const std::vector<Outcome>& ranks, std::size_t index,
                                          std::vector<at::Tensor> Outcome::*list) {
    std::vector<at::Tensor> parts;
    for (const Outcome& rank : ranks) parts.push_back((rank.*list)[index]);
    return parts;
  }

  void check_result(const Outcome& one, const std::vector<Outcome>& ranks, std::size_t i) {
    const bool list_of_any_length = decision_.outputs.size() == 1 && decision_.outputs[0].meta.from_local;
    if (!one.results[i].defined() || list_of_any_length) return;
    const OutputDecision& output = decision_.outputs.at(i);
    const OutputMeta& meta = output.meta;
    if (meta.from_local) return;
    TORCH_CHECK(meta.defined && at::IntArrayRef(meta.sizes) == one.results[i].sizes() &&
                    meta.dtype == one.results[i].scalar_type(),
                "result ", i, " is inferred as ", at::IntArrayRef(meta.sizes), " ", meta.dtype, " but has ",
                one.results[i].sizes(), " ", one.results[i].scalar_type());
    TORCH_CHECK(one.results[i].numel() == 0 || at::IntArrayRef(meta.strides) == one.results[i].strides() ||
                    !strides_matter(one.results[i], meta),
                "result ", i, " is inferred with strides ", at::IntArrayRef(meta.strides), " but has ",
                one.results[i].strides());
    check(one.results[i], parts_of(ranks, i, &Outcome::results), output.placements, "result", i);
  }

  // Strides of dimensions of size 1 are ignored.
  static bool strides_matter(const at::Tensor& tensor, const OutputMeta& meta) {
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      if (tensor.size(d) > 1 && tensor.stride(d) != meta.strides[static_cast<std::size_t>(d)]) return true;
    }
    return false;
  }

  void check(const at::Tensor& expected, const std::vector<at::Tensor>& parts, const Placements& placements,
             const char* what, std::size_t index) {
    const at::Tensor got = assemble_parts(parts, expected.sizes(), placements, shape_);
    TORCH_CHECK(close(got, expected), what, " ", index, " differs: ", got.flatten().slice(0, 0, 8), " instead of ",
                expected.flatten().slice(0, 0, 8));
  }

  const Sample& sample_;
  std::vector<std::int64_t> shape_;
  std::vector<Placements> placements_;
  Chooser chooser_;
  std::vector<at::Tensor> full_;
  std::vector<SpecPtr> specs_;  // one per operand
  Decision decision_;
};

}  // namespace

std::vector<at::Tensor> sample_operands(const Sample& sample) {
  std::vector<at::Tensor> tensors;
  each_operand(sample, [&](int, int, const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

std::vector<c10::IValue> with_tensors(const Sample& sample, const std::vector<at::Tensor>& tensors) {
  std::vector<c10::IValue> args;
  std::size_t next = 0;
  for (std::size_t i = 0; i < sample.args.size(); ++i) {
    const c10::IValue& value = sample.args[i];
    const ArgKind kind = entry_of(sample.op).args[i].kind;
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (std::size_t k = 0; k < value.toListRef().size(); ++k) list.push_back(tensors[next++]);
      args.emplace_back(std::move(list));
    } else if (kind == ArgKind::tensor_list && value.isList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::size_t k = 0; k < value.toListRef().size(); ++k, ++next) {
        list.push_back(tensors[next].defined() ? std::optional(tensors[next]) : std::nullopt);
      }
      args.emplace_back(std::move(list));
    } else if (kind == ArgKind::tensor) {
      const at::Tensor& tensor = tensors[next++];
      tensor.defined() ? args.emplace_back(tensor) : args.emplace_back();
    } else {
      args.push_back(value);
    }
  }
  return args;
}

bool is_placed(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

std::vector<at::Tensor> results_of(const Sample& sample, const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> results = run(sample.op, with_tensors(sample, cloned(operands)), {}, {}).results;
  std::erase_if(results, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return results;
}

bool has_finite_results(const Sample& sample) {
  const std::vector<at::Tensor> tensors = cloned(sample_operands(sample));
  const auto finite = [](const at::Tensor& tensor) { return !tensor.defined() || all_finite(tensor); };
  if (!std::all_of(tensors.begin(), tensors.end(), finite)) return false;
  const Outcome outcome = run(sample.op, with_tensors(sample, tensors), {}, {});
  return std::all_of(tensors.begin(), tensors.end(), finite) &&
         std::all_of(outcome.results.begin(), outcome.results.end(), finite);
}

MeshCall mesh_call(const Sample& sample, at::IntArrayRef mesh_shape, std::int64_t rank,
                   const std::vector<Placements>& placements) {
  MeshCall mc;
  const MeshRef mesh = make_mesh(mesh_shape, rank);
  mc.args = sample.args;
  mc.call.info = &entry_of(sample.op);
  mc.call.args = mc.args;
  mc.call.mesh = mesh;
  each_operand(sample, [&](int arg, int list_index, const at::Tensor& tensor) {
    const std::size_t index = mc.call.operands.size();
    Operand& operand = mc.call.operands.emplace_back();
    operand.arg = arg;
    operand.list_index = list_index;
    operand.defined = tensor.defined();
    if (!operand.defined) return;
    operand.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    operand.sizes = tensor.sizes();
    operand.strides = tensor.strides();
    operand.dtype = tensor.scalar_type();
    if (placements[index].empty()) return;
    operand.spec = intern_spec(mesh, placements[index], tensor.sizes(), tensor.strides(), operand.dtype);
  });
  return mc;
}

Verdict verify_strategy(const Sample& sample, at::IntArrayRef mesh_shape, const std::vector<Placements>& placements,
                        const Chooser& chooser) {
  return Verifier(sample, mesh_shape, placements, chooser).verify();
}

Verdict verify_decision(const Sample& sample, at::IntArrayRef mesh_shape, const std::vector<Placements>& placements) {
  return verify_strategy(sample, mesh_shape, placements, [](const BoundRule& p) { return choose(p); });
}

}  // namespace dtensor
