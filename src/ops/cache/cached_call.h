// CachedCall: a compiled decision, with redistribution plans, interned specs and prototypes of the results. The
// decision cache stores it.
#pragma once

#include <memory>
#include <vector>

#include "ops/cache/call_operands.h"
#include "ops/local_kernels/local_kernel.h"
#include "placement/stride_order.h"
#include "redistribute/plan/plan.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

struct InputAction {
  SpecPtr from;           // null: absent, or a number that is passed unchanged
  SpecPtr to;             // placements for the local call
  RedistributePlan plan;  // empty if `from` needs no redistribution
  bool mutated = false;
  bool out = false;                  // an out= argument, whose values are not read
  SpecPtr resized;                   // not null: the spec after the operator resizes the operand
  bool write_back = false;           // the result is computed in a temporary and copied into the operand
  bool reduces = false;              // the only change is from Partial to Replicate
  bool reshards = false;             // an axis shards both `from` and `to`, but differently
  SpecPtr result;                    // mutated: the spec of the operand after the local call
  RedistributePlan write_back_plan;  // result -> from
};

struct OutputAction {
  SpecPtr spec;                               // null: not a tensor, or absent
  c10::intrusive_ptr<DTensorImpl> prototype;  // source of the result's metadata
  int alias = -1;                             // in-place, out=: the operand that is returned
  int base = -1;                              // view: the base operand
  int source = -1;  // view or cast: the operand, which may be a parameter (autograd/gradients/parameter_views.h)
  std::int64_t offset_delta = 0;
  bool contiguous = false;    // new result with contiguous global strides: local strides must be contiguous
  bool ordered = false;       // new result whose global strides are a dense permutation
  bool dynamic = false;       // sizes are taken from the (replicated) local result
  bool materialized = false;  // view of an operand that had to be redistributed (autograd/materialized_view.h)
  bool undefined = false;     // undefined on one device; a local result is ignored
};

// Whether the memory order of a new local result differs from that of its spec (placement/stride_order.h).
inline bool has_wrong_stride_order(const OutputAction& action, const at::Tensor& local) {
  if (C10_LIKELY(action.contiguous)) return !local.is_contiguous();
  return action.ordered && !follows_order(local, *action.spec);
}

// How a decided call is carried out.
enum class Executor : std::uint8_t {
  general,
  simple,        // local tensors in, the operator itself, wrapped tensors out: nothing else to do
  inplace_view,  // t_, squeeze_, ...: changes the operand's metadata
  outside,       // on a rank outside the mesh, which takes part in nothing
};

// A call as text, with a placeholder for each number outside the key, and a hash of everything but these numbers.
struct CallFingerprint {
  std::uint64_t hash = 0;
  const std::string* text = nullptr;  // null: not computed yet
};

// A bounds check of an index operand that precedes the local call (ops/checks/index_bounds.h).
struct IndexBound {
  std::uint32_t operand = 0;
  bool before = false;    // checked before operands are redistributed for the local call, otherwise after
  bool from_end = false;  // negative indices count from the end
  std::int64_t dim = 0, size = 0;
  std::int64_t ignored = 0;  // an index that is exempt (ignore_index, padding)
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
  // The size list argument that unboxed kernels replace by its local value; -1: none.
  int size_patch_arg = -1;
  std::vector<c10::SymInt> size_patch;
  // Whether unboxed kernels can run the call: simple or `gathers`, at most one argument replaced, and all state that
  // affects it is in the key.
  bool unboxable = false;
  bool gathers = false;  // the call is simple once its operands in storage shards are gathered
  Executor executor = Executor::general;
  std::vector<IndexBound> bounds;
  std::vector<bool> absent_positions;  // of lists: on meshes without this rank, while others are here; empty: none
  bool reduces = false;                // any of `inputs` has InputAction::reduces
  bool reshards = false;               // any of `inputs` has InputAction::reshards
  bool moves_list = false;             // entries of a list are redistributed, more than one
  // Received by the rank that receives most, for operands that the program did not ask to move.
  std::int64_t implicit_bytes = 0;
  mutable CallFingerprint fingerprint;  // computed on first use in checked mode; the cache is thread-local
};

// Advances the version counter by which autograd detects writes to saved tensors. Inference tensors have none.
inline void advance_version(c10::TensorImpl& tensor) {
  if (tensor.version_counter().enabled()) tensor.bump_version();
}
// Advances the local versions of all operands that the call wrote. Also advances the DTensors' own versions for
// operators without results (lists); for others ATen's kernels at higher dispatch keys do.
void bump_versions(const CachedCall& call, c10::ArrayRef<c10::TensorImpl*> operands);
[[noreturn]] void throw_wrong_local_sizes(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec,
                                          const at::Tensor& local);
// Throws unless `local` has the local sizes of `spec`. A wrong rule gives an error instead of wrong values.
inline void check_local_sizes(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec,
                              const at::Tensor& local) {
  const at::IntArrayRef sizes = local.sizes();
  bool same = sizes.size() == spec.local_sizes.size();
  for (std::size_t i = 0; same && i < sizes.size(); ++i) same = sizes[i] == spec.local_sizes[i];
  if (C10_UNLIKELY(!same)) throw_wrong_local_sizes(entry, call, spec, local);
}

}  // namespace dtensor
