// Compares tensors between ranks by their hashes: eight bytes per tensor are exchanged, whatever its size.
#include "mesh/content_hash.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>

#include "internal/aten_scopes.h"
#include "internal/simulated.h"

namespace dtensor {

namespace {

// The tensors that a sparse layout stores: values and indices.
std::vector<at::Tensor> parts_of(const at::Tensor& t) {
  switch (t.layout()) {
    case at::kSparse:
      return {t._indices(), t._values()};
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {t.crow_indices(), t.col_indices(), t.values()};
    case at::kSparseCsc:
    case at::kSparseBsc:
      return {t.ccol_indices(), t.row_indices(), t.values()};
    default:
      TORCH_CHECK(false, "expected a strided or sparse tensor among DTensors, got one of layout ", t.layout(),
                  ", whose content cannot be compared between ranks; convert it to a strided one");
  }
}

}  // namespace

// FNV-1a over eight bytes at a time. Each word is mixed first, since its high bits would not affect low bits of the
// hash.
std::uint64_t content_hash(const at::Tensor& tensor) {
  constexpr std::uint64_t kPrime = 1099511628211ull;
  at::AutoDispatchBelowADInplaceOrView guard;
  if (tensor.layout() != at::kStrided) {
    std::uint64_t hash = 0;
    for (const auto& part : parts_of(tensor)) hash = hash * kPrime ^ content_hash(part);
    return hash;
  }
  if (is_simulated(tensor)) return 0;
  // Zero tensors of autograd have no memory.
  const auto stored = tensor._is_zerotensor() ? tensor.clone() : tensor;
  const auto flat = stored.resolve_conj().resolve_neg().contiguous().cpu();
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

// Gathers the hashes of all ranks, in rank order. Collective.
std::vector<std::vector<std::int64_t>> exchange_hashes(const Communicator& comm,
                                                       const std::vector<std::uint64_t>& mine) {
  const LocalBelowAutogradGuard regular;
  const auto count = static_cast<std::int64_t>(mine.size());
  const auto sent = at::empty({count}, at::kLong), gathered = at::empty({comm.size(), count}, at::kLong);
  std::memcpy(sent.mutable_data_ptr(), mine.data(), mine.size() * sizeof(std::uint64_t));
  comm.all_gather(gathered.unbind(0), sent).wait();
  std::vector<std::vector<std::int64_t>> all;
  const auto* values = gathered.const_data_ptr<std::int64_t>();
  for (int r = 0; r < comm.size(); ++r) all.emplace_back(values + r * count, values + (r + 1) * count);
  return all;
}

}  // namespace

void check_all_equal_across_ranks(const MeshImpl& mesh, AxisMask axes, const std::vector<at::Tensor>& tensors,
                                  const std::function<std::string(std::size_t)>& complaint) {
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

void check_equal_across_ranks(const MeshImpl& mesh, AxisMask axes, const at::Tensor& tensor,
                              const std::string& complaint) {
  check_all_equal_across_ranks(mesh, axes, {tensor}, [&](std::size_t) { return complaint; });
}

}  // namespace dtensor
