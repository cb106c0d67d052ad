// Glob matching of dotted names, and edit distance for suggestions.
#include "name_patterns/name_patterns.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dtensor {

bool matches_pattern(std::string_view pattern, std::string_view name, bool across_dots,
                     std::vector<std::string>* stars) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') {
    return !name.empty() && name[0] == pattern[0] &&
           matches_pattern(pattern.substr(1), name.substr(1), across_dots, stars);
  }
  const bool both = pattern.starts_with("**"), any = both || across_dots;
  const std::string_view rest = pattern.substr(both ? 2 : 1);
  for (std::size_t used = 0;; ++used) {
    if (matches_pattern(rest, name.substr(used), across_dots, stars)) {
      if (stars != nullptr) stars->insert(stars->begin(), std::string(name.substr(0, used)));
      return true;
    }
    if (used == name.size() || (!any && name[used] == '.')) return false;
  }
}

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> closest_names(const std::string& pattern, const std::vector<std::string>& names,
                                       std::size_t count) {
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& name : names) ranked.emplace_back(edit_distance(pattern, name), name);
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> nearest;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) nearest.push_back(ranked[i].second);
  return nearest;
}

std::string parent_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}  // namespace dtensor
