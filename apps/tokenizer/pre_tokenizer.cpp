// Pre-tokenizers as functions.
#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "tokenizer/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

using nlohmann::json;
using Matches = std::vector<std::pair<std::size_t, std::size_t>>;
using Finder = std::function<Matches(const std::string&)>;

struct Cut {
  std::size_t begin, end;
  bool matches;
};

// Matches and the texts between them; together they are the text.
std::vector<Cut> cuts_of(std::size_t length, const Matches& matches, bool invert) {
  std::vector<Cut> cuts;
  std::size_t at = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > at) cuts.push_back({at, begin, invert});
    cuts.push_back({begin, end, !invert});
    at = end;
  }
  if (at < length) cuts.push_back({at, length, invert});
  return cuts;
}

enum class Behavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const std::string& name) {
  const std::pair<const char*, Behavior> known[] = {{"Isolated", Behavior::isolated},
                                                    {"Removed", Behavior::removed},
                                                    {"MergedWithPrevious", Behavior::merged_with_previous},
                                                    {"MergedWithNext", Behavior::merged_with_next},
                                                    {"Contiguous", Behavior::contiguous}};
  for (const auto& [text, behavior] : known) {
    if (name == text) return behavior;
  }
  throw Error("Split with behavior " + name + " is not supported");
}

// A match is merged with its neighbor unless the previous piece in that direction is a match as well.
std::vector<Cut> joined(const std::vector<Cut>& cuts, Behavior behavior) {
  std::vector<Cut> result;
  bool last = false;
  for (const Cut& cut : cuts) {
    const bool joins = behavior == Behavior::contiguous ? !result.empty() && cut.matches == last
                                                        : !result.empty() && cut.matches && !last;
    if (joins) {
      result.back().begin = std::min(result.back().begin, cut.begin);
      result.back().end = std::max(result.back().end, cut.end);
    } else {
      result.push_back(cut);
    }
    last = cut.matches;
  }
  return result;
}

Pieces split(const Piece& piece, const Matches& matches, Behavior behavior, bool invert = false) {
  auto cuts = cuts_of(piece.text.size(), matches, invert);
  if (behavior == Behavior::removed) std::erase_if(cuts, [](const Cut& cut) { return cut.matches; });
  if (behavior == Behavior::merged_with_previous || behavior == Behavior::contiguous) cuts = joined(cuts, behavior);
  if (behavior == Behavior::merged_with_next) {
    std::reverse(cuts.begin(), cuts.end());
    cuts = joined(cuts, behavior);
    std::reverse(cuts.begin(), cuts.end());
  }
  Pieces pieces;
  for (const Cut& cut : cuts)
    pieces.push_back({piece.text.substr(cut.begin, cut.end - cut.begin), piece.begins && cut.begin == 0});
  return pieces;
}

Matches find_text(const std::string& text, const std::string& wanted) {
  Matches found;
  for (auto at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + wanted.size()))
    found.emplace_back(at, at + wanted.size());
  return found;
}

PreTokenizer make_split(const json& d) {
  const json& pattern = d.at("pattern");
  Finder find;
  if (pattern.contains("Regex")) {
    auto regex = std::make_shared<const Regex>(pattern.at("Regex").get<std::string>());
    find = [regex](const std::string& text) { return regex->find_all(text); };
  } else {
    const std::string wanted = pattern.at("String");
    if (wanted.empty()) throw Error("Split: expected a non-empty pattern");
    find = [wanted](const std::string& text) { return find_text(text, wanted); };
  }
  return [find, behavior = behavior_of(d.at("behavior")), invert = d.value("invert", false)](const Piece& piece) {
    return split(piece, find(piece.text), behavior, invert);
  };
}

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string in_printable(const std::string& text) {
  std::string result;
  for (const char c : text) append(result, printable_bytes()[static_cast<unsigned char>(c)]);
  return result;
}

PreTokenizer make_byte_level(const json& d) {
  auto regex = d.value("use_regex", true) ? std::make_shared<const Regex>(kGpt2) : nullptr;
  return [regex, prefix = d.value("add_prefix_space", true)](Piece piece) {
    if (prefix && !piece.text.starts_with(' ')) piece.text.insert(piece.text.begin(), ' ');
    auto pieces = regex ? split(piece, regex->find_all(piece.text), Behavior::isolated) : Pieces{piece};
    for (Piece& p : pieces) p.text = in_printable(p.text);
    return pieces;
  };
}

PreTokenizer make_metaspace(const json& d) {
  const std::string mark = d.value("replacement", "\u2581");
  const std::string scheme = d.value("prepend_scheme", d.value("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    throw Error("Metaspace with prepend_scheme " + scheme + " is not supported");
  return [mark, scheme, cuts = d.value("split", true)](Piece piece) {
    std::string text;
    for (const char c : piece.text) c == ' ' ? text += mark : text += c;
    const bool prepends = scheme == "always" || (scheme == "first" && piece.begins);
    piece.text = prepends && !text.starts_with(mark) ? mark + text : text;
    return cuts ? split(piece, find_text(piece.text, mark), Behavior::merged_with_next) : Pieces{piece};
  };
}

PreTokenizer make_sequence(const json& d) {
  std::vector<PreTokenizer> all;
  for (const json& part : d.at("pretokenizers")) all.push_back(make_pre_tokenizer(part));
  return [all](const Piece& piece) {
    Pieces pieces = {piece};
    for (const auto& part : all) {
      Pieces next;
      for (const Piece& p : pieces) {
        for (Piece& made : part(p)) {
          if (!made.text.empty()) next.push_back(std::move(made));
        }
      }
      pieces = std::move(next);
    }
    return pieces;
  };
}

}  // namespace

const std::array<std::uint32_t, 256>& printable_bytes() {
  static const auto table = [] {
    std::array<std::uint32_t, 256> codes{};
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      codes[b] = prints ? b : next++;
    }
    return codes;
  }();
  return table;
}

PreTokenizer make_pre_tokenizer(const json& d) {
  if (d.is_null()) return [](const Piece& piece) { return Pieces{piece}; };
  const std::string type = d.at("type");
  if (type == "Sequence") return make_sequence(d);
  if (type == "ByteLevel") return make_byte_level(d);
  if (type == "Split") return make_split(d);
  if (type == "Metaspace") return make_metaspace(d);
  if (type == "Digits") {
    const auto digit = std::make_shared<const Regex>("\\p{N}");
    const auto behavior = d.value("individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
    return [digit, behavior](const Piece& piece) { return split(piece, digit->find_all(piece.text), behavior); };
  }
  throw Error("pre-tokenizer of type " + type + " is not supported");
}

}  // namespace tokenizer
