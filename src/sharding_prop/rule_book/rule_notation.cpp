// The notation of rules: `mk, kn -> mn`. One term per operand and result, one letter per factor, capitals for packs of
// dimensions; see docs/rules.md.
#define FMT_HEADER_ONLY
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {
namespace {

class Parser {
 public:
  Parser(std::string_view text, RuleData& data) : text_(text), data_(data) {}

  void parse() {
    data_.text = std::string(text_);
    parse_side(data_);
    while (accept("|")) parse_side(data_.alternatives.emplace_back());
    if (accept(";")) parse_counts();
    skip_spaces();
    if (at_ != text_.size()) fail("unexpected text");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    TORCH_CHECK(false, "rule '", std::string(text_), "': ", what, " at position ", at_);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_spaces() {
    while (peek() == ' ') ++at_;
  }
  bool accept(std::string_view token) {
    skip_spaces();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail("expected '" + std::string(token) + "'");
  }
  bool at_letter() const { return std::isalpha(static_cast<unsigned char>(peek())) != 0; }
  bool at_pack() const { return std::isupper(static_cast<unsigned char>(peek())) != 0; }

  std::string word() {
    skip_spaces();
    const std::size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '_') ++at_;
    if (at_ == begin) fail("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  // For example D = normalized_shape, S = 2.
  void parse_counts() {
    do {
      Pack& pack = data_.packs[static_cast<std::size_t>(pack_of(word()))];
      expect("=");
      pack.counted = word();
    } while (accept(","));
  }

  void parse_side(Terms& terms) {
    parse_terms(terms.operands);
    expect("->");
    parse_terms(terms.results);
  }

  void parse_terms(std::vector<Term>& terms) {
    do terms.push_back(parse_term());
    while (accept(","));
  }

  Term parse_term() {
    Term term;
    term.once = accept("+");
    term.absent = accept("~");
    while (!term.absent && parse_dim(term)) {
    }
    term.optional = accept("?");
    term.repeat = accept("*");
    if (accept("@")) term.reads = parse_operands();
    return term;
  }

  // For example 12: operands 1 and 2.
  std::uint32_t parse_operands() {
    std::uint32_t operands = 0;
    for (; std::isdigit(static_cast<unsigned char>(peek())) != 0; ++at_) operands |= 1u << (peek() - '0');
    if (operands == 0) fail("expected the operands that the result depends on");
    return operands;
  }

  bool parse_dim(Term& term) {
    if (accept("...")) {
      if (term.ellipsis >= 0 || !term.packs.empty()) fail("expected one '...' and no pack beside it");
      term.ellipsis = static_cast<int>(term.dims.size());
      return true;
    }
    if (accept("_") || accept("1")) return term.dims.emplace_back(), true;
    if (accept("(")) return parse_compound(term), true;
    if (!at_letter()) return false;
    if (at_pack())
      parse_pack(term);
    else
      term.dims.push_back({parse_factor()});
    return true;
  }

  // For example X, D!, D=_, X[dim!, dim2=i].
  void parse_pack(Term& term) {
    if (term.ellipsis >= 0) fail("expected no pack beside '...'");
    PackUse use;
    use.at = term.dims.size();
    use.self.pack = pack_of(std::string(1, text_[at_++]));
    parse_fill(use.self, &use.self);
    if (accept("[")) {
      do {
        use.slots.emplace_back().pack = pack_of(word());
        parse_fill(use.slots.back());
      } while (accept(","));
      expect("]");
    }
    term.packs.push_back(std::move(use));
  }

  void parse_fill(PackSlot& place, const PackSlot* own = nullptr) {
    Factor& each = data_.packs[static_cast<std::size_t>(place.pack)].each;
    if (accept("=")) {
      skip_spaces();
      const bool nothing = peek() == ',' || peek() == ']';
      place.fill = nothing ? PackFill::removed : accept("_") ? PackFill::unit : PackFill::factor;
      if (place.fill == PackFill::factor) place.letter = parse_factor();
    } else if (&place != own && accept("?")) {
      place.fill = PackFill::keepdim;
    } else if (accept("!")) {
      each.unsharded = true;
    }
  }

  int pack_of(const std::string& name) {
    for (std::size_t i = 0; i < data_.packs.size(); ++i) {
      if (data_.packs[i].each.name == name) return static_cast<int>(i);
    }
    data_.packs.emplace_back().each.name = name;
    return static_cast<int>(data_.packs.size()) - 1;
  }

  void parse_compound(Term& term) {
    Rule::DimFactors dim;
    while (!accept(")")) dim.push_back(parse_factor());
    term.dims.push_back(std::move(dim));
  }

  int parse_factor() {
    if (!at_letter() || at_pack()) fail("expected a factor");
    const int index = factor_of(text_[at_++]);
    if (accept("!")) data_.factors[static_cast<std::size_t>(index)].unsharded = true;
    return index;
  }

  int factor_of(char letter) {
    for (std::size_t i = 0; i < data_.factors.size(); ++i) {
      if (data_.factors[i].name[0] == letter) return static_cast<int>(i);
    }
    data_.factors.push_back({std::string(1, letter)});
    return static_cast<int>(data_.factors.size()) - 1;
  }

  std::string_view text_;
  RuleData& data_;
  std::size_t at_ = 0;
};

std::string dim_text(const RuleData& data, const Rule::DimFactors& dim) {
  if (dim.empty()) return "_";
  std::string text;
  for (const int factor : dim) {
    const Factor& f = data.factors[static_cast<std::size_t>(factor)];
    text += f.name + (f.unsharded ? "!" : "");
  }
  return dim.size() > 1 ? "(" + text + ")" : text;
}

std::string term_text(const RuleData& data, const Term& term) {
  if (term.absent) return term.repeat ? "~*" : "~";
  std::string text = term.once ? "+" : "";
  for (std::size_t i = 0; i <= term.dims.size(); ++i) {
    if (term.ellipsis == static_cast<int>(i)) text += "...";
    if (i < term.dims.size()) text += dim_text(data, term.dims[i]);
  }
  text += std::string(term.optional ? "?" : "") + (term.repeat ? "*" : "");
  if (term.reads == ~0u) return text;
  text += '@';
  for (int i = 0; i < 10; ++i) {
    if ((term.reads >> i & 1u) != 0) text += std::to_string(i);
  }
  return text;
}

std::string terms_text(const RuleData& data, const std::vector<Term>& terms) {
  std::string text;
  for (std::size_t i = 0; i < terms.size(); ++i) text += (i == 0 ? "" : ", ") + term_text(data, terms[i]);
  return text;
}

std::string ops_text(ReduceOps ops) {
  if (ops == kAnyOp) return "any";
  if (ops == kLinearOps) return "linear";
  std::string text;
  for (unsigned op = 0; op < 5; ++op) {
    if ((ops >> op & 1u) != 0) text += to_string(static_cast<ReduceOp>(op));
  }
  return text;
}

// Formats the permissions in brackets after the terms.
class Permissions {
 public:
  explicit Permissions(const RuleData& data) : data_(data) {}

  std::string str() {
    for (const Group& g : data_.groups) {
      const bool all = g.operands == Rule::Operands{kAllOperands};
      add("{} {{{}}}", ops_text(g.ops), all ? "all" : fmt::format("{}", fmt::join(g.operands, ",")));
    }
    if (data_.reduce != ReduceOp::sum) add("leaves P({})", to_string(data_.reduce));
    for (const Factor& f : data_.factors) add_factor(f, f.name);
    for (const Pack& pack : data_.packs) add_factor(pack.each, pack.each.name);
    add_factor(data_.batch, "...");
    if (data_.batch.unsharded) add("... unsharded");
    if (!data_.local_kernel.empty()) add("{}kernel {}", data_.local_kernel_always ? "always " : "", data_.local_kernel);
    if (data_.kernel_result == KernelResult::replicate) add("gives R");
    if (data_.kernel_result == KernelResult::replicate_scalars) add("scalars R");
    if (data_.kernel_reduce_op != ReduceOp::sum) add("gives P({})", to_string(data_.kernel_reduce_op));
    add_bits("writes", data_.written);
    add_bits("values unused", data_.values_unused), add_bits("ignored", data_.ignored);
    if (data_.storage != StorageView::replicate)
      add("{} storage", data_.storage == StorageView::keep ? "keeps" : "reads");
    add_arguments();
    return text_.empty() ? std::string() : "  [" + text_ + "]";
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (!text_.empty()) text_ += "; ";
    text_ += fmt::format(format, std::forward<Args>(args)...);
  }

  void add_factor(const Factor& factor, const std::string& name) {
    const bool in_text = data_.packs.empty() || data_.text.find(name + "!") != std::string::npos;
    if (factor.unsharded && !in_text) add("{} unsharded", name);
    if (factor.sharded_by_kernel) add("{} by kernel", name);
    if (factor.elastic) add("{} elastic", name);
    if (factor.nonempty) add("{} >= 1", name);
  }

  void add_bits(const char* what, std::uint32_t bits) {
    for (int i = 0; i < 32; ++i) {
      if ((bits >> i & 1u) != 0) add("{} {}", what, i);
    }
  }

  void add_arguments() {
    for (const auto& [arg, result] : data_.size_patches) add("local size {}", arg);
    for (const auto& [arg, result] : data_.stride_patches) add("local strides {}", arg);
    for (const auto& [name, fn] : data_.dims) add("[{}] by function", name);
    if (data_.reads_scalars) add("reads scalars");
    if (data_.outputs) add("outputs by function");
    if (data_.sizes_from_factors) add("outputs by letters");
    if (data_.foreach_op) add("foreach");
    if (data_.overwrites) add("overwrites");
    if (!data_.values_unused_if_zero.empty()) add("values unused if {} is 0", data_.values_unused_if_zero);
    if (data_.follows_parameter_placement) add("follows parameter placement");
    if (data_.uninitialized_results) add("uninitialized results");
    if (data_.saved_for_backward) add("saved for backward");
    if (data_.not_random) add("not random");
    if (data_.takes_saved_results) add("takes saved results");
    if (data_.restricts_values) add("restricts values");
    const auto& [along, from_end, ignored] = data_.indexing;
    if (!along.empty()) {
      add("indexes {}{}{}", along, from_end ? " from both ends" : "", ignored.empty() ? "" : " but " + ignored);
    }
  }

  const RuleData& data_;
  std::string text_;
};

}  // namespace

void parse_rule(std::string_view text, RuleData& data) { Parser(text, data).parse(); }

std::string Rule::notation() const {
  if (!data_->about.empty()) return "function: " + data_->about;
  if (!data_->packs.empty() || !data_->alternatives.empty()) return data_->text;
  return terms_text(*data_, data_->operands) + " -> " + terms_text(*data_, data_->results);
}

std::string Rule::str() const { return notation() + Permissions(*data_).str(); }

}  // namespace dtensor
