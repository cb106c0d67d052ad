// What a Rule holds: factors, terms and permissions, before it meets the sizes of a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

enum class HandledResult : std::uint8_t { partial, replicate_scalars, replicate };

struct Factor {
  std::string name;
  bool whole = false;
  bool nonempty = false;  // sharded only where every rank holds an element
  bool handled = false;
  bool elastic = false;    // tensors may differ in its size: each is split by its own
  std::int64_t size = -1;  // -1: taken from the tensors
};

// What the dimensions that an argument names hold: factors of their own (or those of the pack itself), nothing, nothing
// or not being there as keepdim says, one given factor; or they are not there.
enum class Fill : std::uint8_t { own, unit, kept, letter, gone };

struct PackPlace {
  int pack = 0;
  Fill fill = Fill::own;
  int letter = -1;
};

// A pack among the dimensions of a term, and the places that others take in it: X[dim].
struct PackUse {
  std::size_t at = 0;  // before this position of dims
  PackPlace self;
  std::vector<PackPlace> places;
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
  std::string handler;  // of handled factors, or always
  bool handler_always = false;
  HandledResult handled_result = HandledResult::partial;
  ReduceOp handled_op = ReduceOp::sum;
  StorageView storage = StorageView::replicate;
  bool reads_scalars = false;
  std::uint32_t unread = 0, ignored = 0, written = 0;  // bit i: operand i
  std::vector<std::pair<std::string, int>> size_patches, stride_patches;
  Rule::Outputs outputs;
  bool letters_give_sizes = false;
  bool by_position = false, overwrites = false, asks_destination = false;  // of the operator, as Rule says
  std::string unread_if_zero;
  bool leaves_memory = false, own_state = false, draws_nothing = false;
  Indexing indexing;
};

// Throws with the text and the position.
void parse_rule(std::string_view text, RuleData& data);

// Packs and alternatives by the ranks and arguments of a call: a rule of factors. Nothing is sharded where no
// alternative has the ranks. Other rules are returned as they are.
struct OpCall;
Rule expand_packs(const Rule& rule, const OpCall& call);

}  // namespace dtensor
