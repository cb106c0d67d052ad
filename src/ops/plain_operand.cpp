// Hashes plain operands and compares the hashes over the mesh.
#include "ops/plain_operand.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "ops/inspect_state.h"

namespace dtensor {
namespace {

const char* argument_name(const OpEntry& entry, std::size_t arg) {
  return entry.op.schema().arguments()[arg].name().c_str();
}

}  // namespace

// FNV-1a over eight bytes at a time, each word mixed down first (its low bits alone would never see the high ones).
std::uint64_t content_hash(const at::Tensor& tensor) {
  constexpr std::uint64_t kPrime = 1099511628211ull;
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto flat = tensor.contiguous().cpu();
  const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
  std::uint64_t hash = 1469598103934665603ull;
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word ^ (word >> 32)) * kPrime, hash ^= hash >> 29; };
  const std::size_t size = flat.nbytes();
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, size - i));
    add(word);
  }
  for (auto length : tensor.sizes()) add(static_cast<std::uint64_t>(length));
  return hash;
}

void check_equal_across(const MeshImpl& mesh, AxisMask axes, const at::Tensor& tensor, const std::string& complaint) {
  const auto& comm = mesh.communicator(axes);
  if (comm.size() == 1) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto mine = at::empty({1}, at::kLong);
  *mine.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(content_hash(tensor));
  const auto gathered = at::empty({comm.size()}, at::kLong);
  std::vector<at::Tensor> slots;
  for (int r = 0; r < comm.size(); ++r) slots.push_back(gathered.narrow(0, r, 1));
  comm.all_gather(slots, mine).wait();
  const auto* values = gathered.const_data_ptr<std::int64_t>();
  for (int r = 1; r < comm.size(); ++r) {
    TORCH_CHECK(values[r] == values[0], complaint, " (world ranks ", comm.ranks()[0], " and ", comm.ranks()[r],
                " differ)");
  }
}

void refuse_plain_destinations(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  if (!entry.mutates) return;
  const auto check = [&](std::size_t arg, const c10::IValue& value) {
    TORCH_CHECK(!value.isTensor() || has_dtensor_key(value.toTensor().unsafeGetTensorImpl()), entry.op.operator_name(),
                ": would write a DTensor's data into the plain tensor `", argument_name(entry, arg),
                "`; write full_tensor() or to_local() instead.");
  };
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (!entry.args[i].mutated) continue;
    if (!args[i].isList()) check(i, args[i]);
    // Entries of list operators are positions of their own: a plain position among DTensor positions stays plain.
  }
}

void check_plain_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view) {
  const auto check = [&](std::size_t arg, const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const auto& tensor = value.toTensor();
    if (has_dtensor_key(tensor.unsafeGetTensorImpl()) || tensor.dim() == 0) return;
    const auto what =
        c10::str(entry.op.operator_name(), ": operand `", argument_name(entry, arg), "` of sizes ", tensor.sizes());
    TORCH_CHECK(!strict_mode(), what, " is a plain tensor among DTensors, which Strict refuses.");
    if (!view.mesh->is_member) return;
    const auto all_axes = static_cast<AxisMask>((1u << view.mesh->layout.ndim()) - 1);
    check_equal_across(acting(*view.mesh), all_axes, tensor,
                       what +
                           " is a plain tensor whose values differ between ranks; a plain tensor among DTensors "
                           "counts as Replicate. Distribute it (distribute_tensor) or wrap the local parts "
                           "(DTensor::from_local).");
  };
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (entry.args[i].kind == ArgKind::tensor) check(i, args[i]);
    if (entry.args[i].kind == ArgKind::tensor_list && args[i].isList()) {
      for (const auto& item : args[i].toListRef()) check(i, item);
    }
  }
}

}  // namespace dtensor
