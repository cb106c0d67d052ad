// Data of a Rule: factors, terms and permissions, before it is bound to the sizes of a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

enum class KernelResult : std::uint8_t { partial, replicate_scalars, replicate };

struct Factor {
  std::string name;
  bool unsharded = false;
  bool nonempty = false;  // sharded only if every rank has an element
  bool sharded_by_kernel = false;
  bool elastic = false;    // sizes may differ between tensors; each is split by its own size
  std::int64_t size = -1;  // -1: taken from the tensors
  std::int64_t block = 1;  // sharded only at multiples of it
};

// Content of the dimensions that a slot names: own factors (or those of the pack), size 1, size 1 or nothing depending
// on keepdim, one given factor, or nothing.
enum class PackFill : std::uint8_t { own_factors, unit, keepdim, factor, removed };

struct PackSlot {
  int pack = 0;
  PackFill fill = PackFill::own_factors;
  int letter = -1;
};

// A pack in the dimensions of a term, and the slots of other packs in it: X[dim].
struct PackUse {
  std::size_t at = 0;  // position in dims before which the pack stands
  PackSlot self;
  std::vector<PackSlot> slots;
};

struct Term {
  bool absent = false;        // never sharded
  bool once = false;          // '+': added once, so Replicate may become Partial
  bool repeat = false;        // '*': applies to all further tensors of the list
  bool optional = false;      // '?': absent if the sizes differ
  int ellipsis = -1;          // position of '...' in dims
  std::uint32_t reads = ~0u;  // '@': bit i: the result depends on operand i; default: on all
  Rule::Term dims;
  std::vector<PackUse> packs;
};

struct Terms {
  std::vector<Term> operands, results;
};

// Any number of dimensions under one name. The count is a number, the length of an argument, the number of dimensions
// that the slot [name] finds, or the remaining rank of a tensor.
struct Pack {
  Factor each;
  std::string counted;
};

using ReduceOps = std::uint8_t;  // bit i: ReduceOp i
constexpr ReduceOps bit(ReduceOp op) { return static_cast<ReduceOps>(1u << static_cast<unsigned>(op)); }
constexpr ReduceOps kLinearOps = bit(ReduceOp::sum) | bit(ReduceOp::avg);
constexpr ReduceOps kAnyOp = 0x1f;
constexpr int kAllOperands = -1;

struct Group {
  Rule::Operands operands;
  ReduceOps ops = 0;
};

enum class StorageView : std::uint8_t { replicate, shard, keep };

// See Rule::indexes; unused if `along` is empty.
struct Indexing {
  std::string along;
  bool from_end = false;
  std::string ignored;
};

struct RuleData : Terms {
  std::string text;
  std::string about;  // describes the function that returns the terms
  std::vector<Factor> factors;
  std::vector<Pack> packs;
  Factor batch;                     // properties of each dimension of '...'
  std::vector<Terms> alternatives;  // the terms after '|'
  std::vector<std::pair<std::string, Rule::Dims>> dims;
  bool exact = false;  // only '...' is broadcast
  std::vector<Group> groups;
  ReduceOp reduce = ReduceOp::sum;
  std::string local_kernel;  // for factors that are sharded_by_kernel, or for all calls
  bool local_kernel_always = false;
  KernelResult kernel_result = KernelResult::partial;
  ReduceOp kernel_reduce_op = ReduceOp::sum;
  StorageView storage = StorageView::replicate;
  bool reads_scalars = false;
  std::uint32_t values_unused = 0, ignored = 0, written = 0;  // bit i: operand i
  std::vector<std::pair<std::string, int>> size_patches, stride_patches;
  Rule::Outputs outputs;
  bool sizes_from_factors = false;
  // Properties of the operator, as in Rule.
  bool foreach_op = false, overwrites = false, follows_parameter_placement = false;
  std::string values_unused_if_zero;
  bool uninitialized_results = false, saved_for_backward = false, not_random = false;
  bool takes_saved_results = false, restricts_values = false;
  Indexing indexing;
};

// Throws with the text and the position of the error.
void parse_rule(std::string_view text, RuleData& data);

// Expands packs and alternatives by the ranks and arguments of a call to a rule of factors. If no alternative has the
// ranks, nothing is sharded. Rules without packs and alternatives are returned unchanged.
struct OpCall;
Rule expand_packs(const Rule& rule, const OpCall& call);

}  // namespace dtensor
