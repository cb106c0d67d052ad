// A mesh as text: one line, or nested boxes in ASCII for logs.
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "mesh/mesh_layout.h"

namespace dtensor {
namespace {

// A rectangle of text: all lines have the same width.
using Block = std::vector<std::string>;

constexpr std::int64_t kMaxDrawn = 1024;  // ranks; larger meshes are printed in one line

std::string pad(const std::string& text, std::size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

void make_rectangle(Block& block) {
  std::size_t width = 0;
  for (const auto& line : block) width = std::max(width, line.size());
  for (auto& line : block) line = pad(line, width);
}

Block place_side_by_side(const Block& left, const Block& right) {
  Block out(std::max(left.size(), right.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = (i < left.size() ? left[i] : std::string(left.front().size(), ' ')) + "  " +
             (i < right.size() ? right[i] : std::string(right.front().size(), ' '));
  }
  return out;
}

Block place_below(Block top, const Block& bottom) {
  top.insert(top.end(), bottom.begin(), bottom.end());
  make_rectangle(top);
  return top;
}

// Draws a box around `content`, with the title in the upper edge.
Block in_box(const std::string& title, Block content) {
  content.push_back(std::string(title.size() + 2, ' '));  // at least as wide as the title
  make_rectangle(content);
  content.pop_back();
  const auto width = content.front().size();
  Block out{"+- " + title + " " + std::string(width - title.size() - 1, '-') + "+"};
  for (const auto& line : content) out.push_back("| " + line + " |");
  out.push_back("+" + std::string(width + 2, '-') + "+");
  return out;
}

std::string rank_title(const MeshLayout& layout, std::int64_t dim, std::int64_t index) {
  return (layout.names.empty() ? "dim" + std::to_string(dim) : layout.names[dim]) + "=" + std::to_string(index);
}

class Painter {
 public:
  Painter(const MeshLayout& layout, std::int64_t self) : layout_(layout), self_(self) {}

  // The block for dimensions `dim` and later, starting at index `first`.
  Block paint(std::int64_t dim, std::int64_t first) const {
    if (layout_.ndim() - dim <= 2) return table(dim, first);
    const auto stride = span(dim + 1);
    Block out;
    for (std::int64_t i = 0; i < layout_.shape[dim]; ++i) {
      Block box = in_box(rank_title(layout_, dim, i), paint(dim + 1, first + i * stride));
      const bool to_the_right = (layout_.ndim() - dim) % 2 == 1;
      out = i == 0 ? std::move(box) : to_the_right ? place_side_by_side(out, box) : place_below(std::move(out), box);
    }
    return out;
  }

 private:
  std::int64_t span(std::int64_t dim) const {
    std::int64_t n = 1;
    for (; dim < layout_.ndim(); ++dim) n *= layout_.shape[dim];
    return n;
  }

  // The last two dimensions (or the only one) as a table with named rows and columns.
  Block table(std::int64_t dim, std::int64_t first) const {
    const bool has_rows = layout_.ndim() - dim == 2;
    const auto columns = layout_.shape.back();
    const auto label = has_rows ? rank_title(layout_, dim, layout_.shape[dim] - 1).size() + 1 : 0;
    Block out{std::string(label, ' ') + header(columns)};
    for (std::int64_t r = 0; r < (has_rows ? layout_.shape[dim] : 1); ++r) {
      out.push_back(pad(has_rows ? rank_title(layout_, dim, r) : "", label) + row(first + r * columns, columns));
    }
    make_rectangle(out);
    return out;
  }

  std::string header(std::int64_t columns) const {
    std::string line;
    for (std::int64_t c = 0; c < columns; ++c) {
      line += pad(rank_title(layout_, layout_.ndim() - 1, c), cell_width()) + (c + 1 < columns ? " " : "");
    }
    return line;
  }

  std::string row(std::int64_t first, std::int64_t columns) const {
    std::string line;
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto rank = layout_.ranks[first + c];
      const auto text = std::to_string(rank);
      line += pad(rank == self_ ? "[" + text + "]" : " " + text, cell_width()) + (c + 1 < columns ? " " : "");
    }
    return line;
  }

  std::size_t cell_width() const {
    const auto largest = *std::max_element(layout_.ranks.begin(), layout_.ranks.end());
    return std::max(rank_title(layout_, layout_.ndim() - 1, layout_.shape.back() - 1).size(),
                    std::to_string(largest).size() + 2);
  }

  const MeshLayout& layout_;
  const std::int64_t self_;
};

}  // namespace

std::string dim_title(const MeshLayout& layout, std::int64_t dim) {
  return layout.names.empty() ? "dim " + std::to_string(dim) : layout.names[dim];
}

std::string axes_label(const MeshLayout& layout, AxisMask axes) {
  std::string label;
  for (std::int64_t d = 0; d < layout.ndim(); ++d) {
    if ((axes >> d) & 1U) {
      label += (label.empty() ? "" : "_") + (layout.names.empty() ? "dim" + std::to_string(d) : layout.names[d]);
    }
  }
  return label.empty() ? "self" : label;
}

std::string layout_str(const MeshLayout& layout, c10::DeviceType device) {
  std::ostringstream out;
  out << "DeviceMesh(" << c10::DeviceTypeName(device, /*lower_case=*/true);
  for (std::int64_t d = 0; d < layout.ndim(); ++d) {
    out << ", " << (layout.names.empty() ? std::to_string(d) : layout.names[d]) << "=" << layout.shape[d];
  }
  const at::IntArrayRef ranks(layout.ranks);
  constexpr std::size_t kListed = 64;
  if (ranks.size() <= kListed) {
    out << ", ranks=" << ranks << ")";
  } else {
    out << ", ranks=[" << ranks[0] << ", " << ranks[1] << ", ..., " << ranks.back() << "])";
  }
  return out.str();
}

std::string draw_layout(const MeshLayout& layout, c10::DeviceType device, std::int64_t self) {
  const auto title = layout_str(layout, device);
  if (layout.size() > kMaxDrawn) return title + "\n";
  std::string text = title + "\n";
  for (const auto& line : Painter(layout, self).paint(0, 0)) {
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace dtensor
