// A step is computed again with its parts on other ranks.
#include "train/bits/rank_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "dtensor/bit_identical.h"
#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "train/bits/hashes.h"
#include "train/model/plan.h"

namespace train {
namespace {

using dtensor::BitIdentical;

std::string hash_of(std::string text) {
  return BitIdentical::content_hash(at::from_blob(text.data(), {std::ssize(text)}, at::kByte));
}

// What a rank sent in a pass and its gradients, in order, with hashes. Names are unique.
struct Trail {
  Hashes hashes = {};
  std::map<std::string, int> calls = {};

  void add(const std::string& name, const std::string& hash) {
    const int call = ++calls[name];
    hashes.emplace_back(call == 1 ? name : fmt::format("{} (call {})", name, call), hash);
  }
  void add(const dtensor::Event& event) {
    std::string all;
    for (const at::Tensor& t : event.tensors) all += BitIdentical::content_hash(t);
    add(fmt::format("{}, in {} over {}", place_of(event), event.name, event.axis.empty() ? "all ranks" : event.axis),
        hash_of(all));
  }
  std::string str() const {
    std::string text;
    for (const auto& [name, hash] : hashes) text += hash + " " + name + "\n";
    return text;
  }
};

std::string trail_of(const ShiftedPass& prepare, int shift) {
  const auto pass = prepare(shift);
  Trail trail;
  const dtensor::CommDebugMode modules;  // Finds those of collectives in backward.
  const dtensor::EventListener listener([&](const dtensor::Event& event) { trail.add(event); },
                                        {dtensor::Event::Kind::contribution});
  for (const auto& [name, part] : pass()) trail.add("gradient of " + name, BitIdentical::content_hash(part));
  return trail.str();
}

// A pass: its shift and the trail of each part of the step.
struct PassTrails {
  std::int64_t shift = 0, ranks = 0;
  std::vector<std::map<std::string, std::string>> hashes = {};  // By part and name.

  std::int64_t rank_of(std::int64_t part) const { return (part - shift % ranks + ranks) % ranks; }
};

Hashes parse(const std::string& text) {
  Hashes hashes;
  std::istringstream in(text);
  for (std::string hash, name; in >> hash && std::getline(in >> std::ws, name);) hashes.emplace_back(name, hash);
  return hashes;
}

PassTrails gather_trails(const dtensor::Communicator& world, int shift, const std::string& own) {
  const auto texts = gather_texts(world, own);
  PassTrails all{.shift = shift, .ranks = world.size()};
  for (std::int64_t part = 0; part < all.ranks; ++part) {
    const Hashes hashes = parse(texts[static_cast<std::size_t>(all.rank_of(part))]);
    all.hashes.emplace_back(hashes.begin(), hashes.end());
  }
  return all;
}

// Adds the ranks that computed one result otherwise than most passes. Without a majority all of them are candidates.
void vote(const std::vector<PassTrails>& passes, std::size_t part, const std::string& name, WrongRanks& wrong,
          std::set<std::int64_t>& ranks) {
  std::map<std::string, std::size_t> votes;
  for (const auto& pass : passes) ++votes[pass.hashes[part].at(name)];
  for (const auto& pass : passes) {
    const bool majority = 2 * votes[pass.hashes[part].at(name)] > passes.size();
    if (!majority) ranks.insert(pass.rank_of(static_cast<std::int64_t>(part)));
  }
  wrong.certain = wrong.certain &&
                  std::any_of(votes.begin(), votes.end(), [&](const auto& v) { return 2 * v.second > passes.size(); });
}

// Wrong data spreads by communication only, so the first result that differs is of a rank that computed it wrongly.
WrongRanks decide(const std::vector<PassTrails>& passes, const std::vector<Hashes>& order) {
  const auto differs = [&](std::size_t part, const std::string& name) {
    std::set<std::string> values;
    for (const auto& pass : passes) {
      const auto found = pass.hashes[part].find(name);
      if (found == pass.hashes[part].end()) return false;  // This pass made other calls.
      values.insert(found->second);
    }
    return values.size() > 1;
  };
  std::size_t longest = 0;
  for (const Hashes& o : order) longest = std::max(longest, o.size());
  WrongRanks wrong;
  std::set<std::int64_t> ranks;
  for (std::size_t i = 0; i < longest && ranks.empty(); ++i) {
    for (std::size_t part = 0; part < order.size(); ++part) {
      if (i >= order[part].size() || !differs(part, order[part][i].first)) continue;
      wrong.where = order[part][i].first;
      vote(passes, part, wrong.where, wrong, ranks);
    }
  }
  wrong.ranks.assign(ranks.begin(), ranks.end());
  if (!wrong.ranks.empty()) return wrong;
  for (std::int64_t rank = 0; rank < std::ssize(order); ++rank) wrong.ranks.push_back(rank);
  return {
      .ranks = std::move(wrong.ranks), .certain = false, .where = "in other collectives than those of another pass"};
}

}  // namespace

std::string WrongRanks::str() const {
  const auto* who = certain ? (ranks.size() == 1 ? "rank " : "ranks ") : "one of the ranks ";
  return fmt::format("{}{} computed wrong numbers, first {}", who, fmt::join(ranks, ", "), where);
}

WrongRanks find_wrong_ranks(const dtensor::Communicator& world, const ShiftedPass& prepare) {
  std::vector<std::pair<int, std::string>> own;
  for (const int shift : {0, 1}) own.emplace_back(shift, trail_of(prepare, shift));
  const auto both = gather_texts(world, hash_of(own[0].second) + hash_of(own[1].second));
  bool equal = true;
  for (std::size_t part = 0; part < both.size(); ++part) {
    const auto& again = both[(part + both.size() - 1) % both.size()];
    equal = equal && again.substr(again.size() / 2) == both[part].substr(0, both[part].size() / 2);
  }
  if (equal) return {};
  for (const int shift : world.size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{2}) {
    own.emplace_back(shift, trail_of(prepare, shift));
  }
  std::vector<PassTrails> passes;
  for (const auto& [shift, text] : own) passes.push_back(gather_trails(world, shift, text));
  std::vector<Hashes> order;
  for (const auto& text : gather_texts(world, own[0].second)) order.push_back(parse(text));
  return decide(passes, order);
}

// The job on the same ranks, which have other places in the mesh.
class RankCheck::ShiftedJob {
 public:
  ShiftedJob(const Job& job, int shift)
      : model_(meta_config(job.options)),
        mesh_(make_mesh(world_of(job), fit_mesh(job.options, static_cast<int>(job.mesh.size())), job.mesh.device_type(),
                        shift)),
        job_{.options = job.options, .corpus = job.corpus, .model = model_, .batch_mesh = mesh_, .mesh = mesh_} {
    distribute(model_, mesh_, job.options);
    model_.reset();
    job_.pieces = job.pieces;
  }

  void copy_parameters(const Job& from) {
    const at::NoGradGuard no_grad;
    std::vector<dtensor::DTensor> sources;
    std::vector<dtensor::Placements> placements;
    for (const auto& [name, p] : from.model.named_parameters()) sources.emplace_back(p->detach());
    const auto own = model_.named_parameters();
    for (const auto& [name, p] : own) placements.push_back(dtensor::DTensor(*p).placements());
    const auto moved = dtensor::redistribute(sources, mesh_, placements);
    for (std::size_t i = 0; i < own.size(); ++i) own[i].second->copy_(moved[i]);
  }

  dtensor::StateTensors run(const Batch& batch) {
    run_batch(job_, batch);
    auto gradients = take_gradients(job_);
    for (const auto& [name, p] : model_.named_parameters()) p->mutable_grad().reset();
    return gradients;
  }

  static dtensor::StateTensors take_gradients(const Job& job) {
    const at::NoGradGuard no_grad;
    dtensor::StateTensors all;
    for (const auto& [name, p] : job.model.named_parameters()) {
      if (p->grad().defined()) all.emplace_back(name, dtensor::DTensor(p->grad()).to_local());
    }
    return all;
  }

 private:
  Gpt model_;
  dtensor::DeviceMesh mesh_;
  Job job_;
};

at::Tensor RankCheck::run(const Batch& batch) {
  at::Tensor loss;
  const auto before = get_rng_state(job_.mesh);
  found_ = find_wrong_ranks(world_of(job_), [&](int shift) -> std::function<dtensor::StateTensors()> {
    if (!loss.defined()) {
      return [&] {
        loss = run_batch(job_, batch);
        return ShiftedJob::take_gradients(job_);
      };
    }
    auto& shifted = jobs_[shift];
    if (!shifted) shifted = std::make_shared<ShiftedJob>(job_, shift);
    shifted->copy_parameters(job_);
    set_rng_state(job_.mesh, before);
    return [&] { return shifted->run(batch); };
  });
  return loss;
}

WrongRanks RankCheck::before_update() {
  WrongRanks changed{.where = "in the memory of parameters and optimizer states"};
  const auto texts = gather_texts(world_of(job_), optimizer_.local_hash() == hash_ ? "" : "changed");
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) changed.ranks.push_back(static_cast<std::int64_t>(rank));
  }
  return changed.ranks.empty() ? std::exchange(found_, {}) : changed;
}

}  // namespace train
