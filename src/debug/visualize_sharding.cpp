// Cuts a tensor at every boundary of every rank's part. Each cell of the resulting grid is stored by one set of ranks.
#include "dtensor/debug.h"

#define FMT_HEADER_ONLY
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "chart/canvas.h"
#include "dtensor/tensor.h"
#include "placement/mesh_info.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

struct RankPart {
  std::int64_t rank;
  std::vector<Segments> parts;  // one per tensor dimension
};

struct Grid {
  std::vector<std::int64_t> dims;               // one or two tensor dimensions; empty for a scalar
  std::vector<std::vector<std::int64_t>> cuts;  // one per dimension; includes 0 and the size
  std::vector<RankPart> ranks;
};

std::vector<RankPart> parts_of(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements) {
  std::vector<RankPart> ranks;
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    RankPart part{mesh.ranks()[static_cast<std::size_t>(i)], {}};
    const auto c = coordinate_along(mesh.shape(), ~AxisMask{0}, i, Coordinate(mesh.shape().size()));
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      part.parts.push_back(shard_segments(sizes[d], static_cast<std::int64_t>(d), placements, mesh.shape(), c));
    }
    ranks.push_back(std::move(part));
  }
  return ranks;
}

std::vector<std::int64_t> sharded_dims(const Placements& placements) {
  std::set<std::int64_t> dims;
  for (const Placement& p : placements) {
    if (p.is_shard()) dims.insert(p.dim());
  }
  return {dims.begin(), dims.end()};
}

// The first two sharded dimensions, supplemented by leading ones, in ascending order.
std::vector<std::int64_t> drawn_dims(std::int64_t ndim, const Placements& placements) {
  std::vector<std::int64_t> dims = sharded_dims(placements);
  dims.resize(std::min<std::size_t>(dims.size(), 2));
  for (std::int64_t d = 0; d < ndim && dims.size() < 2; ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) dims.push_back(d);
  }
  std::sort(dims.begin(), dims.end());
  return dims;
}

Grid grid_of(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& given) {
  const Placements placements = normalize_placements(given, static_cast<std::int64_t>(sizes.size()), mesh.shape());
  Grid grid{drawn_dims(static_cast<std::int64_t>(sizes.size()), placements), {}, parts_of(sizes, mesh, placements)};
  for (const std::int64_t d : grid.dims) {
    std::set<std::int64_t> cuts{0, sizes[static_cast<std::size_t>(d)]};
    for (const RankPart& rank : grid.ranks) {
      for (const Segment& s : rank.parts[static_cast<std::size_t>(d)]) cuts.insert({s.offset, s.offset + s.length});
    }
    grid.cuts.emplace_back(cuts.begin(), cuts.end());
  }
  return grid;
}

bool holds(const Segments& segments, std::int64_t begin, std::int64_t end) {
  return std::any_of(segments.begin(), segments.end(),
                     [&](const Segment& s) { return s.offset <= begin && end <= s.offset + s.length; });
}

std::int64_t cell_count(const Grid& grid, std::size_t which) {
  return which < grid.cuts.size() ? static_cast<std::int64_t>(grid.cuts[which].size()) - 1 : 1;
}

std::string ranks_of_cell(const Grid& grid, std::int64_t row, std::int64_t column) {
  const std::int64_t index[] = {row, column};
  std::vector<std::int64_t> ranks;
  for (const RankPart& rank : grid.ranks) {
    bool held = true;
    for (std::size_t w = 0; w < grid.dims.size(); ++w) {
      const auto& cuts = grid.cuts[w];
      const auto i = static_cast<std::size_t>(index[w]);
      held = held && holds(rank.parts[static_cast<std::size_t>(grid.dims[w])], cuts[i], cuts[i + 1]);
    }
    if (held) ranks.push_back(rank.rank);
  }
  return fmt::format("{}", fmt::join(ranks, " "));
}

std::string range_text(const Grid& grid, std::size_t which, std::int64_t index) {
  if (which >= grid.cuts.size()) return "";
  const auto i = static_cast<std::size_t>(index);
  return fmt::format("{}:{}", grid.cuts[which][i], grid.cuts[which][i + 1]);
}

std::string title(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements) {
  std::string text = fmt::format("[{}] on {} {}", fmt::join(sizes, ", "), mesh.str(), to_string(placements));
  const bool partial =
      std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); });
  return partial ? text + ", ranks hold shares of the values" : text;
}

std::string legend(const Grid& grid) {
  std::string text = "in a cell: the ranks that store it";
  if (!grid.dims.empty())
    text += fmt::format("; at its sides: elements of dimension {}", fmt::join(grid.dims, " and "));
  return text;
}

// Lists sharded dimensions that the table does not show, by rank.
std::string other_dims(const Grid& grid, const Placements& placements) {
  std::string text;
  for (const std::int64_t d : sharded_dims(placements)) {
    if (std::find(grid.dims.begin(), grid.dims.end(), d) != grid.dims.end()) continue;
    for (const RankPart& rank : grid.ranks) {
      text += fmt::format("rank {} holds of dimension {}:", rank.rank, d);
      for (const Segment& s : rank.parts[static_cast<std::size_t>(d)]) {
        text += fmt::format(" {}:{}", s.offset, s.offset + s.length);
      }
      text += "\n";
    }
  }
  return text;
}

// Light colors on which dark text is readable, assigned in the order in which sets of ranks occur.
class Colors {
 public:
  std::string of(const std::string& ranks) {
    static constexpr std::array kPale = {"#a6cee3", "#b2df8a", "#fb9a99", "#fdbf6f", "#cab2d6", "#ffff99",
                                         "#8dd3c7", "#d9d9d9", "#fccde5", "#ccebc5", "#bebada", "#e5c494"};
    const auto next = known_.size();
    return kPale[known_.emplace(ranks, next).first->second % kPale.size()];
  }

 private:
  std::map<std::string, std::size_t> known_;
};

}  // namespace

std::string visualize_sharding(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements) {
  const Grid grid = grid_of(sizes, mesh, placements);
  std::vector<std::vector<std::string>> table(1, {""});
  for (std::int64_t c = 0; c < cell_count(grid, 1); ++c) table[0].push_back(range_text(grid, 1, c));
  for (std::int64_t r = 0; r < cell_count(grid, 0); ++r) {
    table.push_back({range_text(grid, 0, r)});
    for (std::int64_t c = 0; c < cell_count(grid, 1); ++c) table.back().push_back(ranks_of_cell(grid, r, c));
  }
  std::vector<std::size_t> width(table[0].size());
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text = title(sizes, mesh, placements) + "\n";
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += fmt::format("{:<{}}{}", row[i], width[i], i == 0 ? " | " : "  ");
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text +
         other_dims(grid, normalize_placements(placements, static_cast<std::int64_t>(sizes.size()), mesh.shape()));
}

std::string visualize_sharding_svg(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements) {
  const Grid grid = grid_of(sizes, mesh, placements);
  constexpr double kSide = 320, kLeft = 60, kTop = 50, kFont = 12;
  Colors colors;
  const auto scaled = [&](std::size_t which, std::int64_t index) {
    if (which >= grid.cuts.size()) return static_cast<double>(index) * kSide;
    const auto& cuts = grid.cuts[which];
    return kSide * static_cast<double>(cuts[static_cast<std::size_t>(index)]) /
           static_cast<double>(std::max<std::int64_t>(cuts.back(), 1));
  };
  SvgCanvas canvas(kFont);
  const std::string heading = title(sizes, mesh, placements);
  canvas.text(8, 18, Anchor::start, heading);
  for (std::int64_t r = 0; r < cell_count(grid, 0); ++r) {
    const double y = kTop + scaled(0, r), height = kTop + scaled(0, r + 1) - y;
    canvas.text(8, y + height / 2, Anchor::start, range_text(grid, 0, r));
    for (std::int64_t c = 0; c < cell_count(grid, 1); ++c) {
      const double x = kLeft + scaled(1, c), width = kLeft + scaled(1, c + 1) - x;
      const std::string ranks = ranks_of_cell(grid, r, c);
      if (r == 0) canvas.text(x + 2, kTop - 6, Anchor::start, range_text(grid, 1, c));
      canvas.rect(x, y, width, height, "fill=\"" + colors.of(ranks) + "\" stroke=\"black\"");
      canvas.text(x + width / 2, y + height / 2, Anchor::middle, ranks);
    }
  }
  const std::string note = legend(grid);
  canvas.text(8, kTop + kSide + 20, Anchor::start, note);
  const double width = std::max({kLeft + kSide, text_width(heading, kFont), text_width(note, kFont)});
  return canvas.str(width + 20, kTop + kSide + 34);
}

std::string visualize_sharding(const at::Tensor& t) {
  return visualize_sharding(t.sizes(), DTensor(t).mesh(), DTensor(t).placements());
}
std::string visualize_sharding_svg(const at::Tensor& t) {
  return visualize_sharding_svg(t.sizes(), DTensor(t).mesh(), DTensor(t).placements());
}

}  // namespace dtensor
