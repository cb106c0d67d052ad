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
  const auto flat = tensor.resolve_conj().resolve_neg().contiguous().cpu();
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
  add(static_cast<std::uint64_t>(tensor.scalar_type()));
  return hash;
}

namespace {

// The hashes that each rank gives, in rank order. Collective.
std::vector<std::vector<std::int64_t>> exchange_hashes(const Communicator& comm,
                                                       const std::vector<std::uint64_t>& mine) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto count = static_cast<std::int64_t>(mine.size());
  const auto sent = at::empty({count}, at::kLong), gathered = at::empty({comm.size(), count}, at::kLong);
  std::memcpy(sent.mutable_data_ptr(), mine.data(), mine.size() * sizeof(std::uint64_t));
  comm.all_gather(gathered.unbind(0), sent).wait();
  std::vector<std::vector<std::int64_t>> all;
  const auto* values = gathered.const_data_ptr<std::int64_t>();
  for (int r = 0; r < comm.size(); ++r) all.emplace_back(values + r * count, values + (r + 1) * count);
  return all;
}

// `complaint(i)` says what tensor i is.
template <class Complaint>
void check_all_equal(const MeshImpl& mesh, AxisMask axes, const std::vector<at::Tensor>& tensors,
                     const Complaint& complaint) {
  const auto& comm = mesh.communicator(axes);
  if (comm.size() == 1) return;
  std::vector<std::uint64_t> mine;
  for (const auto& tensor : tensors) mine.push_back(content_hash(tensor));
  const auto all = exchange_hashes(comm, mine);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t r = 1; r < all.size(); ++r) {
      TORCH_CHECK(all[r][i] == all[0][i], complaint(i), " (world ranks ", comm.ranks()[0], " and ", comm.ranks()[r],
                  " differ)");
    }
  }
}

// Calls that ask for one decision, told by what ranks share: the operator, the DTensors' specs (nothing of them that
// belongs to one rank), sizes and types of plain operands, never their strides.
std::uint64_t kind_of_call(const OpEntry& entry, const CallView& view) {
  std::uint64_t hash = entry.index + 1;
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 0xff51afd7ed558ccdull, hash ^= hash >> 32; };
  for (const auto* impl : view.operands) {
    add(impl == nullptr ? 0 : 1);
    if (impl == nullptr) continue;
    add(static_cast<std::uint64_t>(c10::typeMetaToScalarType(impl->dtype())));
    for (const auto size : impl->sizes()) add(static_cast<std::uint64_t>(size));
    if (!has_dtensor_key(impl)) continue;
    for (const auto& p : static_cast<const DTensorImpl*>(impl)->spec()->placements) add(p.hash());
  }
  return hash;
}

// The first of a kind, and of many ever fewer, about 2 ln(n) of n: their gaps follow no period, so that of several
// operands that take turns in one kind of call none stays unseen.
bool is_picked(std::uint64_t count) {
  constexpr std::uint64_t kSampledFrom = 256;
  if (count < kSampledFrom) return count == 1;
  std::uint64_t mixed = count * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 29)) * 0xff51afd7ed558ccdull;
  return (mixed >> 32) % count < 2;
}

// Those whose content counts: destinations that are wholly overwritten may hold anything.
std::vector<std::pair<std::size_t, at::Tensor>> plain_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  std::vector<std::pair<std::size_t, at::Tensor>> found;
  const auto add = [&](std::size_t arg, const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() == 0) return;
    if (!has_dtensor_key(value.unsafeToTensorImpl())) found.emplace_back(arg, value.toTensor());
  };
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (entry.args[i].overwritten && !strict_mode()) continue;
    if (entry.args[i].kind == ArgKind::tensor) add(i, args[i]);
    if (entry.args[i].kind != ArgKind::tensor_list || !args[i].isList()) continue;
    for (const auto& item : args[i].toListRef()) add(i, item);
  }
  return found;
}

AxisMask all_axes(const MeshInfo& mesh) { return static_cast<AxisMask>((1u << mesh.layout.ndim()) - 1); }

}  // namespace

void check_plain_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view) {
  const bool picked = is_picked(acting(*view.mesh).count(kind_of_call(entry, view)));
  if (!picked && !checked_mode() && !strict_mode()) return;
  const auto operands = plain_operands(entry, args);
  const auto what = [&](std::size_t i) {
    return c10::str(entry.op.operator_name(), ": operand `", argument_name(entry, operands[i].first), "` of sizes ",
                    operands[i].second.sizes());
  };
  if (operands.empty()) return;
  TORCH_CHECK(!strict_mode(), what(0), " is a plain tensor among DTensors, which Strict refuses.");
  if (!view.mesh->is_member) return;
  std::vector<at::Tensor> tensors;
  for (const auto& operand : operands) tensors.push_back(operand.second);
  check_all_equal(acting(*view.mesh), all_axes(*view.mesh), tensors, [&](std::size_t i) {
    return what(i) +
           " is a plain tensor whose values differ between ranks; a plain tensor among DTensors counts as Replicate. "
           "Distribute it (distribute_tensor) or wrap the local parts (DTensor::from_local).";
  });
}

void check_equal_across(const MeshImpl& mesh, AxisMask axes, const at::Tensor& tensor, const std::string& complaint) {
  check_all_equal(mesh, axes, {tensor}, [&](std::size_t) { return complaint; });
}

}  // namespace dtensor
