// What a Rule holds: factors, terms and permissions, before it meets the sizes of a call.
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
  bool nonempty = false;  // sharded only where every rank holds an element
  bool sharded_by_kernel = false;
  bool elastic = false;    // tensors may differ in its size: each is split by its own
  std::int64_t size = -1;  // -1: taken from the tensors
};

// What the dimensions that an argument names hold: factors of their own (or those of the pack itself), nothing, nothing
// or not being there as keepdim says, one given factor; or they are not there.
enum class PackFill : std::uint8_t { own_factors, unit, keepdim, factor, removed };

struct PackSlot {
  int pack = 0;
  PackFill fill = PackFill::own_factors;
  int letter = -1;
};

// A pack among the dimensions of a term, and the places that others take in it: X[dim].
struct PackUse {
  std::size_t at = 0;  // before this position of dims
  PackSlot self;
  std::vector<PackSlot> slots;
};

struct Term {
  bool absent = false;        // never sharded
  bool once = false;          // '+': added once, so Replicate may become Partial
  bool repeat = false;        // '*': every further operand of the list
  bool optional = false;      // '?': absent where the sizes are others
  int ellipsis = -1;          // position of '...' among dims
  std::uint32_t reads = ~0u;  // '@': bit i: the result is computed of operand i; of all where nothing is said
  RuleTerm dims;
  std::vector<PackUse> packs;
};

struct Terms {
  std::vector<Term> operands, results;
};

// Any number of dimensions under one name: as many as an argument has entries or a number says, as [name] finds, or as
// the ranks leave.
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

// As Rule::indexes says; nothing where `along` is empty.
struct Indexing {
  std::string along;
  bool from_end = false;
  std::string ignored;
};

struct RuleData : Terms {
  std::string text;
  std::string about;  // what the function does that gives the terms
  std::vector<Factor> factors;
  std::vector<Pack> packs;
  Factor batch;                     // what holds for each dimension of '...'
  std::vector<Terms> alternatives;  // behind '|'
  std::vector<std::pair<std::string, Rule::Dims>> dims;
  bool exact = false;  // nothing but '...' is broadcast
  std::vector<Group> groups;
  ReduceOp reduce = ReduceOp::sum;
  std::string local_kernel;  // of handled factors, or always
  bool local_kernel_always = false;
  KernelResult kernel_result = KernelResult::partial;
  ReduceOp kernel_reduce_op = ReduceOp::sum;
  StorageView storage = StorageView::replicate;
  bool reads_scalars = false;
  std::uint32_t values_unused = 0, ignored = 0, written = 0;  // bit i: operand i
  std::vector<std::pair<std::string, int>> size_patches, stride_patches;
  Rule::Outputs outputs;
  bool sizes_from_factors = false;
  bool foreach_op = false, overwrites = false, follows_parameter_placement = false;  // of the operator, as Rule says
  std::string values_unused_if_zero;
  bool uninitialized_results = false, saved_for_backward = false, not_random = false;
  Indexing indexing;
};

// Throws with the text and the position.
void parse_rule(std::string_view text, RuleData& data);

// Packs and alternatives by the ranks and arguments of a call: a rule of factors. Nothing is sharded where no
// alternative has the ranks. Other rules are returned as they are.
struct OpCall;
Rule expand_packs(const Rule& rule, const OpCall& call);

}  // namespace dtensor
