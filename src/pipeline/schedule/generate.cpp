// Generates the schedules by name. Each rank's actions follow from closed-form counts (how many forwards before the
// first backward, when weights are due). A stage processes its microbatches in order, so the writer only needs an
// action's kind and stage. It omits actions beyond the last microbatch: actions of different microbatches do not depend
// on each other, so the rest of a valid schedule is valid.
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>

#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {
namespace {

class RankWriter {
 public:
  RankWriter(int stages, int microbatches)
      : microbatches_(microbatches), forwards_(static_cast<std::size_t>(stages)), backwards_(forwards_) {}

  void forward(int stage) { put({Action::Kind::forward, stage, next(forwards_, stage)}); }
  void backward(int stage) { put({Action::Kind::backward, stage, next(backwards_, stage)}); }
  void backward_input(int stage) {
    const int microbatch = next(backwards_, stage);
    put({Action::Kind::backward_input, stage, microbatch});
    if (microbatch < microbatches_) weights_.push_back({Action::Kind::backward_weight, stage, microbatch});
  }
  // Writes the oldest pending W, if there is one.
  void backward_weight() {
    if (weights_.empty()) return;
    put(weights_.front());
    weights_.pop_front();
  }
  std::size_t weights_due() const { return weights_.size(); }
  std::vector<Action> finish() {
    while (!weights_.empty()) backward_weight();
    return std::move(actions_);
  }

 private:
  static int next(std::vector<int>& counts, int stage) { return counts[static_cast<std::size_t>(stage)]++; }
  void put(const Action& action) {
    if (action.microbatch < microbatches_) actions_.push_back(action);
  }

  int microbatches_;
  std::vector<int> forwards_, backwards_;  // by stage: the next microbatch
  std::deque<Action> weights_;
  std::vector<Action> actions_;
};

struct Shape {
  int ranks, microbatches, chunks;
  int stages() const { return ranks * chunks; }
};

// All forwards, then all backwards, chunk after chunk: GPipe, and with several chunks looped breadth-first.
std::vector<Action> breadth_first(const Shape& shape, int rank) {
  RankWriter writer(shape.stages(), shape.microbatches);
  for (int stage = rank; stage < shape.stages(); stage += shape.ranks) {
    for (int i = 0; i < shape.microbatches; ++i) writer.forward(stage);
  }
  for (int stage = shape.stages() - shape.ranks + rank; stage >= 0; stage -= shape.ranks) {
    for (int i = 0; i < shape.microbatches; ++i) writer.backward(stage);
  }
  return writer.finish();
}

// The order in which a rank visits its stages. Microbatches pass in groups, each through all chunks. A group of
// fewer than `ranks` cannot fill the pipeline, so there are as many groups as full ones are possible, of sizes as
// equal as possible.
std::vector<int> looped_order(const Shape& shape, int rank, bool backward) {
  const int groups = std::max(1, shape.microbatches / shape.ranks);
  std::vector<int> order;
  for (int group = 0; group < groups; ++group) {
    const int size = shape.microbatches / groups + (group < shape.microbatches % groups);
    for (int i = 0; i < shape.chunks; ++i) {
      const int chunk = backward ? shape.chunks - 1 - i : i;
      order.insert(order.end(), static_cast<std::size_t>(size), chunk * shape.ranks + rank);
    }
  }
  return order;
}

// 1F1B: forwards until the first backward can arrive, then alternating. With several chunks it is interleaved, with
// twice as many forwards ahead. Split (ZB-H1): rank r delays the W of r microbatches. Later ranks have fewer forwards
// ahead, which frees the memory for that; the delayed W fill the wait at the end.
std::vector<Action> one_forward_one_backward(const Shape& shape, int rank, bool split) {
  RankWriter writer(shape.stages(), shape.microbatches);
  const std::vector<int> forwards = looped_order(shape, rank, false), backwards = looped_order(shape, rank, true);
  const int groups = std::max(1, shape.microbatches / shape.ranks);
  const int largest = (shape.microbatches + groups - 1) / groups;
  const int ahead = (shape.chunks == 1 || split ? 1 : 2) * (shape.ranks - 1 - rank) + (shape.chunks - 1) * largest;
  auto forward = forwards.begin();
  for (int i = 0; i < ahead && forward != forwards.end(); ++i) writer.forward(*forward++);
  for (const int stage : backwards) {
    if (forward != forwards.end()) writer.forward(*forward++);
    if (!split) {
      writer.backward(stage);
    } else {
      writer.backward_input(stage);
      if (writer.weights_due() > static_cast<std::size_t>(rank)) writer.backward_weight();
    }
  }
  return writer.finish();
}

// ZB-V (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 6): if F, I and W take the same time, no rank waits
// between its first forward and its last W. Memory is that of 1F1B.
std::vector<Action> zero_bubble_v(const Shape& shape, int rank) {
  RankWriter writer(shape.stages(), shape.microbatches);
  const int down = rank, up = 2 * shape.ranks - 1 - rank, after = shape.ranks - rank;
  // Without more microbatches than ranks, there is no steady state.
  const int microbatches =
      shape.microbatches <= shape.ranks ? shape.microbatches : std::max(2 * shape.ranks - 1, shape.microbatches);
  const auto backward = [&](int stage) {
    writer.backward_input(stage);
    writer.backward_weight();
  };
  for (int i = 0; i < 2 * after - 1; ++i) writer.forward(down);
  for (int i = 0; i < rank; ++i) {
    writer.forward(up);
    writer.forward(down);
  }
  for (int i = 0; i < after; ++i) {
    writer.forward(up);
    backward(up);
  }
  // Both counters start at the microbatches so far: 2 * after - 1 + rank down, rank + after up.
  for (int downs = 2 * after - 1 + rank, ups = rank + after; ups < microbatches; ++ups) {
    if (downs < microbatches) {
      writer.forward(down);
      ++downs;
    }
    backward(down);
    writer.forward(up);
    backward(up);
  }
  for (int i = 0; i < rank; ++i) {
    writer.backward_input(down);
    writer.backward_input(up);
  }
  for (int i = 0; i < after; ++i) backward(down);
  return writer.finish();
}

// DualPipeV (DeepSeek-AI 2025, the V-shaped half of DualPipe): in the steady state forwards of one direction alternate
// with backwards of the other, so that communication of one overlaps with computation of the other. The last
// microbatches delay their W.
std::vector<Action> dual_pipe_v(const Shape& shape, int rank) {
  RankWriter writer(shape.stages(), shape.microbatches);
  const int down = rank, up = 2 * shape.ranks - 1 - rank, after = shape.ranks - 1 - rank;
  for (int i = 0; i < 2 * after; ++i) writer.forward(down);
  for (int i = 0; i <= rank; ++i) {
    writer.forward(down);
    writer.forward(up);
  }
  for (int i = 0; i < after; ++i) {
    writer.backward_input(up);
    writer.backward_weight();
    writer.forward(up);
  }
  for (int i = 0; i < shape.microbatches - 2 * shape.ranks + rank + 1; ++i) {
    writer.forward(down);
    writer.backward(up);
    writer.forward(up);
    writer.backward(down);
  }
  for (int i = 0; i < after; ++i) {
    writer.backward(up);
    writer.forward(up);
    writer.backward(down);
  }
  for (int i = 0; i < 2 * (rank + 1); ++i) {  // up and down alternate; split in the second half
    const int stage = i % 2 == 0 ? up : down;
    i <= rank ? writer.backward(stage) : writer.backward_input(stage);
  }
  for (int i = 0; i < after; ++i) {
    writer.backward_weight();
    writer.backward_input(down);
  }
  return writer.finish();
}

struct Family {
  std::string name;
  int chunks;
  bool v_shaped;
  std::function<std::vector<Action>(const Shape&, int rank)> rank_actions;
};

const std::vector<Family>& families() {
  const auto fused = [](const Shape& shape, int rank) { return one_forward_one_backward(shape, rank, false); };
  const auto split = [](const Shape& shape, int rank) { return one_forward_one_backward(shape, rank, true); };
  static const std::vector<Family> all = {{"gpipe", 1, false, breadth_first}, {"1f1b", 1, false, fused},
                                          {"interleaved", 2, false, fused},   {"bfs", 2, false, breadth_first},
                                          {"zb-h1", 1, false, split},         {"zbv", 2, true, zero_bubble_v},
                                          {"dualpipev", 2, true, dual_pipe_v}};
  return all;
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Family& family : families()) result.push_back(family.name);
    return result;
  }();
  return names;
}

Schedule make_schedule(std::string_view name, int ranks, int microbatches, int chunks) {
  const auto family =
      std::find_if(families().begin(), families().end(), [&](const Family& f) { return f.name == name; });
  TORCH_CHECK(family != families().end(), "no pipeline schedule \"", name, "\"; there are ",
              c10::Join(", ", schedule_names()));
  TORCH_CHECK(ranks >= 1 && microbatches >= 1 && chunks >= 0, "pipeline schedule ", name,
              ": expected ranks >= 1, microbatches >= 1 and chunks >= 0, got ", ranks, " ranks, ", microbatches,
              " microbatches and ", chunks, " chunks");
  TORCH_CHECK(!family->v_shaped || chunks == 0 || chunks == 2, "pipeline schedule ", name,
              ": expected 2 chunks per rank (a V), got ", chunks);
  const Shape shape{ranks, microbatches, chunks == 0 ? family->chunks : chunks};
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) schedule.ranks.push_back(family->rank_actions(shape, rank));
  return schedule;
}

}  // namespace dtensor::pipeline
