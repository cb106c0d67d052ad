// Expands the packs and alternatives of a rule to factors. It computes the number of dimensions of each pack, the
// positions of named dimensions, and the alternative that has the ranks of the call. Factors are numbered in order of
// appearance, which decides ties between strategies.
#include <c10/core/WrapDimMinimal.h>

#include <charconv>

#include "sharding_prop/strategies/bound_rule.h"

namespace dtensor {
namespace {

constexpr std::int64_t kUnknown = -1;
using Positions = std::vector<std::int64_t>;

std::size_t at(const PackSlot& place) { return static_cast<std::size_t>(place.pack); }

class Expander {
 public:
  Expander(const RuleData& text, const OpCall& call) : text_(text), call_(call), packs_(text.packs.size()) {
    letters_.resize(text.factors.size(), -1);
    for (std::size_t i = 0; i < packs_.size(); ++i) packs_[i].count = counted(text.packs[i].counted);
  }

  // Returns whether every tensor has the rank of its term after the packs are counted.
  bool expand(const Terms& terms, RuleData& rule) {
    rule = text_;
    rule.packs.clear(), rule.alternatives.clear(), rule.factors.clear();
    rule.exact = true;
    for (Group& group : rule.groups) {
      if (group.operands == Rule::Operands{kAllOperands}) group.operands = all_operands();
    }
    bool fits = count_all(terms.operands, &Expander::operand_rank) && count_all(terms.results, &Expander::result_rank);
    build_all(terms.operands, rule.operands, rule);
    build_all(terms.results, rule.results, rule);
    while (!rule.results.empty() && rule.results.back().repeat && std::ssize(rule.results) < call_.result_count()) {
      rule.results.push_back(rule.results.back());
    }
    fits &= ranks_fit(rule.operands, &Expander::operand_rank) && ranks_fit(rule.results, &Expander::result_rank);
    return fits;
  }

 private:
  using RankOf = std::int64_t (Expander::*)(std::size_t) const;

  struct State {
    std::int64_t count = kUnknown;
    std::optional<Positions> positions;  // of a named slot
    std::vector<int> factors;
  };

  std::int64_t counted(const std::string& by) const {
    if (by.empty()) return kUnknown;
    std::int64_t number = 0;
    if (std::from_chars(by.data(), by.data() + by.size(), number).ec == std::errc()) return number;
    return std::ssize(call_.integers(by));
  }

  std::int64_t operand_rank(std::size_t i) const {
    return i < call_.operands.size() && call_.operands[i].defined ? call_.operands[i].dim() : kUnknown;
  }

  std::int64_t result_rank(std::size_t r) const {
    const bool known = r < call_.outputs.size() && call_.outputs[r].defined && !call_.outputs[r].from_local;
    return known ? std::ssize(call_.outputs[r].sizes) : kUnknown;
  }

  Rule::Operands all_operands() const {
    Rule::Operands all(call_.operands.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  bool keeps(const PackSlot& place) const {
    return place.fill != PackFill::keepdim || (call_.has_arg("keepdim") && call_.boolean("keepdim"));
  }

  // The dimensions that `name` means among `size` dimensions, from the left.
  Positions find_positions(const std::string& name, std::int64_t size) const {
    for (const auto& [own, fn] : text_.dims) {
      if (own == name) return fn(call_);
    }
    Positions found;
    if (size == 0) return found;
    if (call_.has_arg(name)) found = call_.integers(name);
    if (found.empty()) {
      for (std::int64_t d = 0; d < size; ++d) found.push_back(d);
    }
    for (std::int64_t& d : found) d = c10::maybe_wrap_dim(d, size);
    std::sort(found.begin(), found.end());
    return found;
  }

  std::int64_t taken_by(const PackUse& use) const {
    Positions all;
    for (const PackSlot& place : use.slots) {
      const auto& own = packs_[at(place)].positions;
      if (!own) return kUnknown;
      all.insert(all.end(), own->begin(), own->end());
    }
    std::sort(all.begin(), all.end());
    return std::unique(all.begin(), all.end()) - all.begin();
  }

  // Number of dimensions of a pack and its slots, before keepdim removes some.
  std::int64_t group_size(const PackUse& use) const {
    const std::int64_t own = packs_[at(use.self)].count, taken = taken_by(use);
    return own == kUnknown || taken == kUnknown ? kUnknown : own + taken;
  }

  void set_group(const PackUse& use, std::int64_t size) {
    for (const PackSlot& place : use.slots) {
      State& state = packs_[at(place)];
      if (!state.positions) state.positions = find_positions(text_.packs[at(place)].each.name, size);
      state.count = std::ssize(*state.positions);
    }
    State& self = packs_[at(use.self)];
    if (self.count == kUnknown) self.count = size - taken_by(use);
  }

  // The one pack of the term without a count gets the remaining dimensions.
  bool count_packs(const Term& term, std::int64_t rank) {
    std::int64_t left = rank - std::ssize(term.dims);
    const PackUse* open = nullptr;
    for (const PackUse& use : term.packs) {
      const std::int64_t size = group_size(use);
      if (size == kUnknown && open != nullptr) return true;
      if (size == kUnknown) open = &use;
      if (size != kUnknown) left -= size;
    }
    if (open == nullptr) return true;
    if (left >= 0) set_group(*open, left);
    return left >= 0;
  }

  bool count_all(const std::vector<Term>& terms, RankOf rank_of) {
    bool fits = true;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const std::int64_t rank = (this->*rank_of)(i);
      if (rank != kUnknown && !terms[i].optional && !terms[i].absent) fits &= count_packs(terms[i], rank);
    }
    return fits;
  }

  // If the rank is unknown (results are being inferred), counts by the argument.
  void count_unranked(const PackUse& use) {
    if (group_size(use) != kUnknown) return;
    std::int64_t size = std::max<std::int64_t>(packs_[at(use.self)].count, 0);
    for (const PackSlot& place : use.slots) {
      const std::string& name = text_.packs[at(place)].each.name;
      size += call_.has_arg(name) ? std::ssize(call_.integers(name)) : 0;
    }
    set_group(use, size);
  }

  int letter(int index, RuleData& rule) {
    int& known = letters_[static_cast<std::size_t>(index)];
    if (known < 0) {
      known = static_cast<int>(rule.factors.size());
      rule.factors.push_back(text_.factors[static_cast<std::size_t>(index)]);
    }
    return known;
  }

  int factor_of(const PackSlot& place, std::size_t k, RuleData& rule) {
    std::vector<int>& factors = packs_[at(place)].factors;
    while (factors.size() <= k) {
      factors.push_back(static_cast<int>(rule.factors.size()));
      rule.factors.push_back(text_.packs[at(place)].each);
      rule.factors.back().name += std::to_string(k);
    }
    return factors[k];
  }

  void add_dim(const PackSlot& place, std::size_t k, RuleData& rule, Rule::Term& dims) {
    if (place.fill == PackFill::own_factors) dims.push_back({factor_of(place, k, rule)});
    if (place.fill == PackFill::factor) dims.push_back({letter(place.letter, rule)});
    if (place.fill == PackFill::unit || (place.fill == PackFill::keepdim && keeps(place))) dims.emplace_back();
  }

  void add_group(const PackUse& use, RuleData& rule, Rule::Term& dims) {
    count_unranked(use);
    std::size_t own = 0;
    for (std::int64_t d = 0; d < group_size(use); ++d) {
      bool placed = false;
      for (const PackSlot& place : use.slots) {
        const Positions& positions = *packs_[at(place)].positions;
        const auto found = std::find(positions.begin(), positions.end(), d);
        if (placed || found == positions.end()) continue;
        add_dim(place, static_cast<std::size_t>(found - positions.begin()), rule, dims);
        placed = true;
      }
      if (!placed) add_dim(use.self, own++, rule, dims);
    }
  }

  Term build(const Term& term, RuleData& rule) {
    Term built = term;
    built.packs.clear(), built.dims.clear();
    auto use = term.packs.begin();
    for (std::size_t i = 0; i <= term.dims.size(); ++i) {
      for (; use != term.packs.end() && use->at == i; ++use) add_group(*use, rule, built.dims);
      if (i == term.dims.size()) break;
      Rule::DimFactors& dim = built.dims.emplace_back();
      for (const int f : term.dims[i]) dim.push_back(letter(f, rule));
    }
    return built;
  }

  void build_all(const std::vector<Term>& terms, std::vector<Term>& built, RuleData& rule) {
    built.clear();
    for (const Term& term : terms) built.push_back(build(term, rule));
  }

  bool ranks_fit(const std::vector<Term>& terms, RankOf rank_of) const {
    for (std::size_t i = 0; i < std::max(call_.operands.size(), call_.outputs.size()); ++i) {
      const std::int64_t rank = (this->*rank_of)(i);
      const Term* term = term_for(terms, i);
      if (rank == kUnknown || term == nullptr || term->absent || term->optional) continue;
      const auto explicit_rank = std::ssize(term->dims);
      if (term->ellipsis < 0 ? rank != explicit_rank : rank < explicit_rank) return false;
    }
    return true;
  }

  const RuleData& text_;
  const OpCall& call_;
  std::vector<State> packs_;
  std::vector<int> letters_;
};

bool same_ranks(const std::vector<Term>& a, const std::vector<Term>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Term& x, const Term& y) { return x.dims.size() == y.dims.size(); });
}

}  // namespace

Rule expand_packs(const Rule& rule, const OpCall& call) {
  const RuleData& text = rule.data();
  if (text.packs.empty() && text.alternatives.empty()) return rule;
  RuleData expanded, other;
  bool fits = Expander(text, call).expand(text, expanded);
  for (const Terms& terms : text.alternatives) {
    if (fits && !call.outputs.empty()) break;
    if (!Expander(text, call).expand(terms, fits ? other : expanded)) continue;
    if (fits && !same_ranks(expanded.results, other.results)) return Rule();  // undecidable until results are inferred
    fits = true;
  }
  return fits ? Rule(std::move(expanded)) : Rule();
}

}  // namespace dtensor
