// Names of a model and patterns over them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

// "*": any characters but dots, or any `across_dots`; "**": any.
// `stars`: what each of them stands for, the shortest first; untouched where it does not match.
bool matches_pattern(std::string_view pattern, std::string_view name, bool across_dots = false,
                     std::vector<std::string>* stars = nullptr);

// Up to `count` names, the nearest first by edit distance.
std::vector<std::string> closest_names(const std::string& pattern, const std::vector<std::string>& names,
                                       std::size_t count = 3);

std::string parent_name(const std::string& name);  // "a.b" of "a.b.c"; "" of "a"

}  // namespace dtensor
