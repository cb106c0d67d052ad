// Meshes of the command line, and checks against the ranks, the experts and the flags.
#include <fmt/format.h>

#include <map>
#include <sstream>

#include "train/args.h"

namespace train {

std::string MeshShape::str() const {
  return (pp > 1 ? fmt::format("pp={}, ", pp) : "") + fmt::format("replicate={}, shard={}, ", replicate, shard) +
         (cp > 1 ? fmt::format("cp={}, ", cp) : "") + fmt::format("tp={}", tp);
}

namespace {

std::int64_t parse_axis_size(const std::string& text, const std::string& entry) {
  const bool digits = !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
  const std::int64_t size = digits ? std::stoll(text) : 0;
  if (size < 1) throw UsageError("--mesh: expected NAME=SIZE with a size of at least 1, got '" + entry + "'");
  return size;
}

}  // namespace

MeshShape parse_mesh(const std::string& text) {
  MeshShape shape;
  std::map<std::string, std::int64_t*> axes = {{"replicate", &shape.replicate},
                                               {"shard", &shape.shard},
                                               {"cp", &shape.cp},
                                               {"tp", &shape.tp},
                                               {"pp", &shape.pp}};
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t equal = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, equal);
    const auto axis = axes.find(name);
    if (axis == axes.end()) {
      throw UsageError("--mesh: expected each of replicate, shard, cp, tp, pp at most once, got '" + name + "'");
    }
    *axis->second = parse_axis_size(equal < entry.size() ? entry.substr(equal + 1) : "", entry);
    axes.erase(axis);
  }
  return shape;
}

namespace {

// Checks --reshard-after-forward against the ranks that parameters are split over.
MeshShape checked(const Options& options, const MeshShape& shape) {
  const std::int64_t ranks = shape.shard * shape.cp;
  if (options.reshard == "true" || options.reshard == "false" || ranks % std::stoll(options.reshard) == 0) return shape;
  throw UsageError(fmt::format("--reshard-after-forward {} does not divide the {} ranks of the axes shard and cp",
                               options.reshard, ranks));
}

}  // namespace

MeshShape fit_mesh(const Options& options, int ranks) {
  if (!options.mesh) return checked(options, {.shard = ranks});
  if (options.mesh->size() != ranks) {
    throw UsageError(fmt::format("the mesh {} has {} ranks but the program runs on {}", options.mesh->str(),
                                 options.mesh->size(), ranks));
  }
  return checked(options, *options.mesh);
}

SparseShape fit_sparse(const ExpertFlags& flags, const MeshShape& dense) {
  if (flags.etp != 1 && flags.etp != dense.tp) {
    throw UsageError(fmt::format("--etp: expected 1 or the size of tp ({}), got {}", dense.tp, flags.etp));
  }
  const auto rest = dense.stage_size() / flags.etp;
  const auto fits = [&](std::int64_t ep) { return rest % ep == 0 && flags.experts % ep == 0; };
  auto ep = flags.ep > 0 ? flags.ep : rest;
  while (flags.ep == 0 && !fits(ep)) --ep;
  if (!fits(ep)) {
    throw UsageError(fmt::format("--ep {} must divide both the ranks ({}{}) and the experts ({})", ep, rest,
                                 flags.etp > 1 ? fmt::format(" beside etp {}", flags.etp) : "", flags.experts));
  }
  return {rest / ep, ep, flags.etp};
}

}  // namespace train
