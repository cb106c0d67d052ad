// A decision made ready to run: plans, interned specs and prototypes of the results. What a cache hit finds.
#pragma once

#include <memory>
#include <vector>

#include "ops/cache/call_view.h"
#include "ops/local_kernels/local_kernel.h"
#include "placement/stride_order.h"
#include "redistribute/plan/plan.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

struct InputAction {
  SpecPtr from;           // null: absent, or a plain number that is passed on as it is
  SpecPtr to;             // placements for the local call
  RedistributePlan plan;  // empty where `from` already serves
  bool mutated = false;
  bool out = false;                  // content does not matter
  SpecPtr resized;                   // not null: the operator gives it other sizes, and so another spec
  bool write_back = false;           // the result is computed in a temporary and copied into the operand
  bool reduces = false;              // a Partial becomes Replicate and nothing else changes
  bool reshards = false;             // an axis that shards `from` shards `to` otherwise
  SpecPtr result;                    // mutated: the spec in which the local call leaves it
  RedistributePlan write_back_plan;  // result -> from
};

struct OutputAction {
  SpecPtr spec;                               // null: not a tensor, or absent
  c10::intrusive_ptr<DTensorImpl> prototype;  // metadata of the result
  int alias = -1;                             // in-place, out=: the operand that is returned
  int base = -1;                              // view: the operand that it is a view of
  int source = -1;  // view or cast: the operand whose parameter it may stand for (autograd/gradients/parameter_views.h)
  std::int64_t offset_delta = 0;
  bool contiguous = false;  // fresh result, global strides contiguous: so must be the local ones
  bool ordered = false;     // fresh result, global strides a dense permutation
  bool dynamic = false;     // sizes are those of the (replicated) local result
  bool detached = false;    // view of an operand that had to be redistributed
  bool undefined = false;   // on one device, whatever the local kernel gives
};

// A fresh local result whose memory order is not that of its spec (placement/stride_order.h).
inline bool has_wrong_stride_order(const OutputAction& action, const at::Tensor& local) {
  if (C10_LIKELY(action.contiguous)) return !local.is_contiguous();
  return action.ordered && !follows_order(local, *action.spec);
}

// How a decided call is carried out.
enum class Executor : std::uint8_t {
  general,
  simple,        // local tensors in, plain operator, wrapped tensors out: nothing else to do
  inplace_view,  // t_, squeeze_, ...: changes the operand's metadata
  outside,       // on a rank outside the mesh, which takes part in nothing
};

// A call in words, with a mark for each number that is no part of the key; and a hash over all but those.
struct CallFingerprint {
  std::uint64_t hash = 0;
  const std::string* text = nullptr;  // null: not made yet
};

// What this rank has to see of the indices among its operands before it runs its part (ops/checks/index_bounds.h).
struct IndexBound {
  std::uint32_t operand = 0;
  bool before = false;    // looked at before operands are laid out for the local call, else afterwards
  bool from_end = false;  // -1 is the last
  std::int64_t dim = 0, size = 0;
  std::int64_t ignored = 0;  // an index that stands for none
};

struct CachedCall : std::enable_shared_from_this<CachedCall> {
  CallKey key;
  std::uint64_t hash = 0;
  MeshRef mesh;
  std::vector<SpecPtr> key_specs;  // keep the specs in the key alive
  Decision decision;
  LocalKernel local_kernel = nullptr;
  std::vector<InputAction> inputs;                 // per operand
  std::vector<std::uint32_t> written;              // operands that are mutated
  std::vector<OutputAction> outputs;               // per flattened output
  std::vector<SpecPtr> input_specs, output_specs;  // for LocalCall
  // The one size list that is replaced by its local value, for the unboxed kernels; -1: none.
  int size_patch_arg = -1;
  std::vector<c10::SymInt> size_patch;
  // Simple but for operands to gather, nothing replaced but that, and no operand about which more has to be asked than
  // the key says.
  bool unboxable = false;
  bool gathers = false;  // of an unboxable one: operands in storage shards, which a schedule may have gathered
  Executor executor = Executor::general;
  std::vector<IndexBound> bounds;
  std::vector<bool> absent_positions;  // of lists: on meshes without this rank, while others are here; empty: none
  bool reduces = false;                // one of the inputs does
  bool reshards = false;               // one of the inputs does
  bool moves_list = false;             // entries of a list are redistributed, more than one
  // Received by the rank that receives most, for operands that the program did not ask to move.
  std::int64_t implicit_bytes = 0;
  mutable CallFingerprint fingerprint;  // made when Checked first asks; the cache is this thread's
};

// The version by which autograd notices writes to what it saved; inference tensors have none.
inline void advance_version(c10::TensorImpl& tensor) {
  if (tensor.version_counter().enabled()) tensor.bump_version();
}
// bump_local_version for all operands that the call wrote to. ATen's kernels above the engine advance the versions of
// the tensors that an operator returns; the versions of what an operator without results writes (lists) are advanced
// here.
void bump_versions(const CachedCall& call, c10::ArrayRef<c10::TensorImpl*> operands);
[[noreturn]] void throw_wrong_local_sizes(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec,
                                          const at::Tensor& local);
// An error unless `local` has the sizes that `spec` asks for: a wrong rule must not become a wrong number.
inline void check_local_sizes(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec,
                              const at::Tensor& local) {
  const at::IntArrayRef sizes = local.sizes();
  bool same = sizes.size() == spec.local_sizes.size();
  for (std::size_t i = 0; same && i < sizes.size(); ++i) same = sizes[i] == spec.local_sizes[i];
  if (C10_UNLIKELY(!same)) throw_wrong_local_sizes(entry, call, spec, local);
}

}  // namespace dtensor
