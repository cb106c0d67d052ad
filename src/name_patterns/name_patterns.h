// Names of a model, and patterns that match them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

// "*" matches any characters except dots (with `across_dots`, all characters); "**" matches all characters. `stars`
// receives the match of each wildcard, the shortest possible; unchanged if the pattern does not match.
bool matches_pattern(std::string_view pattern, std::string_view name, bool across_dots = false,
                     std::vector<std::string>* stars = nullptr);

// Up to `count` names, nearest first by edit distance.
std::vector<std::string> closest_names(const std::string& pattern, const std::vector<std::string>& names,
                                       std::size_t count = 3);

std::string parent_name(const std::string& name);  // "a.b" for "a.b.c"; "" for "a"

}  // namespace dtensor
