// The grammar of patterns.
#include <algorithm>
#include <string>

#include "tokenizer/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

using Node = Regex::Node;
using Item = CharacterSet::Item;

class Parser {
 public:
  explicit Parser(const std::string& pattern) : pattern_(pattern), codes_(codes_of(pattern)) {}

  Node parse() {
    Node node = alternatives();
    if (!done()) fail("a ')' too many");
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("regular expression '" + pattern_ + "': " + what + " at character " + std::to_string(at_));
  }
  bool done() const { return at_ == codes_.size(); }
  std::uint32_t peek() const { return done() ? 0 : codes_[at_]; }
  std::uint32_t next() {
    if (done()) fail("it ends too early");
    return codes_[at_++];
  }
  bool take(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (at_ + i >= codes_.size() || codes_[at_ + i] != static_cast<unsigned char>(text[i])) return false;
    }
    at_ += text.size();
    return true;
  }

  Node alternatives() {
    if (++depth_ > 100) fail("groups within groups beyond 100");
    Node all{.kind = Node::Kind::alternatives};
    do {
      all.parts.push_back(sequence());
    } while (take("|"));
    --depth_;
    return all.parts.size() == 1 ? all.parts.front() : all;
  }

  Node sequence() {
    Node all{.kind = Node::Kind::sequence};
    while (!done() && peek() != '|' && peek() != ')') all.parts.push_back(repeated());
    return all;
  }

  Node repeated() {
    Node node = atom();
    while (true) {
      int least = 0, most = -1;
      bool counted = false;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (peek() == '{') {
        counted = true;
        counts(least, most);
      } else if (!take("*")) {
        return node;
      }
      if (most < 0 && may_be_empty(node)) fail("a repeat without end of what may be empty");
      Node repeat{.kind = Node::Kind::repeat, .parts = {std::move(node)}, .least = least, .most = most};
      if (take("?")) repeat.mode = Node::Mode::lazy;
      if (!counted && take("+")) repeat.mode = Node::Mode::possessive;
      node = std::move(repeat);
    }
  }

  int number() {
    int value = 0;
    if (peek() < '0' || peek() > '9') fail("no number");
    while (peek() >= '0' && peek() <= '9') {
      value = 10 * value + static_cast<int>(next() - '0');
      if (value > 1000) fail("a count beyond 1000");
    }
    return value;
  }

  void counts(int& least, int& most) {
    next();
    least = peek() == ',' ? 0 : number();
    most = least;
    if (take(",")) most = peek() == '}' ? -1 : number();
    if (!take("}")) fail("no '}'");
    if (most >= 0 && most < least) fail("counts in the wrong order");
  }

  static bool may_be_empty(const Node& node) {
    switch (node.kind) {
      case Node::Kind::set:
        return false;
      case Node::Kind::alternatives:
        return std::any_of(node.parts.begin(), node.parts.end(), may_be_empty);
      case Node::Kind::repeat:
        return node.least == 0 || may_be_empty(node.parts.front());
      default:
        return std::all_of(node.parts.begin(), node.parts.end(), may_be_empty) || node.kind != Node::Kind::sequence;
    }
  }

  Node atom() {
    if (take("(")) return group();
    if (take("[")) return Node{.kind = Node::Kind::set, .set = character_class()};
    if (take("^")) return Node{.kind = Node::Kind::at_begin};
    if (take("$")) return Node{.kind = Node::Kind::at_end};
    CharacterSet set;
    if (take(".")) {
      set.items.push_back({.first = '\n', .last = '\n', .negated = true});
    } else if (peek() == '\\') {
      set = escape();
    } else if (peek() == '*' || peek() == '+' || peek() == '?') {
      fail("nothing to repeat");
    } else {
      add_character(set, next());
    }
    return Node{.kind = Node::Kind::set, .set = std::move(set)};
  }

  Node group() {
    Node node;
    const bool before = ignore_case_;
    if (take("?=") || take("?!")) {
      const bool negated = codes_[at_ - 1] == '!';
      node = Node{.kind = Node::Kind::look_ahead, .negated = negated};
      node.parts.push_back(alternatives());
    } else {
      if (take("?i:")) {
        ignore_case_ = true;
      } else if (!take("?:") && peek() == '?') {
        fail("a kind of group that is not served");
      }
      node = alternatives();
    }
    ignore_case_ = before;
    if (!take(")")) fail("no ')'");
    return node;
  }

  // Letters of ASCII, and the two signs that fold to one of them.
  void add_character(CharacterSet& set, std::uint32_t code) const {
    set.items.push_back({.first = code, .last = code});
    const std::uint32_t lower = code | 0x20;
    if (!ignore_case_) return;
    if (code >= 128) fail("(?i:) beyond ASCII is not served");
    if (lower < 'a' || lower > 'z') return;
    const std::uint32_t other = code ^ 0x20;
    set.items.push_back({.first = other, .last = other});
    if (lower == 's') set.items.push_back({.first = 0x17F, .last = 0x17F});
    if (lower == 'k') set.items.push_back({.first = 0x212A, .last = 0x212A});
  }

  CharacterSet category(bool negated) {
    if (!take("{")) fail("no '{' after \\p");
    if (take("^")) negated = !negated;
    std::string name;
    while (peek() != '}') append(name, next());
    next();
    const std::uint32_t mask = category_mask(name);
    if (mask == 0) fail("no category '" + name + "'");
    return {.items = {Item{.mask = mask}}, .negated = negated};
  }

  CharacterSet escape() {
    next();
    const std::uint32_t code = next();
    switch (code) {
      case 'p':
      case 'P':
        return category(code == 'P');
      case 's':
      case 'S':
        return {.items = {Item{.mask = category_mask("Z")}, Item{.first = 9, .last = 13},
                          Item{.first = 0x85, .last = 0x85}},
                .negated = code == 'S'};
      case 'd':
      case 'D':
        return {.items = {Item{.mask = category_mask("Nd")}}, .negated = code == 'D'};
      case 'w':
      case 'W':
        return {.items = {Item{.mask = category_mask("L") | category_mask("M") | category_mask("Nd") |
                                       category_mask("Pc")}},
                .negated = code == 'W'};
      default:
        break;
    }
    CharacterSet set;
    constexpr std::string_view kNames = "nrtfv", kCodes = "\n\r\t\f\v";
    const auto known = code < 128 ? kNames.find(static_cast<char>(code)) : std::string_view::npos;
    const bool letter = (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    if (code == 'x' || code == 'u') {
      add_character(set, hexadecimal(code == 'x' ? 2 : 4));
    } else if (known != std::string_view::npos) {
      add_character(set, static_cast<unsigned char>(kCodes[known]));
    } else if (letter || (code >= '0' && code <= '9')) {
      fail("an escape that is not served");
    } else {
      add_character(set, code);
    }
    return set;
  }

  std::uint32_t hexadecimal(int digits) {
    const bool braces = take("{");
    std::uint32_t value = 0;
    for (int i = 0; braces ? peek() != '}' : i < digits; ++i) {
      const std::uint32_t c = next(), lower = c | 0x20;
      const bool digit = c >= '0' && c <= '9';
      if (!digit && (lower < 'a' || lower > 'f')) fail("no hexadecimal digit");
      value = value * 16 + (digit ? c - '0' : lower - 'a' + 10);
      if (value > 0x10FFFF) fail("no character");
    }
    if (braces) next();
    return value;
  }

  CharacterSet character_class() {
    CharacterSet all;
    all.negated = take("^");
    for (bool first = true; first || peek() != ']'; first = false) {
      if (done()) fail("no ']'");
      if (peek() == '[') fail("a class within a class is not served");
      if (peek() == '&' && at_ + 1 < codes_.size() && codes_[at_ + 1] == '&') fail("&& is not served");
      add_class_item(all);
    }
    next();
    return all;
  }

  void add_class_item(CharacterSet& all) {
    CharacterSet one;
    if (peek() == '\\') {
      one = escape();
    } else {
      add_character(one, next());
    }
    const bool single = one.items.size() == 1 && one.items[0].mask == 0 && one.items[0].first == one.items[0].last;
    if (single && peek() == '-' && at_ + 1 < codes_.size() && codes_[at_ + 1] != ']') {
      next();
      CharacterSet end;
      if (peek() == '\\') {
        end = escape();
      } else {
        end.items.push_back({.first = peek(), .last = peek()});
        next();
      }
      if (end.items.size() != 1 || end.items[0].mask != 0 || end.items[0].last < one.items[0].first) fail("no range");
      one.items[0].last = end.items[0].last;
    }
    if (one.negated && one.items.size() > 1) {  // \S: none of several
      fail("a negated shorthand of several ranges within a class is not served");
    }
    for (Item item : one.items) {
      item.negated = item.negated != one.negated;
      all.items.push_back(item);
    }
  }

  const std::string& pattern_;
  const std::vector<std::uint32_t> codes_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool ignore_case_ = false;
};

}  // namespace

Regex::Node parse_regex(const std::string& pattern) { return Parser(pattern).parse(); }

}  // namespace tokenizer
