// Pipeline schedules as values: what each rank of a pipeline does in one step, and in which order. Functions generate
// them, parse them, add communication, verify, simulate and draw them. No function communicates or reads a tensor, so
// every rank computes the same schedule on its own.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/export.h"

namespace dtensor::pipeline {

// One action of a rank. Stages 0, 1, ... split the model, microbatches 0, 1, ... split the batch.
struct Action {
  // The kind of work.
  enum class Kind : std::uint8_t {
    forward,          // F: the stage's outputs for a microbatch (of the last stage: the loss)
    backward,         // B: the gradients of its inputs and weights
    backward_input,   // I: the gradients of its inputs only, for the previous stage
    backward_weight,  // W: the gradients of its weights, after I
    send_forward,     // SEND_F: the outputs, to the next stage
    recv_forward,     // RECV_F: the inputs, from the previous stage
    send_backward,    // SEND_B: the gradients of the inputs, to the previous stage
    recv_backward,    // RECV_B: the gradients of the outputs, from the next stage
    unshard,          // UNSHARD: gathers the stage's fully sharded weights
    reshard,          // RESHARD: frees the gathered weights
    reduce_grad,      // REDUCE_GRAD: reduces the gradients, summed over the microbatches, over the replicas
  };
  // The kind of work, and its stage.
  Kind kind = Kind::forward;
  int stage = 0;
  int microbatch = -1;  // -1 if the action has none
  friend bool operator==(const Action&, const Action&) = default;
};
// PyTorch's notation: stage, kind, microbatch: `0F3`, `1I2`, `0SEND_F3`, `1RECV_F3`, `2UNSHARD`.
DTENSOR_API std::string to_string(const Action& action);
DTENSOR_API std::ostream& operator<<(std::ostream& out, const Action& action);

// The actions of all ranks.
struct DTENSOR_API Schedule {
  std::vector<std::vector<Action>> ranks;  // actions of each rank, in their order

  // One more than the highest number in any action.
  int stages() const;
  int microbatches() const;
  // The rank of the stage's first action. Throws if no rank has the stage.
  int rank_of(int stage) const;
  bool has(Action::Kind kind) const;

  // One line per rank, actions separated by blanks; `-` for a rank without actions.
  std::string str() const;
  // Parses the result of str(). Separators are commas and blanks, `#` begins a comment, empty lines are skipped. Throws
  // with the line and the word that is not an action. It does not check that the schedule is valid; see check().
  static Schedule parse(std::string_view text);

  // Limits for check().
  struct Limits {
    int stages = 0, microbatches = 0;  // required numbers; 0: those of the schedule
    int live_microbatches = 0;         // limit for microbatch activations held at once by a stage; 0: no limit
    bool forward_only = false;         // the schedule is for evaluation: F without gradients
  };
  // Results of check().
  struct Report {
    bool in_order = true;  // messages from one rank to another are received in the order in which they are sent
    // Empty if the schedule also runs with sends that block until their receive; otherwise the cycle of blocked
    // actions. check() itself requires only buffered sends, which return at once. Batched: consecutive communication
    // actions start together and are then awaited together (as batch_isend_irecv). Rendezvous: one at a time (as
    // MPI_Ssend).
    std::string batched, rendezvous;
    std::vector<int> live_activations;  // see live_activations()
  };

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// The schedules by name: "gpipe", "1f1b", "interleaved", "bfs" (looped, breadth first), "zb-h1", "zbv", "dualpipev".
// They accept any number of ranks and microbatches. `chunks` is the number of stages per rank. 0 selects the default: 2
// for interleaved, bfs, zbv and dualpipev, otherwise 1. Stage s is on rank s % ranks. zbv and dualpipev require 2
// chunks and put stages r and 2 * ranks - 1 - r on rank r (a V). The result has only computation; see
// with_communication.
DTENSOR_API Schedule make_schedule(std::string_view name, int ranks, int microbatches, int chunks = 0);
DTENSOR_API const std::vector<std::string>& schedule_names();

// The forward actions only, without communication: for evaluation.
DTENSOR_API Schedule forward_only(const Schedule& schedule);

// How communication is added.
struct CommunicationOptions {
  // How many stages of a rank may be unsharded at once (at least one). Beyond that, the stage whose next use is last is
  // resharded. Without a value, no UNSHARD and RESHARD are added, and the stages gather their weights themselves.
  std::optional<int> unsharded_stages = 1;
  bool reduce_grad = true;
  // For transports whose sends block until their receives. Each receive is placed at the time at which its message is
  // sent (by the durations of Costs()), possibly long before its use. Blocking sends then cannot deadlock.
  bool rendezvous = false;
};
// Adds communication to a schedule of computation. Existing UNSHARD, RESHARD and REDUCE_GRAD actions stay if the
// options add none of their kind. A send follows the action that computes its data. A receive comes right before the
// action that needs it, so that waiting for it delays nothing else. Exception: messages of one sender are received in
// the order in which they are sent, for transports without tags; this adds no wait. Neighboring stages on one rank
// need no messages. RESHARD and REDUCE_GRAD follow the last use and the last B or W of a stage.
DTENSOR_API Schedule with_communication(const Schedule& schedule, const CommunicationOptions& options = {});

// Verifies a schedule and throws an error that names the two actions that conflict, with their ranks. The rules:
// - Each stage is on one rank. Each stage and microbatch has one F and one B, or one I and a later W.
// - The inputs of an action are computed or received before it.
// - Each send has its receive and vice versa, wherever neighboring stages are on different ranks. (Without any
//   communication in the schedule, results count as available everywhere.)
// - A stage with UNSHARD is unsharded whenever it computes, and resharded at the end.
// - If any stage has REDUCE_GRAD, each stage has it once, after its last gradient.
// - No rank waits for itself.
DTENSOR_API Schedule::Report check(const Schedule& schedule, const Schedule::Limits& limits = {});

// For each rank of a valid schedule: the peak of microbatch activations that all its stages together hold. An
// activation is held from F to B, or to W if the backward is split, because W needs it.
DTENSOR_API std::vector<int> live_activations(const Schedule& schedule);

// Durations of actions. A message arrives `communication` after its send, which itself takes no time.
struct DTENSOR_API Costs {
  // In any unit of time.
  double forward = 1, backward = 2, backward_input = 1, backward_weight = 1;
  double communication = 0, unshard = 0, reshard = 0, reduce_grad = 0;
  std::vector<double> stages = {};  // factors of F, B, I and W by stage; empty: 1
  double operator()(const Action& action) const;
};
// Duration of one action, in any unit of time.

// An action with its measured or simulated times.
struct TimedAction {
  // The action, and its begin and end.
  Action action;
  double begin = 0, end = 0;
};
// Times of the actions of all ranks.
struct Timeline {
  // Per rank, in order.
  std::vector<std::vector<TimedAction>> ranks;
  double makespan = 0;                // from the first action to the end of the last
  double bubble = 0;                  // the idle share of ranks x makespan
  std::vector<Action> critical_path;  // dependent actions whose durations add up to makespan
};
// Simulates a valid schedule. Each action starts as soon as the previous action of its rank has ended and its inputs
// are available. A receive lasts until its message arrives.
DTENSOR_API Timeline simulate(const Schedule& schedule, const std::function<double(const Action&)>& cost = Costs());

// An SVG of a simulated or measured step: one row per rank, one box per action, colored by kind.
DTENSOR_API std::string schedule_svg(const std::vector<std::vector<TimedAction>>& ranks);

}  // namespace dtensor::pipeline
