// One run of a schedule on this rank: executes each action.
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <optional>

#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "pipeline/split_backward.h"
#include "pipeline/stage_messages.h"

namespace dtensor::pipeline {

struct Stage {
  StageFunction forward;
  std::optional<std::vector<at::Tensor>> parameters;  // if set_stage got them

  at::TensorList list() const { return parameters ? at::TensorList(*parameters) : at::TensorList(); }
};

// The state of the pipeline that a step uses.
struct StepContext {
  const DeviceMesh& mesh;
  const Schedule& schedule;
  int rank;  // along the axis
  const std::map<int, Stage>& stages;
  const Pipeline::LossFunction& loss;
  const std::vector<Tensors>& inputs;
  const std::vector<Tensors>& targets;
  const std::vector<double>& shares;  // weight of each microbatch in the mean, on the last stage's ranks
  double loss_scale;
};

class Step {
 public:
  Step(const StepContext& context, StageMessages& messages);
  // After an exception in a stage, on this rank or on one that sends to it, the remaining actions run without
  // computing. No rank then waits for another, and each reaches the end of its list.
  void run();
  // The reason of a failure, and the exception that was thrown on this rank, if any.
  const std::string& failure() const { return failure_; }
  const std::exception_ptr& thrown() const { return thrown_; }
  // Called after a run that did not fail on any rank.
  void finish() { reduce_input_gradients(); }

  // The number of random operators that a microbatch passed in the stages that ran here.
  std::uint64_t random_operators() const { return random_operators_; }
  // Loss of the last stage; undefined on other ranks.
  const at::Tensor& loss() const { return loss_; }
  std::vector<int> live_activations() const;
  const std::vector<TimedAction>& actions() const { return actions_; }
  std::chrono::steady_clock::time_point begin() const { return begin_; }

 private:
  // State of a stage and microbatch.
  struct Slot {
    Tensors inputs, outputs;   // outputs are kept until backward
    Tensors output_gradients;  // gradients that have arrived
    Tensors input_gradients;   // gradients to be sent
    MicrobatchState where;     // at the stage's input, then at its output
    std::optional<SplitBackward> split;
  };
  struct StageState {
    std::string name;  // for messages and traces
    int now = 0, most = 0;
    int inputs_left = 0, weights_left = 0;   // remaining B and I, remaining B and W
    int halves = 0;                          // microbatches whose W has work left
    bool unshards = false, reduces = false;  // the schedule has UNSHARD, REDUCE_GRAD of the stage
    std::vector<FsdpUnit> units = {};
  };

  Slot& slot(const Action& action) { return slots_[{action.stage, action.microbatch}]; }
  bool is_local(int stage) const { return context_.stages.contains(stage); }
  int channel(int stage, int microbatch, bool forward) const;
  struct Route {
    int peer, channel;
  };
  Route route_of(const Action& action) const;
  void attempt(const Action& action);
  void fail(const Action& action, const std::string& why);
  void skip(const Action& action);
  void run(const Action& action);
  void forward(const Action& action);
  void forget(const Action& action);
  MicrobatchState initial_microbatch_state(int microbatch) const;
  void add_loss(Slot& slot, int microbatch);
  void backward(const Action& action);
  static Tensors run_backward(Slot& slot, bool splits, bool reduces);
  static void keep_input_gradients(Slot& slot, bool splits);
  void reduce_input_gradients();
  void reshard_after_forward(int stage);
  void weight(const Action& action);
  bool reduces_here(int stage);
  bool synchronizes(const Action& action);
  void end_of_microbatch(int stage);

  const StepContext& context_;
  StageMessages& messages_;
  const int last_;
  const bool trains_;
  std::map<std::pair<int, int>, Slot> slots_;
  std::map<int, StageState> states_;
  const RngState random_;  // at the begin of the step
  std::uint64_t random_operators_ = 0;
  at::Tensor loss_;
  std::string failure_;
  std::exception_ptr thrown_;
  std::vector<TimedAction> actions_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace dtensor::pipeline
