// Sizes in error texts and tables.
#pragma once

#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

namespace dtensor {

// "123 B", "1.5 GB": powers of 1000.
inline std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace dtensor
