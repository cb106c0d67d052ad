// Regular expressions as tokenizer.json has them: alternatives, groups, classes with \p{..} and shorthands, look-ahead,
// (?i:..), greedy, lazy and possessive repeats. Over characters of UTF-8; the leftmost match, alternatives in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tokenizer {

// Characters by category and by range, each possibly "all but".
struct CharacterSet {
  struct Item {
    std::uint32_t mask = 0;  // categories, or where 0
    std::uint32_t first = 0, last = 0;
    bool negated = false;
  };
  std::vector<Item> items;
  bool negated = false;
  bool has(std::uint32_t code) const;
};

class Regex {
 public:
  explicit Regex(const std::string& pattern);  // throws Error with the pattern and the place
  // Begin and end of each match that is not empty, in bytes.
  std::vector<std::pair<std::size_t, std::size_t>> find_all(std::string_view text) const;

  // What the parser makes of a pattern.
  struct Node {
    enum class Kind : std::uint8_t { set, sequence, alternatives, repeat, look_ahead, at_begin, at_end };
    Kind kind = Kind::sequence;
    std::vector<Node> parts = {};
    CharacterSet set = {};
    int least = 0, most = 0;  // of a repeat; most -1: any number
    enum class Mode : std::uint8_t { greedy, lazy, possessive } mode = Mode::greedy;
    bool negated = false;
  };

 private:
  struct Op {
    enum class Kind : std::uint8_t { set, fork, jump, look_ahead, atomic, at_begin, at_end, match };
    Kind kind;
    std::size_t target = 0;  // where to go on: of a fork, if the next op leads to nothing
    bool negated = false;
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void emit(const Node& node);
  void emit_alternatives(const Node& node);
  void emit_repeat(const Node& node);
  void emit_any_number(const Node& node);
  std::size_t emit(Op op);
  // Where a match from operation `op` on ends that begins at character `at`; kNone: nowhere.
  std::size_t run(std::size_t op, std::size_t at, const std::vector<std::uint32_t>& codes) const;
  struct Way {
    std::size_t op, at;
  };
  // One operation; false where this way ends.
  bool go_on(Way& way, std::vector<Way>& others, const std::vector<std::uint32_t>& codes) const;

  std::vector<Op> ops_;
  std::vector<CharacterSet> sets_;
};

Regex::Node parse_regex(const std::string& pattern);

}  // namespace tokenizer
