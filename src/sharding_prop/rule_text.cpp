// The text form of rules: `mk, kn -> mn`. One term per operand and result, one letter per factor; see docs/rules.md.
#include "sharding_prop/rule_data.h"

namespace dtensor {
namespace {

class Parser {
 public:
  Parser(std::string_view text, RuleData& data) : text_(text), data_(data) {}

  void parse() {
    data_.text = std::string(text_);
    parse_terms(data_.operands);
    expect("->");
    parse_terms(data_.results);
    if (at_ != text_.size()) fail("unexpected text");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
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
    if (!accept(token)) fail("expected '->'");
  }

  void parse_terms(std::vector<Term>& terms) {
    do terms.push_back(parse_term());
    while (accept(","));
  }

  Term parse_term() {
    Term term;
    term.once = accept("+");
    if (accept("~")) {
      term.absent = true;
      return term;
    }
    while (parse_dim(term)) {
    }
    term.repeat = accept("*");
    return term;
  }

  bool parse_dim(Term& term) {
    if (accept("...")) {
      if (term.ellipsis >= 0) fail("a second '...'");
      term.ellipsis = static_cast<int>(term.dims.size());
      return true;
    }
    if (accept("_") || accept("1")) return term.dims.emplace_back(), true;
    if (accept("(")) return parse_compound(term), true;
    if (std::isalpha(static_cast<unsigned char>(peek())) == 0) return false;
    term.dims.push_back({parse_factor()});
    return true;
  }

  void parse_compound(Term& term) {
    RuleDim dim;
    while (!accept(")")) {
      if (std::isalpha(static_cast<unsigned char>(peek())) == 0) fail("expected a factor or ')'");
      dim.push_back(parse_factor());
    }
    term.dims.push_back(std::move(dim));
  }

  int parse_factor() {
    const int index = factor_of(text_[at_++]);
    if (accept("!")) data_.factors[static_cast<std::size_t>(index)].whole = true;
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

std::string dim_text(const RuleData& data, const RuleDim& dim) {
  if (dim.empty()) return "_";
  std::string text;
  for (const int factor : dim) {
    const Factor& f = data.factors[static_cast<std::size_t>(factor)];
    text += f.name + (f.whole ? "!" : "");
  }
  return dim.size() > 1 ? "(" + text + ")" : text;
}

std::string term_text(const RuleData& data, const Term& term) {
  if (term.absent) return "~";
  std::string text = term.once ? "+" : "";
  for (std::size_t i = 0; i <= term.dims.size(); ++i) {
    if (term.ellipsis == static_cast<int>(i)) text += "...";
    if (i < term.dims.size()) text += dim_text(data, term.dims[i]);
  }
  return text + (term.repeat ? "*" : "");
}

std::string terms_text(const RuleData& data, const std::vector<Term>& terms) {
  std::string text;
  for (std::size_t i = 0; i < terms.size(); ++i) text += (i == 0 ? "" : ", ") + term_text(data, terms[i]);
  return text;
}

}  // namespace

void parse_rule(std::string_view text, RuleData& data) { Parser(text, data).parse(); }

std::string Rule::str() const {
  return terms_text(*data_, data_->operands) + " -> " + terms_text(*data_, data_->results);
}

}  // namespace dtensor
