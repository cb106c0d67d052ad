// Words of the program in a drawing.
#pragma once

#include <string>

namespace dtensor {

// As SVG wants them: names of modules and of meshes' dimensions are whatever the program calls them.
inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace dtensor
